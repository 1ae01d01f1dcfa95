"""Processes: known by what they are in (a namespace) or when they began, never by pid alone and never by name."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path


def started(pid: int) -> int:
    """Start time of a process in clock ticks since boot (proc(5), field 22); 0 if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_same(pid: int, began: int) -> bool:
    """Whether ``pid`` is still the process that began at ``began``."""
    return began != 0 and started(pid) == began


def how_ended(code: int) -> str:
    """The end of a process in words, from its ``returncode``: ``was killed by SIGKILL``, ``ended with status 1``."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def inside(inodes: Collection[int]) -> list[tuple[int, int]]:
    """(pid, start time) of all processes whose network namespace is one of ``inodes``.

    A process that gets the pid of one that ends meanwhile has another start time, or is inside too.
    """
    found: list[tuple[int, int]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                netns = entry / "ns" / "net"
                if netns.stat().st_ino in inodes:
                    began = started(int(entry.name))
                    if began and netns.stat().st_ino in inodes:
                        found.append((int(entry.name), began))
    return found


def is_first(pid: int) -> bool:
    """Whether ``pid`` is the first process of a pid namespace below ours, as a container's: with it all others end."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def end(pid: int, began: int = 0, *, grace_s: float = 0.0, bound_s: float = 5.0) -> bool:
    """End one process: SIGTERM and ``grace_s`` of time if given, then SIGKILL; True once it is gone.

    ``began`` guards against a recycled pid.
    """
    return not end_all([(pid, began)], grace_s=grace_s, bound_s=bound_s)


def end_all(targets: Iterable[tuple[int, int]], *, grace_s: float = 0.0, bound_s: float = 5.0) -> list[int]:
    """End all (pid, began); pids that did not go within ``bound_s`` are returned."""
    files: dict[int, int] = {}
    for pid, began in targets:
        try:
            handle = os.pidfd_open(pid)
        except (ProcessLookupError, OSError):
            continue
        # The pidfd is opened first and the start time read after: from here on it cannot become another process.
        if began and started(pid) != began:
            os.close(handle)
            continue
        files[handle] = pid
    try:
        if grace_s:
            _signal(files, signal.SIGTERM)
            _wait(files, grace_s)
        _signal(files, signal.SIGKILL)
        _wait(files, bound_s)
        return sorted(files.values())
    finally:
        for handle in files:
            os.close(handle)


def wait_gone(pid: int, began: int, bound_s: float) -> bool:
    """Wait until a process that need not be a child of ours is gone; False if it still lives after ``bound_s``."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return True
    if not is_same(pid, began):
        os.close(handle)
        return True
    files = {handle: pid}
    _wait(files, bound_s)
    for left in files:
        os.close(left)
    return not files


def _signal(files: dict[int, int], number: signal.Signals) -> None:
    for handle in files:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, number)


def _wait(files: dict[int, int], bound_s: float) -> None:
    """Wait until all are gone or the time is over; those gone leave ``files``."""
    poll = select.poll()
    for handle in files:
        poll.register(handle, select.POLLIN)
    until = time.monotonic() + bound_s
    while files:
        left = until - time.monotonic()
        if left <= 0:
            return
        for handle, _ in poll.poll(left * 1000):
            poll.unregister(handle)
            os.close(handle)
            del files[handle]


MOST_FILES = 65_536
"""Enough for the largest lab; without a bound there are programs, started by us, that walk over all that may be."""


def allow_many_files() -> None:
    """Have as many files open as our hard limit allows, up to :data:`MOST_FILES`: some are held for each node and link,
    and the soft limit of a login is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cpu_seconds(pid: int) -> float:
    """CPU time (user + system) that a process has used, in seconds; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
