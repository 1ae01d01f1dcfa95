"""The exit status of tools/run_tests.py."""

from __future__ import annotations

import importlib.util
import signal

import pytest
from builders import ROOT

FILE = ROOT / "tools" / "run_tests.py"


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        ([0, 0], 0),
        ([0, 5], 0),
        ([5, 5], 5),
        ([1, 0], 1),
        ([2], 2),
        ([-signal.SIGKILL, 0], 137),
        ([0, -signal.SIGSEGV], 139),
        ([-signal.SIGKILL, 5], 137),
    ],
)
def test_a_part_that_failed_or_was_killed_is_a_failure(statuses: list[int], status: int) -> None:
    spec = importlib.util.spec_from_file_location("run_tests", FILE)
    assert spec is not None and spec.loader is not None
    run_tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(run_tests)
    assert run_tests.exit_status(statuses) == status
