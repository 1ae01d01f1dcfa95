"""A thief of CPU time: SCHED_FIFO 99 spinners, one pinned to each core, for tests and benchmarks on a noisy host.

::

    python -m benchmarks.thief --share 0.15 --mode apart --seconds 60 -- COMMAND...      # as root

A burst takes a core for 1 to 30 ms. In mode ``together`` all cores are taken at the same times, in mode ``apart`` at
independent ones. It is not the same as steal: interrupts are still handled, the scheduler migrates tasks to other
cores, and /proc/stat counts the time as busy.

The achieved share is the CPU time of each spinner by its own clock, over the time since its first burst could begin.
A measurement is void (:class:`Void`, exit status 75) if a share is off by more than 2 points, if bursts were cut short,
if the bursts ended before the command did, or without CAP_SYS_NICE.

Uses the standard library alone: tests compare the testbed with what happens under a thief.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MODES = ("together", "apart")
LEAST_BURST_S, LONGEST_BURST_S = 0.001, 0.030
PRIORITY = 99
"""Above fiberd (40), and above the kernel's threads (50)."""
TOLERANCE = 0.02
"""Accepted difference of a share from its target."""
RUNNING = "TESTBED_THIEF"
"""Set in the environment of a command, so that its programs start no second thief, which would disturb this one."""
CUT_SHORT = 0.05
"""Accepted wait of a spinner for its core, over the length of its bursts."""
LONGEST_S = 3600.0
VOID_STATUS = 75
RT_RUNTIME = Path("/proc/sys/kernel/sched_rt_runtime_us")
_PR_SET_PDEATHSIG = 1
_CAP_SYS_NICE = 1 << 23


class Void(RuntimeError):
    """The level was not held: measurements taken meanwhile do not count."""


def may_steal() -> bool:
    """Return whether this process has CAP_SYS_NICE."""
    status = Path("/proc/self/status").read_text().splitlines()
    return bool(next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:")) & _CAP_SYS_NICE)


def bursts(share: float, seconds: float, seed: int | str) -> list[tuple[int, int]]:
    """Return (begin, end) of each burst in nanoseconds; the same for the same seed.

    Each burst lies at random in a slot of its length over ``share``, so that the share also holds over a few seconds.
    Between two bursts is a pause, so that none exceeds :data:`LONGEST_BURST_S`.
    """
    draw = random.Random(seed)
    schedule: list[tuple[int, int]] = []
    slot_s = 0.0
    while share > 0:
        length_s = draw.uniform(LEAST_BURST_S, LONGEST_BURST_S)
        begin_s = slot_s + length_s * (1 / share - 1) * draw.uniform(0.1, 1.0)
        slot_s += length_s / share
        if slot_s > seconds:
            break
        schedule.append((round(begin_s * 1e9), round((begin_s + length_s) * 1e9)))
    return schedule


def schedules(
    share: float, mode: str, seconds: float, seed: int, cores: Sequence[int]
) -> dict[int, list[tuple[int, int]]]:
    """Return the bursts of each core."""
    return {core: bursts(share, seconds, f"{seed}" if mode == "together" else f"{seed}, {core}") for core in cores}


@dataclass
class Stolen:
    """CPU time taken by a thief, by core; complete when the block of :func:`thief` has ended."""

    share: float
    mode: str
    pids: Mapping[int, int] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    """CPU time over time."""
    waited: dict[int, float] = field(default_factory=dict)
    """Time that a spinner waited for its core within bursts, over their length."""

    def why_void(self) -> str:
        """Return why the level was not held; empty if it was."""
        for core, waited in self.waited.items():
            if waited > CUT_SHORT:
                return (
                    f"bursts on core {core} were cut short: the spinner waited {waited:.0%} of their length, throttled"
                    f" (sched_rt_runtime_us is {RT_RUNTIME.read_text().strip()}) or behind another of its priority"
                )
        for core, share in self.shares.items():
            if abs(share - self.share) > TOLERANCE:
                return f"{share:.1%} of core {core} were taken, expected {self.share:.0%} within 2 points"
        return ""

    def __str__(self) -> str:
        achieved = ", ".join(f"core {core} {share:.1%}" for core, share in sorted(self.shares.items()))
        return f"thief: {self.share:.0%} {self.mode}: {achieved or 'nothing taken'}"


@contextmanager
def thief(share: float, mode: str, seconds: float, seed: int = 1) -> Iterator[Stolen]:
    """Take ``share`` of each core's time while the block runs, at most for ``seconds``.

    Raises:
        Void: at the begin without CAP_SYS_NICE; at the end if the level was not held until then.
    """
    if not (0 <= share <= 0.5 and mode in MODES and 0 < seconds <= LONGEST_S):
        raise ValueError(f"expected a share of 0 to 0.5, a mode of {MODES} and at most {LONGEST_S:g} s")
    stolen = Stolen(share, mode)
    if share == 0:
        yield stolen
        stolen.shares = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)
        return
    spinners: dict[int, subprocess.Popen[str]] = {}
    try:
        for core in sorted(os.sched_getaffinity(0)):
            argv = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), "--spin", str(core), str(os.getpid())]
            # A session of its own: Ctrl-C reaches the block, which then ends the spinners.
            spinners[core] = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
            )
        stolen.pids = {core: spinner.pid for core, spinner in spinners.items()}
        plan = schedules(share, mode, seconds, seed, list(spinners))
        for core, spinner in spinners.items():
            _tell(spinner, {"seconds": seconds, "bursts": plan[core]})
        for spinner in spinners.values():
            _answer(spinner)
        origin_ns = time.monotonic_ns() + 10_000_000
        for spinner in spinners.values():
            _tell(spinner, {"origin_ns": origin_ns})
        yield stolen
        for spinner in spinners.values():
            if spinner.poll() is None:
                spinner.terminate()
        for core, spinner in spinners.items():
            report = _answer(spinner)
            stolen.shares[core], stolen.waited[core] = report["share"], report["waited"]
        if time.monotonic_ns() - origin_ns > seconds * 1e9:
            raise Void(f"the bursts ended after {seconds:g} s, before the end of the block")
        if why := stolen.why_void():
            raise Void(why)
    finally:
        for spinner in spinners.values():
            spinner.kill()
            spinner.communicate()


