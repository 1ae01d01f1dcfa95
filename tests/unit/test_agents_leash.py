"""A program on a leash: its status is passed on, and it ends with whoever holds the other end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

LEASH = [sys.executable, "-m", "testbed_agents.leash", "--"]
BOUND_S = 20


def start(*argv: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*LEASH, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_the_programs(script: str, status: int) -> None:
    with start("sh", "-c", script) as leash:
        assert leash.wait(BOUND_S) == status


def test_a_program_that_is_not_there_is_127() -> None:
    with start("/no/such/program") as leash:
        assert leash.wait(BOUND_S) == 127


def test_the_program_ends_when_nobody_holds_the_leash() -> None:
    with start("sh", "-c", "echo $$; exec sleep 1000") as leash:
        assert leash.stdout is not None and leash.stdin is not None
        pid = int(leash.stdout.readline())
        leash.stdin.close()
        assert leash.wait(BOUND_S) == 128 + signal.SIGTERM
    assert not alive(pid)


def test_what_it_started_ends_too() -> None:
    with start("sh", "-c", "sleep 1000 & echo $!") as leash:
        assert leash.stdout is not None
        pid = int(leash.stdout.readline())
        assert leash.wait(BOUND_S) == 0
    until = time.monotonic() + BOUND_S
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"
