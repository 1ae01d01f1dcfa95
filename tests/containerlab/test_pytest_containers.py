"""pytest-testbed in containers: the suite of the docs, and the error for a function that needs pytest."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from builders import ROOT
from builders.commands import captured
from builders.conditions import ALONE

pytestmark = ALONE

AROUND = """
import pytest

pytestmark = pytest.mark.testbed("metro-40km", driver="containerlab")


def here():  # imported with its module, and so with pytest
    return True


def test_it(ranks):
    assert ranks(here)
"""


@pytest.mark.thorough
def test_the_example_suite_of_the_docs(
    containers: str, state_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESTBED_DRIVER", "containerlab")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    suite = tmp_path / "suite"
    shutil.copytree(ROOT / "examples" / "pytest_suite", suite)
    (suite / "test_around.py").write_text(AROUND)
    argv = [sys.executable, "-m", "pytest", "-p", "testbed.pytest_plugin", "-q", "--testbed-require"]
    done = captured(argv, timeout=180, cwd=suite)
    assert "5 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert (
        "No module named 'pytest'; this node's Python has no pytest: put the function into a module that" in done.stdout
    )
    assert list((state_folder / "labs").iterdir()) == []
