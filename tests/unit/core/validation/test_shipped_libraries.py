"""The available collective libraries, and the messages for those that cannot be validated here."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.tables import table

from testbed.core.validation.library import ENTRY_POINT_GROUP, PYTHON, CollectiveLibrary
from testbed.core.validation.shipped_libraries import SHIPPED
from testbed.errors import UnknownName, UserError
from testbed.host import collective_libraries

MINE = CollectiveLibrary("mine", "somebody's own", (PYTHON, "-m", "mine"), modules=("json",))
NOT_ONE = "just a text"
Register = Callable[..., None]


def library(**fields: Any) -> CollectiveLibrary:
    return CollectiveLibrary("x", "x", ("x",), **fields)


def made() -> CollectiveLibrary:
    return MINE


def failing() -> CollectiveLibrary:
    raise RuntimeError("no good")


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Register:
    """Register entry points as another package would: ``register("mine", "MINE")``."""
    points: list[importlib.metadata.EntryPoint] = []

    def add(name: str, what: str = "MINE") -> None:
        points.append(importlib.metadata.EntryPoint(name, f"{__name__}:{what}", ENTRY_POINT_GROUP))

    monkeypatch.setattr(collective_libraries, "_entry_points", lambda: tuple(points))
    return add


def test_registry_has_the_shipped_libraries() -> None:
    assert list(collective_libraries.registry())[: len(SHIPPED)] == list(SHIPPED)
    assert collective_libraries.find("ring").argv[:2] == (PYTHON, "-m")
    assert collective_libraries.find("ring-hang").argv[-1] == "hang"
    assert "ring-hang" not in collective_libraries.registry()


@pytest.mark.parametrize("what", ["MINE", "made"])
def test_registry_has_libraries_of_entry_points(register: Register, what: str) -> None:
    register("mine", what)
    assert collective_libraries.find("mine") == MINE
    assert collective_libraries.registry()["mine"] == MINE
    assert collective_libraries.broken() == {}


def test_registry_keeps_a_shipped_name(register: Register) -> None:
    register("ring")
    assert collective_libraries.find("ring") == SHIPPED["ring"] == collective_libraries.registry()["ring"]


@table(
    "what, reason",
    {
        "it raises an error": (failing, "RuntimeError: no good"),
        "it is no library": (NOT_ONE, "TypeError"),
        "it does not exist": (None, "AttributeError"),
        "its name is a path": ({"name": "../../etc"}, "got '../../etc'"),
        "its name is empty": ({"name": ""}, "name must"),
        "its argv is empty": ({"argv": ()}, "argv must not be empty"),
        "its argv is a text": ({"argv": "ranks.py"}, "argv must be a tuple"),
        "its launcher is unknown": ({"launcher": "slurm"}, "got 'slurm'"),
        "its environment has numbers": ({"environment": {"OMP_NUM_THREADS": 1}}, "environment"),
    },
)
def test_find_rejects_an_invalid_library_which_hides_no_other(
    register: Register, monkeypatch: pytest.MonkeyPatch, what: Any, reason: str
) -> None:
    if what is not None:
        value = dataclasses.replace(MINE, **what) if isinstance(what, dict) else what
        monkeypatch.setitem(globals(), "INVALID", value)
    register("bad", "INVALID")
    register("mine")
    with pytest.raises(UserError, match=re.escape(reason)):
        collective_libraries.find("bad")
    assert "bad" not in collective_libraries.registry() and "mine" in collective_libraries.registry()
    assert reason in collective_libraries.broken()["bad"]


def test_find_suggests_the_nearest_name(register: Register) -> None:
    register("mine")
    with pytest.raises(UnknownName, match="did you mean torch-gloo"):
        collective_libraries.find("torch-glo")
    with pytest.raises(UnknownName, match="mine"):
        collective_libraries.find("min")


def test_find_a_program_of_ones_own_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_why_not_has_what_is_missing_and_what_installs_it() -> None:
    lacking = library(modules=("json", "no_such.module"), programs=("no-such-mpiexec",), install="do it")
    assert collective_libraries.lacking(lacking) == ("no_such.module",)
    why = collective_libraries.why_not(lacking)
    assert why == "no_such.module, no-such-mpiexec are not installed; install it with: do it"
    assert collective_libraries.why_not(MINE) == ""


def test_lacking_inside_a_container_is_what_its_own_python_lacks() -> None:
    modules, programs = ("json", "no_such.module", "os.path"), ("sh", "no-such-mpiexec")
    asked = library(modules=modules, programs=programs)
    here = collective_libraries.lacking_inside(asked, lambda argv: [sys.executable, *argv[1:]])
    assert here == ("no_such.module", "no-such-mpiexec")
    for enter in (lambda argv: ["false"], lambda argv: ["/nowhere/python"]):
        assert collective_libraries.lacking_inside(asked, enter) == modules + programs
    assert collective_libraries.lacking_inside(library(), lambda argv: ["false"]) == ()


def test_why_not_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(collective_libraries, "_GPU", tmp_path / "gpu")
    needs = library(needs_gpu=True)
    assert "no NVIDIA GPU" in collective_libraries.why_not(needs)
    (tmp_path / "gpu").touch()
    assert collective_libraries.why_not(needs) == ""


def test_program_beside_our_python() -> None:
    python = Path(sys.executable)
    assert collective_libraries.program(python.name) == python.parent / python.name
    assert collective_libraries.program("sh") is not None
    assert subprocess.run([str(collective_libraries.program("true"))]).returncode == 0
    assert collective_libraries.program("no-such-program") is None
