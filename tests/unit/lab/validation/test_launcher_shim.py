"""The arguments of an MPI launcher's remote shell, and the command that results."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from testbed.lab.validation import launcher_shim

WAYS = {"10.1.1.1": ["nsenter", "--net=/a", "--"], "10.2.1.1": ["docker", "exec", "b"]}


@pytest.mark.parametrize(
    "words",
    [
        ["10.1.1.1", "hydra_pmi_proxy", "--port", "7"],
        ["-x", "10.1.1.1", "hydra_pmi_proxy --port 7"],
        ["-o", "StrictHostKeyChecking=no", "-x", "user@10.1.1.1", "hydra_pmi_proxy", "--port 7"],
    ],
)
def test_the_words_of_ssh_are_understood(words: list[str]) -> None:
    assert launcher_shim.main(words, WAYS) == ["nsenter", "--net=/a", "--", "sh", "-c", "hydra_pmi_proxy --port 7"]


def test_a_host_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(KeyError):
        launcher_shim.main(["example.org", "true"], WAYS)


def test_the_program_that_is_named_to_mpiexec_runs_what_it_is_told(tmp_path: Path) -> None:
    program, variables = launcher_shim.write(tmp_path, {"here": ["env", "WHERE=inside"]})
    done = subprocess.run(
        [program, "-x", "here", 'echo "$WHERE";', "exit", "3"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (done.stdout, done.returncode) == ("inside\n", 3), done.stderr
    assert json.loads(Path(variables[launcher_shim.VARIABLE]).read_text()) == {"here": ["env", "WHERE=inside"]}


def test_what_lies_where_it_is_called_is_not_run(tmp_path: Path) -> None:
    """The program runs as root, in a folder that a user may own."""
    program, variables = launcher_shim.write(tmp_path, {"here": ["env"]})
    for name in ("json.py", "shlex.py", "testbed.py"):
        (tmp_path / name).write_text("raise SystemExit('not mine')\n")
    done = subprocess.run(
        [program, "here", "exit", "3"], env={**os.environ, **variables}, cwd=tmp_path, capture_output=True, timeout=20
    )
    assert done.returncode == 3, done.stderr
