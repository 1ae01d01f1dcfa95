"""For every test: separate folders for state and runs, and a check that nothing is left behind."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT, ROOT / "agents", ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import ahead  # noqa: E402
import oracle  # noqa: E402

MEASURED = ("netns", "netem_vm", "containerlab", "e2e")
"""Folders of tests that measure time on two shared cores. What fails there is tried twice more, and pytest's closing
line counts it as a rerun: noise passes then, a defect fails three times."""

THOROUGH = "thorough: make test-thorough runs it; the ordinary tests show the same by less"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The ordinary run stays below twenty minutes on two cores."""
    if not os.environ.get("TESTBED_THOROUGH"):
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(pytest.mark.skip(reason=THOROUGH))
    for item in items:
        if ahead.folder(item) in MEASURED and not item.get_closest_marker("flaky"):
            item.add_marker(pytest.mark.flaky(reruns=2))
    ahead.order(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        words = Path(tempfile.mkdtemp(prefix="testbed-ahead-"))
        session.config.add_cleanup(lambda: shutil.rmtree(words, ignore_errors=True))
        session.config.add_cleanup(ahead.AHEAD_OF_TESTS.end)  # the last one is done first
        ahead.AHEAD_OF_TESTS.begin(session.items, words)


@pytest.fixture(scope="module", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """$TESTBED_STATE and $TESTBED_RUNS of this module; at its end no process that was started under them lives.

    One for a module, not for a test: labs that are up for all tests of a module live there.
    """
    folder = tmp_path_factory.mktemp("s")  # short: the path of a socket has 107 bytes (unix(7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TESTBED_STATE", str(folder / "state"))
        patch.setenv("TESTBED_RUNS", str(folder / "runs"))
        patch.delenv("TESTBED_LAB", raising=False)
        # Else a machine with docker would make containers in every test; tests/containerlab asks for them.
        patch.setenv("TESTBED_DRIVER", "netns")
        # Keepers and commands are processes of their own: they must find what is tested here, not what is installed.
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{ROOT / 'agents'}")
        yield folder / "state"
        oracle.until(lambda: not oracle.started_under(folder / "state"), 10.0, "a process was left behind")
        assert oracle.left_of_labs(folder / "state") == []


@pytest.fixture
def lab_name(state_folder: Path) -> Iterator[str]:
    """An unused name for a lab; at the end of the test nothing carries its mark."""
    name = oracle.unused_name()
    yield name
    oracle.until(lambda: not oracle.left_behind(name, state_folder), 10.0, f"left of {name}")
