"""Start long, light work when the test run begins, in parallel with the unit tests, which run first.

Two cores have capacity for it as long as no test measures time. It finishes before the first test that does: tests that
need its result wait for it. :data:`ORDER` is the order of the folders.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ORDER = ("unit", "netem_vm", "containerlab", "e2e", "netns")
"""Folders of tests; others come last."""

AHEAD = {"netem_vm/test_in_vm.py": "netem_vm/test_in_vm.py", "containerlab": "containerlab/test_image.py"}
"""Where one of the first is asked for, the second is begun ahead: User-Mode Linux; docker's image of the agents."""

BOUND_S = 900.0


def folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""


def order(items: list[pytest.Item]) -> None:
    items.sort(key=lambda it: ORDER.index(folder(it)) if folder(it) in ORDER else len(ORDER))


class Ahead:
    """The pytests that were begun ahead, each a process of its own with its words in a file."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def begin(self, items: Iterable[pytest.Item], words: Path) -> None:
        """Nothing is begun where no unit test fills the time."""
        asked = {str(it.path.relative_to(HERE)) for it in items if it.path.is_relative_to(HERE)}
        if os.geteuid() != 0 or not any(it.startswith("unit/") for it in asked):
            return
        for wanted, what in AHEAD.items():
            if any(it.startswith(wanted) for it in asked):
                said = words / what.replace("/", "-")
                argv = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--color=no", str(HERE / what)]
                # Else it would look like something that a test started and left behind.
                environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_S")}
                with said.open("wb") as log:
                    child = subprocess.Popen(
                        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=HERE.parent,
                        env={**environment, "PYTEST_ADDOPTS": ""},
                    )  # fmt: skip
                self._begun[what] = (child, said)

    def wait(self, what: str) -> tuple[int, str] | None:
        """Its exit status and its words, when it has ended; None if it was not begun."""
        if what not in self._begun:
            return None
        child, said = self._begun[what]
        return child.wait(BOUND_S), said.read_text(errors="replace")

    def end(self) -> None:
        """Whatever still runs ends as by Ctrl-C, or is killed."""
        for child, _ in self._begun.values():
            for number in (signal.SIGINT, signal.SIGKILL):
                if child.poll() is None:
                    os.killpg(child.pid, number)
                    try:
                        child.wait(30)
                    except subprocess.TimeoutExpired:
                        continue


AHEAD_OF_TESTS = Ahead()
