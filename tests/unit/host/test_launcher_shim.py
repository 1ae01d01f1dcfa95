"""The arguments of an MPI launcher's remote shell, and the command that results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.host import launcher_shim


@pytest.mark.parametrize(
    "words",
    [
        ["10.1.1.1", "hydra_pmi_proxy", "--port", "7"],
        ["-x", "10.1.1.1", "hydra_pmi_proxy --port 7"],
        ["-o", "StrictHostKeyChecking=no", "-x", "user@10.1.1.1", "hydra_pmi_proxy", "--port 7"],
    ],
)
def test_the_words_of_ssh_are_understood(words: list[str]) -> None:
    assert launcher_shim.parse(words).host == "10.1.1.1"
    assert launcher_shim.parse(words).command == "hydra_pmi_proxy --port 7"


def test_words_without_a_host_are_refused() -> None:
    with pytest.raises(IndexError):
        launcher_shim.parse(["-x"])


def test_the_program_that_is_named_to_mpiexec_runs_what_it_is_told(tmp_path: Path) -> None:
    program = launcher_shim.watchdog(tmp_path, sys.executable)
    argv = [str(program), "env", "WHERE=in side", "sh", "-c", 'echo "$WHERE"; exit "$1"', "sh", "3"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert (child.stdout.read(), child.wait(20)) == ("in side\n", 3)


def test_the_table_has_the_argument_list_of_each_host(tmp_path: Path) -> None:
    entries = {"10.1.1.1": ["nsenter", "--net=/a", "--"], "10.2.1.1": ["docker", "exec", "b"]}
    assert json.loads(launcher_shim.table(tmp_path, entries).read_text()) == entries
