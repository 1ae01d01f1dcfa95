"""Find and end processes, identified by namespace or by start time, never by pid alone and never by name."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.core.fields import integer, number, text


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat (proc(5)) from the third, the state, on; none if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def started(pid: int) -> int:
    """Return a process's start time in clock ticks since boot (proc(5), field 22); 0 if it has ended or is a zombie."""
    fields = _stat(pid)
    return 0 if not fields or fields[0] in "ZX" else int(fields[19])


def is_same(pid: int, began: int) -> bool:
    """Return whether ``pid`` is still the process that started at ``began``."""
    return began != 0 and started(pid) == began


def is_suspended(pid: int) -> bool:
    """Return whether a signal such as SIGSTOP keeps a process from running (proc(5), state T)."""
    return _stat(pid)[:1] == ["T"]


def how_ended(code: int) -> str:
    """Describe a ``returncode``: ``was killed by SIGKILL``, ``ended with status 1``."""
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True)
class ProcessRecord:
    """A process as a file names it to other processes, which may read the file after a reboot or on another host.

    Attributes:
        pid: its pid.
        began: its start in clock ticks since the boot.
        boot: id of that boot.
        since_unix_s: when it was recorded.
    """

    pid: int
    began: int
    boot: str
    since_unix_s: float

    @classmethod
    def of_this_process(cls) -> ProcessRecord:
        pid = os.getpid()
        return cls(pid, started(pid), boot_id(), time.time())

    @classmethod
    def read(cls, fields: Mapping[str, object]) -> ProcessRecord | None:
        """Return the record among the fields of a JSON object; None if it is missing or damaged."""
        pid, began, since = integer(fields, "pid"), integer(fields, "began"), number(fields, "since_unix_s")
        return None if pid is None or began is None else cls(pid, began, text(fields, "boot"), since or 0.0)

    def is_there(self) -> bool:
        """Return whether the process has not ended; False if it is one of another boot or host."""
        return self.boot == boot_id() and is_same(self.pid, self.began)

    def wait_gone(self, bound_s: float) -> bool:
        """Wait until the process has ended; False if it is still there after ``bound_s``."""
        return self.boot != boot_id() or wait_gone(self.pid, self.began, bound_s)


def inside(inodes: Collection[int]) -> list[tuple[int, int]]:
    """Return (pid, start time) of all processes whose network namespace is one of ``inodes``.

    If a pid is recycled meanwhile, the new process has another start time, or is inside too.
    """
    processes: list[tuple[int, int]] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                netns = entry / "ns" / "net"
                if netns.stat().st_ino in inodes:
                    began = started(int(entry.name))
                    if began and netns.stat().st_ino in inodes:
                        processes.append((int(entry.name), began))
    return processes


def environment(pid: int) -> list[bytes]:
    """Return the variables that a process began with, as ``NAME=value`` (proc(5)). Raises OSError."""
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def is_first(pid: int) -> bool:
    """Return whether ``pid`` is the init process of a child pid namespace (a container's): all others end with it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def end(pid: int, began: int, *, grace_s: float = 0.0, bound_s: float = 5.0) -> bool:
    """End one process: with ``grace_s`` SIGTERM first, then SIGKILL. Return whether it has ended.

    ``began`` guards against a recycled pid. Where it is unknown (0), no process is signalled: that one had ended when
    its start time was to be read, or cannot be told from another.
    """
    return not end_all([(pid, began)], grace_s=grace_s, bound_s=bound_s)


def end_all(targets: Iterable[tuple[int, int]], *, grace_s: float = 0.0, bound_s: float = 5.0) -> list[int]:
    """End all processes (pid, began); return the pids of those that did not end within ``bound_s``."""
    files = {handle: pid for pid, began in targets if (handle := _opened(pid, began)) is not None}
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


def send(pid: int, began: int, number: signal.Signals) -> None:
    """Send a signal to the process that started at ``began``; to none if it has ended or ``began`` is unknown (0)."""
    if (handle := _opened(pid, began)) is not None:
        _signal({handle: pid}, number)
        os.close(handle)


def wait_gone(pid: int, began: int, bound_s: float) -> bool:
    """Wait until a process, which need not be a child, has ended; False if it still runs after ``bound_s``."""
    if (handle := _opened(pid, began)) is None:
        return True
    files = {handle: pid}
    _wait(files, bound_s)
    for left in files:
        os.close(left)
    return not files


def kill_session(leader: int) -> None:
    """Kill every process of the session ``leader``, whatever its process group, and those they fork meanwhile."""
    for _ in range(_ROUNDS):
        if not (files := _of_session(leader)):
            return
        _signal(files, signal.SIGKILL)
        _wait(files, _ROUND_S)
        for left in files:
            os.close(left)


def _of_session(leader: int) -> dict[int, int]:
    """Return pidfds of the session's processes that have not ended."""
    pids_by_handle = {}
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            # Opened before the session is read, so that it cannot refer to another process afterwards.
            if _has_session(pid, leader):
                pids_by_handle[handle] = pid
            else:
                os.close(handle)
    return pids_by_handle


def _has_session(pid: int, leader: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX" and int(fields[3]) == leader


def _opened(pid: int, began: int) -> int | None:
    """Return a pidfd of the process that started at ``began``; None if it has ended, or ``began`` is unknown."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return None
    # Opened before the start time is read, so that it cannot refer to another process afterwards.
    if is_same(pid, began):
        return handle
    os.close(handle)
    return None


def _signal(files: dict[int, int], number: signal.Signals) -> None:
    for handle in files:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(handle, number)


def _wait(files: dict[int, int], bound_s: float) -> None:
    """Wait until all have ended or the time is over; ended ones are removed from ``files``."""
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


_ROUNDS, _ROUND_S = 10, 0.2
"""Bounded, since a process in an uninterruptible sleep ends later than it is killed."""

MOST_FILES = 65_536
"""Enough for the largest lab. Bounded because some child programs iterate over all possible descriptors."""


def allow_many_files() -> None:
    """Raise the soft limit of open files to the hard limit, up to :data:`MOST_FILES`.

    Each node and link takes several, and the soft limit of a login session is 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time (user + system) of a process in seconds; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
