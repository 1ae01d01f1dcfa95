"""How the processes of rank programs end, with what they started themselves."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import pytest

from testbed.host.linux import process
from testbed.lab.validate.programs import end, exit_code

Child = subprocess.Popen[bytes]


def with_helper(and_then: str) -> tuple[Child, int, int]:
    """A program that has started another one: itself, the other's pid and when it began."""
    argv = ["sh", "-c", f"sleep 1000 & echo $!; {and_then}"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    return child, pid, process.started(pid)


def known(child: Child) -> None:
    until = time.monotonic() + 10
    while exit_code(child) is None:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize(("and_then", "ending", "code"), [("exit 3", known, 3), ("exit 3", end, 3), ("wait", end, -9)])
def test_what_a_program_started_ends_with_it(and_then: str, ending: Callable[[Child], None], code: int) -> None:
    child, helper, began = with_helper(and_then)
    assert process.is_same(helper, began)
    if and_then == "exit 3":
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has been told
    ending(child)
    assert process.wait_gone(helper, began, 10.0)
    assert (exit_code(child), child.returncode) == (code, code)


def test_one_that_runs_has_no_exit_code() -> None:
    child, helper, began = with_helper("wait")
    try:
        assert exit_code(child) is None
        assert process.is_same(helper, began)
    finally:
        end(child)
