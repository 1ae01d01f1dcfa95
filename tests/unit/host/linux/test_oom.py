"""The kernel's counter of processes killed for want of memory, in a control group of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.host.linux.cgroup import OomWatch

HUNGRY = "import sys; sys.stdin.read(); kept = [bytearray(1 << 20) for _ in range(256)]; print(len(kept))"


@pytest.fixture
def group() -> Iterator[Path]:
    """A group that may use 32 MiB, of cgroup v1 or v2, whichever has the memory controller."""
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory" / "memory.limit_in_bytes").exists()
    folder = (root / "memory" if v1 else root) / f"test-oom-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text("33554432")
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no memory controller that this test may use: {error}")
    yield folder
    folder.rmdir()


def hungry() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", HUNGRY], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def test_a_process_killed_for_want_of_memory_is_told_from_one_that_was_shot(group: Path) -> None:
    watch = OomWatch()
    with hungry() as starved, hungry() as shot:
        for key, child in enumerate((starved, shot)):
            (group / "cgroup.procs").write_text(str(child.pid))
            watch.watch(key, Path("/proc", str(child.pid)))
        shot.kill()
        shot.wait(10)
        assert not watch.killed(1)
        starved.communicate(timeout=30)
    assert starved.returncode == shot.returncode == -9
    assert watch.killed(0)
    assert not watch.killed(0), "one kill explains one death"


def test_kills_before_a_job_explain_no_death_in_it(group: Path) -> None:
    """Ranks share their control group with whatever else runs in it."""
    watch = OomWatch()
    with hungry() as foreign, hungry() as rank:
        for child in (foreign, rank):
            (group / "cgroup.procs").write_text(str(child.pid))
        watch.watch(0, Path("/proc", str(rank.pid)))
        foreign.communicate(timeout=30)
        assert foreign.returncode == -9
        watch.renew()
        rank.kill()
        rank.wait(10)
    assert not watch.killed(0)


def test_a_process_without_a_group_is_not_watched() -> None:
    watch = OomWatch()
    watch.watch(0, Path("/proc/0"))
    assert not watch.killed(0)
    assert not watch.killed(1)