def _tell(spinner: subprocess.Popen[str], message: Mapping[str, object]) -> None:
    assert spinner.stdin
    try:
        spinner.stdin.write(json.dumps(message) + "\n")
        spinner.stdin.flush()
    except OSError:
        raise Void(f"the spinner with pid {spinner.pid} has ended") from None


def _answer(spinner: subprocess.Popen[str]) -> dict[str, float]:
    assert spinner.stdout
    line = spinner.stdout.readline()
    if not line:
        raise Void(f"the spinner with pid {spinner.pid} has ended without a report")
    answer = json.loads(line)
    if why := answer.get("void"):
        raise Void(why)
    return dict(answer)


# ---- a spinner


class _End(Exception):
    """SIGTERM."""


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _End


def spin(core: int, parent: int) -> None:
    """Read bursts from stdin, take them on ``core``, and report on stdout; end with the thread that started this."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) or os.getppid() != parent:
        sys.exit("the parent has ended")
    task = json.loads(sys.stdin.readline())
    # The kernel kills a process that keeps its core for a second (RLIMIT_RTTIME), and one that outlives its schedule.
    resource.setrlimit(resource.RLIMIT_RTTIME, (1_000_000, 1_000_000))
    signal.alarm(math.ceil(task["seconds"]) + 10)
    os.sched_setaffinity(0, {core})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except PermissionError:
        _print(
            {"void": f"no permission for SCHED_FIFO {PRIORITY}: expected CAP_SYS_NICE and cpu.rt_runtime_us above 0"}
        )
        return
    _print({})
    origin_ns = json.loads(sys.stdin.readline())["origin_ns"]
    now, sleep = time.monotonic_ns, time.sleep
    planned_ns = 0
    waited_ns = 0
    schedstat = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    signal.signal(signal.SIGTERM, _end)
    used_ns, began_ns = time.process_time_ns(), now()
    try:
        for begin_ns, end_ns in task["bursts"]:
            if (pause_ns := origin_ns + begin_ns - now()) > 0:
                sleep(pause_ns / 1e9)
            before_ns = _run_delay_ns(schedstat)  # after the wake-up, which steal delays too
            planned_ns += end_ns - begin_ns
            until_ns = origin_ns + end_ns
            while now() < until_ns:
                pass
            waited_ns += _run_delay_ns(schedstat) - before_ns
        sleep(max(0.0, task["seconds"] - (now() - origin_ns) / 1e9))
    except _End:
        pass
    used_ns = time.process_time_ns() - used_ns
    _print({"share": used_ns / max(1, now() - max(began_ns, origin_ns)), "waited": waited_ns / max(1, planned_ns)})


def _run_delay_ns(schedstat: int) -> int:
    """Return the time that this process was runnable and did not run (proc(5)); steal while it runs is not in it."""
    return int(os.pread(schedstat, 100, 0).split()[1])


def _print(message: Mapping[str, object]) -> None:
    print(json.dumps(message), flush=True)


# ---- command line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.15, help="of each core's time, 0 to 0.5")
    parser.add_argument("--mode", choices=MODES, default="apart")
    parser.add_argument("--seconds", type=float, required=True, help="at most; a command that takes longer is void")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="command to disturb, after -- (default: wait)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    status = 0
    try:
        # Without a command, the last bursts may still lie ahead when the time is up.
        margin_s = 0.0 if arguments.command else 1.0
        with thief(arguments.share, arguments.mode, arguments.seconds + margin_s, arguments.seed) as stolen:
            if arguments.command:
                environment = os.environ | {RUNNING: f"{arguments.share:g} {arguments.mode}"}
                with subprocess.Popen(arguments.command, env=environment) as child:
                    try:
                        status = child.wait()
                    finally:
                        child.terminate()
            else:
                time.sleep(arguments.seconds)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        if not (arguments.command and error.filename == arguments.command[0]):
            raise
        parser.error(f"cannot run {error.filename}: {error.strerror}")
    except Void as error:
        print(f"thief: void: {error}", file=sys.stderr)
        return VOID_STATUS
    print(stolen, file=sys.stderr)
    return status


if __name__ == "__main__":
    if sys.argv[1:2] == ["--spin"]:
        spin(int(sys.argv[2]), int(sys.argv[3]))
        sys.exit()
    sys.exit(main())
