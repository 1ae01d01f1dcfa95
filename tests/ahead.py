"""Start long, light work when the test run begins, in parallel with the unit tests, which run first.

Two cores have capacity for it while no test measures time. Tests that need its result wait for it, so it finishes
before the first test that measures time. :data:`ORDER` is the order of the folders.
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
"""Order of test folders; others run last."""

AHEAD = {"netem_vm/test_in_vm.py": "netem_vm/test_in_vm.py", "containerlab": "containerlab/test_image.py"}
"""Selected tests: the test file started ahead for them (the machine with netem; the agents' docker image)."""

BOUND_S = 1800.0


def folder(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""


def order(items: list[pytest.Item]) -> None:
    items.sort(key=lambda it: ORDER.index(folder(it)) if folder(it) in ORDER else len(ORDER))


class Ahead:
    """The pytest processes started ahead, each with its output in a file."""

    def __init__(self) -> None:
        self._begun: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}

    def begin(self, items: Iterable[pytest.Item], outputs: Path) -> None:
        """Start the tests ahead if unit tests are selected, which fill the time meanwhile."""
        asked = {str(it.path.relative_to(HERE)) for it in items if it.path.is_relative_to(HERE)}
        if os.geteuid() != 0 or not any(it.startswith("unit/") for it in asked):
            return
        for wanted, what in AHEAD.items():
            if any(it.startswith(wanted) for it in asked):
                output = outputs / what.replace("/", "-")
                argv = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "--color=no", str(HERE / what)]
                # Otherwise the process would look like a leftover of a test.
                environment = {key: value for key, value in os.environ.items() if not key.startswith("TESTBED_S")}
                with output.open("wb") as log:
                    child = subprocess.Popen(
                        argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=HERE.parent,
                        env={**environment, "PYTEST_ADDOPTS": ""},
                    )  # fmt: skip
                self._begun[what] = (child, output)

    def wait(self, what: str) -> tuple[int, str] | None:
        """Wait for the end of a test file; return its exit status and output, or None if it was not started."""
        if what not in self._begun:
            return None
        child, output = self._begun[what]
        return child.wait(BOUND_S), output.read_text(errors="replace")

    def end(self) -> None:
        """End running processes as by Ctrl-C; kill those that remain."""
        for child, _ in self._begun.values():
            for number in (signal.SIGINT, signal.SIGKILL):
                if child.poll() is None:
                    os.killpg(child.pid, number)
                    try:
                        child.wait(30)
                    except subprocess.TimeoutExpired:
                        continue


AHEAD_OF_TESTS = Ahead()
