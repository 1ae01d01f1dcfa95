"""How much of a CPU the ranks of a lab may use, by control groups (``host/linux/cgroup.py``).

Of a node that is a namespace its rank's process is put into a group of ours, called ``testbed.<lab>.<node>``, which is
removed again. A container has a group of docker's: its limit is set, and taken off. The lab's containers are made
without one; where somebody has given them one since, we refuse rather than lose it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.errors import HostError
from testbed.host.linux import cgroup
from testbed.host.linux.cgroup import CpuGroup

__all__ = ["Throttle"]


class Throttle:
    """``path`` gives the handle of a node's network namespace; a container's is a link to its first process's.

    Keeps nothing in memory: whoever finds only a lab's journal can take every limit off.
    """

    def __init__(self, lab: str, path: Callable[[str], Path]) -> None:
        self._lab, self._path = lab, path

    def set(self, node: str, cpu: float | None, pid: int = 0) -> None:
        """At most ``cpu`` CPUs for the rank on ``node``, whose process is ``pid`` (0: it has none now); None: no limit.

        Raises HostError.
        """
        where = cgroup.hierarchy()
        if cpu is None and self._is_container(node) and not self._first(node).exists():
            return  # its group went with it
        if (theirs := self._of_container(node)) is not None:
            somebodys = theirs.limited and not theirs.is_ours
            if somebodys and cpu is not None:
                raise HostError(f"the container of {node} has a CPU limit of somebody's already ({theirs.limited})")
            if not somebodys:
                theirs.limit(cpu)
        elif cpu is None:
            self._group(node).remove(where.of() or where.group("."))
        else:
            self._group(node).make()
            self._group(node).limit(cpu)
            self.join(node, pid)

    def join(self, node: str, pid: int) -> None:
        """The rank of a node that is limited has another process now. Raises HostError."""
        if pid and not self._is_container(node):
            self._group(node).add(pid)

    def sweep(self) -> None:
        """Remove every group of this lab, whether a journal tells of it or not. Raises HostError."""
        where = cgroup.hierarchy()
        for path in where.root.glob(f"testbed.{self._lab}.*"):
            CpuGroup(path, where.unified).remove(where.of() or where.group("."))

    def _group(self, node: str) -> CpuGroup:
        # Dots cannot occur in names of labs and nodes: two labs never share a group.
        return cgroup.hierarchy().group(f"testbed.{self._lab}.{node}")

    def _is_container(self, node: str) -> bool:
        return self._path(node).is_symlink()

    def _of_container(self, node: str) -> CpuGroup | None:
        """The group of a node that is a container."""
        if not self._is_container(node):
            return None
        if (found := cgroup.hierarchy().of(self._first(node).name)) is None:
            raise HostError(f"the control group of the container of {node} is not to be seen from here")
        return found

    def _first(self, node: str) -> Path:
        """Of a container, ``/proc/PID`` of its first process."""
        return Path(*self._path(node).readlink().parts[:3])
