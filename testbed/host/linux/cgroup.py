"""Control groups that limit the CPU time of processes (cgroups(7); Documentation/admin-guide/cgroup-v2.rst).

The controller ``cpu`` is in cgroup v2's single hierarchy, or in a hierarchy of its own in v1. Groups are created
directly below the root of that hierarchy: v2 enables controllers only for groups whose parent has no processes, and
only the root is exempt from that rule.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from testbed.errors import HostError
from testbed.host.linux import invocation

__all__ = ["PERIOD_US", "CpuGroup", "Hierarchy", "OomWatch", "hierarchy"]

PERIOD_US: Final = 20_000
"""A group uses up its quota in each period and is then throttled. The period is short compared with a training step, to
spread the throttling evenly; the kernel's default is 100 ms."""

_KERNELS_PERIOD_US: Final = 100_000
_LEAST_QUOTA_US: Final = 1000
_EMPTY_BOUND_S: Final = 5.0


@dataclass(frozen=True)
class CpuGroup:
    """One group: its folder, and whether it belongs to cgroup v2."""

    path: Path
    unified: bool

    def limit(self, cpu: float | None) -> None:
        """Limit all processes of the group together to ``cpu`` CPUs (0.3: 30 % of one); None: no limit.

        Raises HostError.
        """
        quota = None if cpu is None else max(_LEAST_QUOTA_US, round(cpu * PERIOD_US))
        if self.unified:
            self._write("cpu.max", f"max {_KERNELS_PERIOD_US}" if quota is None else f"{quota} {PERIOD_US}")
            return
        # A quota must fit the period at every moment, so it is removed while the period changes.
        self._write("cpu.cfs_quota_us", "-1")
        self._write("cpu.cfs_period_us", str(_KERNELS_PERIOD_US if quota is None else PERIOD_US))
        if quota is not None:
            self._write("cpu.cfs_quota_us", str(quota))

    @property
    def limited(self) -> str:
        """The current limit in the kernel's notation; empty for none. Raises HostError."""
        if self.unified:
            limit = self._read("cpu.max")
            return "" if limit == f"max {_KERNELS_PERIOD_US}" else f"cpu.max {limit}"
        quota, period = self._read("cpu.cfs_quota_us"), self._read("cpu.cfs_period_us")
        return "" if (quota, period) == ("-1", str(_KERNELS_PERIOD_US)) else f"{quota} us in each {period} us"

    @property
    def is_ours(self) -> bool:
        """Whether :meth:`limit` set its limit, recognised by the unusual period. Raises HostError."""
        period = self._read("cpu.max").split()[1] if self.unified else self._read("cpu.cfs_period_us")
        return period == str(PERIOD_US)

    def make(self) -> None:
        """Create the group if it does not exist. Raises HostError."""
        with self._translated("make"):
            self.path.mkdir(exist_ok=True)

    def add(self, pid: int) -> None:
        """Add a process with all its threads; one that has ended is ignored. Raises HostError."""
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            if error.errno != errno.ESRCH:
                raise HostError(f"cannot put process {pid} into {self.path}: {error.strerror}") from error

    def remove(self, home: CpuGroup) -> None:
        """Move its processes to ``home`` and remove the group, if it exists. Raises HostError."""
        until = time.monotonic() + _EMPTY_BOUND_S
        while self.path.exists():
            with self._translated("empty"), contextlib.suppress(FileNotFoundError):
                for pid in (self.path / "cgroup.procs").read_text().split():
                    home.add(int(pid))
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:  # EBUSY: a process was forked meanwhile, or is still exiting
                if time.monotonic() > until:
                    raise HostError(f"cannot remove the control group {self.path}: {error.strerror}") from error
                time.sleep(0.01)

    def _write(self, file: str, value: str) -> None:
        with self._translated(f"write {value!r} to {file} of"):
            (self.path / file).write_text(value)

    def _read(self, file: str) -> str:
        with self._translated(f"read {file} of"):
            return (self.path / file).read_text().strip()

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HostError(f"cannot {doing} the control group {self.path}: {error.strerror}") from error


