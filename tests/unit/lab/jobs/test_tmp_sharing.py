"""Programs of which something lies in /tmp share the host's; others can have one per node."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.tables import table

from testbed.lab.jobs.node_scratch import why_shared

OUTSIDE = Path("/srv/none-there")
PLACES = {"the folder of runs": OUTSIDE / "runs", "the state of labs": OUTSIDE / "state"}


def why(line: str = "python3", folder: Path = OUTSIDE, places: dict[str, Path] = PLACES, **variables: str) -> str:
    """Return why a program shares /tmp; ``given_X`` is a variable X of the job, others are inherited."""
    given = {name[6:]: value for name, value in variables.items() if name.startswith("given_")}
    inherited = {name: value for name, value in variables.items() if not name.startswith("given_")}
    return why_shared(shlex.split(line), folder, given, inherited, places)


@pytest.fixture
def outside() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as made:
        yield Path(made)


def test_program_with_nothing_in_tmp_can_have_its_own() -> None:
    assert why("python3 train.py --data=/var/tmp/x a/tmp/b /srv/tmp /tmpfs 5 --lr=1e-3") == ""
    assert why(PATH="/usr/bin:/var/tmp/bin", HOME="/root", given_DATA="tmp/x") == ""


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("/tmp", "/tmp"),
        ("/tmp/x", "/tmp/x"),
        ("--out=/tmp/x", "/tmp/x"),
        ("-I/tmp/x", "/tmp/x"),
        ("file:///tmp/store", "///tmp/store"),
        ("/a:/tmp/b:/c", "/tmp/b"),
        ("import x; x.load('/tmp/y z')", "/tmp/y"),
        ("../../tmp/x", "/srv/none-there/../../tmp/x"),
        ("--out=../../tmp/x", "/srv/none-there/../../tmp/x"),
        ("/var/../tmp/x", "/var/../tmp/x"),
    ],
)
def test_argument_in_tmp_is_named(word: str, path: str) -> None:
    assert why(f"python3 train.py {shlex.quote(word)}") == f"argument 2 names a path in it ({path})"


def test_the_folders_of_program_state_and_runs_are_named() -> None:
    assert why(folder=Path("/tmp/x")) == "the current folder lies in it (/tmp/x)"
    for name in PLACES:
        assert why(places={**PLACES, name: Path("/tmp/y/z")}) == f"{name} lies in it (/tmp/y/z)"


def test_a_program_in_tmp_is_named(outside: Path, tmp_path: Path) -> None:
    assert str(tmp_path).startswith("/tmp/"), "pytest's folders are there"
    (script := tmp_path / "train.sh").write_text("#!/bin/sh\n")
    assert why(f"{script}").endswith(f"lies in it ({script})")
    (link := outside / "link").symlink_to(script)
    assert why(f"{link}").endswith(f"lies in it ({link})"), "where its links lead counts"
    (tmp_path / "interpreter").touch()
    (other := outside / "script").write_text(f"#!{tmp_path}/interpreter -u\n")
    assert why(f"{other}").endswith(f"lies in it ({tmp_path}/interpreter)")
    assert why("train.sh", folder=outside) == "", "no such program: starting it says so"


def test_a_virtual_environment_with_something_in_tmp_is_named(outside: Path, tmp_path: Path) -> None:
    (venv := outside / "venv").mkdir()
    (packages := venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (venv / "bin").mkdir()
    (python := venv / "bin" / "python").symlink_to(os.path.realpath("/usr/bin/env"))
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (packages / "own.pth").write_text("import x\n/srv/src\n")
    assert why(f"{python} train.py") == ""
    (packages / "editable.pth").write_text(f"{tmp_path}/src\n")
    assert why(f"{python} train.py").endswith(f"lies in it ({tmp_path}/src)")
    (packages / "editable.pth").unlink()
    (venv / "pyvenv.cfg").write_text("home = /tmp/python/bin\n")
    assert why(f"{python}").endswith("lies in it (/tmp/python/bin)")
    (script := venv / "bin" / "torchrun").write_text(f"#!{python}\n")
    assert why(f"{script}").endswith("lies in it (/tmp/python/bin)"), "by its interpreter"


@table(
    "name, value",
    {
        "given": ("given_TOKEN", "/tmp/secret"),
        "inherited": ("PYTHONPATH", "/srv/a:/tmp/b"),
        "a link": ("given_DATA", "{outside}/data"),
    },
)
def test_variable_in_tmp_is_named_without_its_value(outside: Path, tmp_path: Path, name: str, value: str) -> None:
    (outside / "data").symlink_to(tmp_path)
    variables: dict[str, Any] = {name: value.format(outside=outside)}
    assert why(**variables) == f"the variable {name.removeprefix('given_')} names a path in it"


def test_sockets_of_the_terminals_session_do_not_count() -> None:
    session: dict[str, Any] = {
        "TMUX": "/tmp/tmux-0/default,1,0",
        "SSH_AUTH_SOCK": "/tmp/ssh-x/agent.1",
        "TMPDIR": "/tmp",
        "VSCODE_GIT_IPC_HANDLE": "/tmp/vscode-git.sock",
    }
    assert why(**session) == ""
    assert why(given_SSH_AUTH_SOCK="/tmp/agent") == "the variable SSH_AUTH_SOCK names a path in it"
