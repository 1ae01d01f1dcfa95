"""Which process belongs to which rank: by its environment, its session, or what started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.host.linux.rank_processes import Found, inside, ranks_of


def found(pid: int, parent: int, session: int, rank: int | None = None) -> Found:
    return Found(pid, 7, parent, session, rank)


def grouped(*listed: Found) -> dict[int, list[int]]:
    return {rank: sorted(it.pid for it in them) for rank, them in ranks_of(listed).items()}


def test_those_that_say_so() -> None:
    assert grouped(found(10, 1, 10, 0), found(11, 1, 11, 1), found(12, 10, 10, 0)) == {0: [10, 12], 1: [11]}


def test_one_that_overwrote_its_environment() -> None:
    """By its session as a child's parent, and as a descendant in a session of its own."""
    listed = found(10, 1, 10), found(11, 10, 10, 3), found(12, 11, 12), found(13, 12, 13)
    assert grouped(*listed) == {3: [10, 11, 12, 13]}


def test_a_session_of_several_ranks_tells_nothing() -> None:
    assert grouped(found(10, 1, 5, 0), found(11, 1, 5, 1), found(12, 1, 5)) == {0: [10], 1: [11]}


def test_other_processes_of_a_node() -> None:
    assert grouped(found(10, 1, 10), found(11, 10, 10)) == {}
    assert grouped() == {}


@pytest.fixture
def sleepers() -> Iterator[list[subprocess.Popen[bytes]]]:
    def start(rank: int) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TESTBED_FOLDER": f"/x/ranks/rank-{rank}"}
        argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
        child = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        assert child.stdout is not None
        child.stdout.readline()
        return child

    started = [start(rank) for rank in (2, 13)]
    yield started
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_processes_of_this_machine(sleepers: list[subprocess.Popen[bytes]]) -> None:
    ranks = ranks_of(inside({Path("/proc/self/ns/net").stat().st_ino}))
    for rank, child in zip((2, 13), sleepers, strict=True):
        assert child.pid in [it.pid for it in ranks[rank]]
        assert os.getpid() not in [it.pid for it in ranks[rank]]
    assert ranks_of(inside({0})) == {}