@dataclass(frozen=True)
class Hierarchy:
    """The hierarchy with a ``controller``: ``root`` is its mount point, ``within`` the group mounted there."""

    root: Path
    unified: bool
    within: str = "/"
    controller: str = "cpu"

    def group(self, name: str) -> CpuGroup:
        return CpuGroup(self.root / name, self.unified)

    def of(self, pid: int | str = "self") -> CpuGroup | None:
        """Return the group of a process; None if it has ended, or its group is not visible in this mount."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return None
        for line in lines:
            number, controllers, path = line.split(":", 2)
            if (number == "0") if self.unified else (self.controller in controllers.split(",")):
                below = os.path.relpath(path, self.within)
                return None if below.startswith("..") else CpuGroup(self.root / below, self.unified)
        return None


def hierarchy(read: Callable[[str], str] = lambda path: Path(path).read_text()) -> Hierarchy:
    """Return the hierarchy with the controller ``cpu``. Raises HostError if there is no writable one.

    ``read`` returns the content of a file: /proc/self/mountinfo (proc_pid_mountinfo(5)), or one of the hierarchy.
    """
    why = "no control groups are mounted (mount -t cgroup2 none /sys/fs/cgroup)"
    for line in read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        candidate = Hierarchy(Path(fields[4]), kind == "cgroup2", fields[3])
        if kind == "cgroup2":
            try:
                there, given = (
                    set(read(f"{candidate.root}/cgroup.{file_name}").split())
                    for file_name in ("controllers", "subtree_control")
                )
            except OSError as error:
                why = f"cannot read {candidate.root}: {error.strerror}"
                continue
            if "cpu" not in there:
                why = f"no cpu controller in {candidate.root}: this kernel has none, or it belongs to cgroup v1"
                continue
            if "cpu" not in given:
                enable = invocation.as_root(f"echo +cpu > {candidate.root}/cgroup.subtree_control")
                raise HostError(f"the cpu controller is not enabled below {candidate.root}; enable it with: {enable}")
        elif kind != "cgroup" or "cpu" not in options.split(","):
            continue
        if "ro" in fields[5].split(","):
            why = f"{candidate.root} is mounted read-only, as in a container without privileges"
            continue
        return candidate
    raise HostError(why)


def _oom_counter(process: Path = Path("/proc/self")) -> Path | None:
    """Return the file in which the memory controller counts the processes of a group that were killed for want of
    memory (memory.events of cgroup v2; memory.oom_control of v1); None if there is none.

    ``process`` is ``/proc/PID``. The group may be removed together with its last process, so call it before the end.
    """
    try:
        mounted = _memory_hierarchies()
    except OSError:
        return None
    for where in mounted:
        if (group := where.of(process.name)) is not None:
            file = group.path / ("memory.events" if where.unified else "memory.oom_control")
            if file.exists():
                return file
    return None


@functools.cache
def _memory_hierarchies() -> tuple[Hierarchy, ...]:
    """Return the mounted hierarchies that may have the controller ``memory``. Read once: a large lab has thousands of
    mounts, and each of its ranks is watched. Raises OSError."""
    hierarchies = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            hierarchies.append(Hierarchy(Path(fields[4]), kind == "cgroup2", fields[3], "memory"))
    return tuple(hierarchies)


def _oom_kills(counter: Path | None) -> int:
    """Return how many processes of a group were killed for want of memory; 0 if it is not counted."""
    if counter is not None:
        with contextlib.suppress(OSError, ValueError):
            for line in counter.read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
    return 0


class OomWatch:
    """Tells whether the kernel killed a process for want of memory, by the counter of its control group."""

    def __init__(self) -> None:
        self._counters: dict[int, Path | None] = {}
        self._known: dict[Path, int] = {}

    def watch(self, key: int, process: Path) -> None:
        """Watch the group of a process, ``/proc/PID``, under a key of the caller's; call it before the process ends."""
        counter = self._counters[key] = _oom_counter(process)
        if counter is not None:
            self._known.setdefault(counter, _oom_kills(counter))

    def renew(self) -> None:
        """Forget the kills so far: whatever shares a group with the watched processes may have been their cause."""
        for counter in self._known:
            self._known[counter] = _oom_kills(counter)

    def killed(self, key: int) -> bool:
        """Whether the group of ``key`` lost a process since :meth:`watch` or :meth:`renew` that no earlier call has
        accounted for."""
        counter = self._counters.get(key)
        if counter is None or _oom_kills(counter) <= self._known[counter]:
            return False
        self._known[counter] += 1
        return True
