"""The thief of benchmarks/thief.py: its schedules by arithmetic, its CPU time by /proc/<pid>/stat."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import ROOT
from builders.programs import python, run
from oracles import oracle

from benchmarks import thief

pytestmark = pytest.mark.alone

steals = pytest.mark.skipif(not thief.may_steal(), reason="a thief needs CAP_SYS_NICE")


@pytest.mark.parametrize("share", [0.05, 0.15, 0.25])
def test_a_schedule_is_that_of_its_seed_and_has_its_share(share: float) -> None:
    schedule = thief.bursts(share, 60.0, "7")
    assert schedule == thief.bursts(share, 60.0, "7")
    assert schedule != thief.bursts(share, 60.0, "8")
    assert sum(end - begin for begin, end in schedule) / 60e9 == pytest.approx(share, abs=0.01)
    assert all(1e6 <= end - begin <= 30e6 for begin, end in schedule)
    assert all(end < begin for (_, end), (begin, _) in itertools.pairwise(schedule))
    assert schedule[0][0] > 0
    assert schedule[-1][1] <= 60e9


def test_the_share_holds_over_every_few_seconds() -> None:
    schedule = thief.bursts(0.15, 60.0, "7")
    for second in range(0, 57, 3):
        taken = sum(end - begin for begin, end in schedule if second * 1e9 <= begin < (second + 3) * 1e9)
        assert taken / 3e9 == pytest.approx(0.15, abs=0.02)


def test_cores_are_taken_together_or_apart() -> None:
    together = thief.schedules(0.15, "together", 60.0, 7, [0, 1])
    apart = thief.schedules(0.15, "apart", 60.0, 7, [0, 1])
    assert together[0] == together[1]
    assert apart[0] != apart[1]


@pytest.mark.parametrize(
    ("shares", "waited", "why"),
    [
        pytest.param({0: 0.16, 1: 0.14}, {0: 0.01, 1: 0.0}, "", id="held"),
        pytest.param({0: 0.15, 1: 0.12}, {0: 0.0, 1: 0.0}, "12.0% of core 1 were taken", id="off"),
        pytest.param({0: 0.15, 1: 0.15}, {0: 0.0, 1: 0.4}, "bursts on core 1 were cut short", id="throttled"),
    ],
)
def test_a_level_that_was_not_held_is_void(shares: dict[int, float], waited: dict[int, float], why: str) -> None:
    stolen = thief.Stolen(0.15, "apart", shares=shares, waited=waited)
    assert stolen.why_void().startswith(why)
    assert bool(stolen.why_void()) is bool(why)


def test_no_thief_at_level_zero() -> None:
    with thief.thief(0.0, "together", 1.0) as stolen:
        pass
    assert stolen.pids == {}
    assert set(stolen.shares.values()) == {0.0}


# ---- real thieves


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def steal_s() -> float:
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")


@steals
@pytest.mark.skipif(thief.RUNNING in os.environ, reason="another thief takes these cores")
@pytest.mark.parametrize("mode", thief.MODES)
def test_the_share_that_a_thief_reports_is_that_of_the_kernel(mode: str) -> None:
    stolen_before_s = steal_s()
    try:
        with thief.thief(0.15, mode, 10.0, seed=3) as stolen:
            began, before = time.monotonic(), {core: cpu_s(pid) for core, pid in stolen.pids.items()}
            for pid in stolen.pids.values():
                assert os.sched_getscheduler(pid) == os.SCHED_FIFO
                assert os.sched_getparam(pid).sched_priority == 99
            time.sleep(3.0)
            after = {core: cpu_s(pid) for core, pid in stolen.pids.items()}
            took_s = time.monotonic() - began
    except thief.Void as void:
        if (steal := (steal_s() - stolen_before_s) / (3.0 * (os.cpu_count() or 1))) > 0.02:
            pytest.skip(f"other guests took {steal:.0%} of the time: {void}")
        raise
    assert set(stolen.pids) == os.sched_getaffinity(0)
    for core, share in stolen.shares.items():
        assert share == pytest.approx((after[core] - before[core]) / took_s, abs=0.015)
    assert not any(Path(f"/proc/{pid}").exists() for pid in stolen.pids.values())


@steals
def test_what_outlasts_the_bursts_is_void() -> None:
    with pytest.raises(thief.Void, match=r"ended after 0\.2 s"), thief.thief(0.15, "apart", 0.2):
        time.sleep(0.4)


def test_the_command_line_needs_a_bound() -> None:
    done = python("-m", "benchmarks.thief", "--", "true")
    assert done.returncode == 2
    assert "--seconds" in done.stderr


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("thief --share 0 --seconds 5 -- /no/program", "cannot run /no/program: No such file"),
        ("thief --share 0 --seconds 5 -- /tmp", "cannot run /tmp: Permission denied"),
        ("noise --levels fast", "unknown level 'fast' (available: 0, 5, 15, 25)"),
        ("noise --levels ''", "unknown level '' (available: 0, 5, 15, 25)"),
    ],
)
def test_bad_arguments_have_a_message(line: str, error: str) -> None:
    program, *words = shlex.split(line)
    done = python("-m", f"benchmarks.{program}", *words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"{program}.py: error: {error}")


@steals
def test_spinners_end_with_their_parent() -> None:
    argv = [sys.executable, "-m", "benchmarks.thief", "--seconds", "60", "--share", "0.05"]
    with subprocess.Popen(argv, cwd=ROOT) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        cores = len(os.sched_getaffinity(0))
        oracle.until(lambda: len(children.read_text().split()) == cores, 10.0, "a spinner per core")
        spinners = [int(pid) for pid in children.read_text().split()]
        # Python sets the parent-death signal after it has started.
        oracle.until(lambda: all(os.sched_getscheduler(pid) == os.SCHED_FIFO for pid in spinners), 10.0, "spinning")
        parent.send_signal(signal.SIGKILL)
    oracle.until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in spinners), 5.0, "no spinner is left")


@steals
def test_without_the_capability_a_measurement_is_void() -> None:
    drop = ("setpriv", "--bounding-set=-sys_nice", "--inh-caps=-sys_nice")
    done = run(*drop, sys.executable, "-m", "benchmarks.thief", "--seconds", "1")
    assert done.returncode == thief.VOID_STATUS
    assert "CAP_SYS_NICE" in done.stderr


GROUPS = Path("/sys/fs/cgroup/cpu")


@steals
@pytest.mark.skipif(
    not (GROUPS / "cpu.rt_runtime_us").exists() or not os.access(GROUPS, os.W_OK),
    reason="no control groups that bound SCHED_FIFO (RT_GROUP_SCHED, cgroup v1)",
)
def test_a_throttled_thief_is_void() -> None:
    group = GROUPS / f"test-thief-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.rt_runtime_us").write_text("50000")
        enter = f"echo $$ > {group}/tasks; exec {sys.executable} -m benchmarks.thief --share 0.25 --seconds 2"
        done = run("sh", "-c", enter)
    finally:
        oracle.until(lambda: not (group / "tasks").read_text(), 5.0, "the group is empty")
        group.rmdir()
    assert done.returncode == thief.VOID_STATUS
    assert "were cut short" in done.stderr
    assert "sched_rt_runtime_us" in done.stderr
