"""The available collective libraries, and the messages for those that cannot be validated here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.core.validation import shipped_libraries
from testbed.core.validation.library import ENTRY_POINT_GROUP, PYTHON, Library
from testbed.errors import UnknownName, UserError
from testbed.host import collective_libraries

MINE = Library("mine", "somebody's own", (PYTHON, "-m", "mine"), modules=("json",))
Register = Callable[[str], None]


def made() -> Library:
    return MINE


def failing() -> Library:
    raise RuntimeError("no good")


NOT_ONE = "just a text"


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Register entry points as another package would: ``register("mine", "MINE")``."""
    points: list[importlib.metadata.EntryPoint] = []

    def add(name: str, what: str = "MINE") -> None:
        points.append(importlib.metadata.EntryPoint(name, f"{__name__}:{what}", ENTRY_POINT_GROUP))

    monkeypatch.setattr(collective_libraries, "_entry_points", lambda: tuple(points))
    return add


def test_those_that_are_shipped_have_names() -> None:
    assert list(collective_libraries.registry())[: len(shipped_libraries.SHIPPED)] == list(shipped_libraries.SHIPPED)
    assert collective_libraries.find("ring").argv[:2] == (PYTHON, "-m")
    assert collective_libraries.find("ring-hang").argv[-1] == "hang"
    assert "ring-hang" not in collective_libraries.registry()


@pytest.mark.parametrize("what", ["MINE", "made"])
def test_others_register_theirs_by_an_entry_point(register: Callable[..., None], what: str) -> None:
    register("mine", what)
    assert collective_libraries.find("mine") == MINE
    assert collective_libraries.registry()["mine"] == MINE
    assert collective_libraries.broken() == {}


def test_a_shipped_name_stays_the_shipped_ones(register: Callable[..., None]) -> None:
    register("ring")
    assert (
        collective_libraries.find("ring")
        == shipped_libraries.SHIPPED["ring"]
        == collective_libraries.registry()["ring"]
    )


@pytest.mark.parametrize(
    ("what", "says"), [("failing", "RuntimeError: no good"), ("NOT_ONE", "TypeError"), ("nowhere", "AttributeError")]
)
def test_one_that_cannot_be_used_says_why_and_hides_no_other(
    register: Callable[..., None], what: str, says: str
) -> None:
    register("bad", what)
    register("mine")
    with pytest.raises(UserError, match=says):
        collective_libraries.find("bad")
    assert "bad" not in collective_libraries.registry() and "mine" in collective_libraries.registry()
    assert says in collective_libraries.broken()["bad"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": "../../etc"}, "got '../../etc'"),
        ({"name": ""}, "name must"),
        ({"argv": ()}, "argv must not be empty"),
        ({"argv": "ranks.py"}, "argv must be a tuple"),
        ({"launcher": "slurm"}, "got 'slurm'"),
        ({"environment": {"OMP_NUM_THREADS": 1}}, "environment"),
    ],
)
def test_one_that_could_not_be_started_is_told(wrong: dict[str, Any], says: str) -> None:
    assert collective_libraries._unsound(MINE) == ""
    assert says in collective_libraries._unsound(dataclasses.replace(MINE, **wrong))


def test_an_unknown_name_is_answered_with_the_nearest(register: Callable[..., None]) -> None:
    register("mine")
    with pytest.raises(UnknownName, match="did you mean torch-gloo"):
        collective_libraries.find("torch-glo")
    with pytest.raises(UnknownName, match="mine"):
        collective_libraries.find("min")


def test_a_program_of_ones_own_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks.py").write_text("")
    found = collective_libraries.find("ranks.py")
    assert (found.name, found.argv) == ("ranks", (PYTHON, str(tmp_path / "ranks.py")))
    program = tmp_path / "ranks"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(UserError, match="chmod"):
        collective_libraries.find("./ranks")
    program.chmod(0o755)
    assert collective_libraries.find("./ranks").argv == (str(program),)
    with pytest.raises(UserError, match="no such file"):
        collective_libraries.find("./nothing")
    with pytest.raises(UserError, match="got the folder"):
        collective_libraries.find(str(tmp_path) + "/")


def test_what_is_missing_is_said_with_what_installs_it() -> None:
    lacking = Library(
        "x", "x", ("x",), modules=("json", "no_such.module"), programs=("no-such-mpiexec",), install="do it"
    )
    assert collective_libraries.lacking(lacking) == ("no_such.module",)
    why = collective_libraries.why_not(lacking)
    assert why == "no_such.module, no-such-mpiexec are not installed; install it with: do it"
    assert collective_libraries.why_not(MINE) == ""


def test_a_container_is_asked_for_its_own_modules_and_programs() -> None:
    modules, programs = ("json", "no_such.module", "os.path"), ("sh", "no-such-mpiexec")
    library = Library("x", "x", ("x",), modules=modules, programs=programs)
    here = collective_libraries.lacking_inside(library, lambda argv: [sys.executable, *argv[1:]])
    assert here == ("no_such.module", "no-such-mpiexec")
    assert collective_libraries.lacking_inside(library, lambda argv: ["false"]) == modules + programs
    assert collective_libraries.lacking_inside(library, lambda argv: ["/nowhere/python"]) == modules + programs
    assert collective_libraries.lacking_inside(Library("y", "y", ("y",)), lambda argv: ["false"]) == ()


def test_without_a_gpu_one_that_needs_it_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collective_libraries, "_GPU", tmp_path / "gpu")
    needs = Library("x", "x", ("x",), needs_gpu=True)
    assert "no NVIDIA GPU" in collective_libraries.why_not(needs)
    (tmp_path / "gpu").touch()
    assert collective_libraries.why_not(needs) == ""


def test_a_program_beside_our_python_is_found() -> None:
    assert (
        collective_libraries.program(Path(sys.executable).name)
        == Path(sys.executable).parent / Path(sys.executable).name
    )
    assert collective_libraries.program("sh") is not None
    assert subprocess.run([str(collective_libraries.program("true"))]).returncode == 0
    assert collective_libraries.program("no-such-program") is None
