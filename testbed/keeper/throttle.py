"""CPU limits of a lab's ranks, by control groups (``host/linux/cgroup.py``).

On a node that is a namespace the rank's process is moved into a group ``testbed.<lab>.<node>``, which is removed with
the limit. A container has docker's group, whose limit is set and removed. The lab's containers are created without a
limit; one that another program has set since is refused rather than overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from testbed.errors import HostError
from testbed.host.linux import cgroup
from testbed.host.linux.cgroup import CpuGroup

__all__ = ["Throttle"]


class Throttle:
    """Sets and removes limits, without state in memory: every limit can be removed with the journal alone.

    ``path`` returns the handle of a node's network namespace; a container's is a symbolic link to that of its first
    process.
    """

    def __init__(self, lab: str, path: Callable[[str], Path]) -> None:
        self._lab, self._path = lab, path

    def set(self, node: str, cpu: float | None, pid: int = 0) -> None:
        """Limit the rank on ``node``, whose process is ``pid`` (0: none at present), to ``cpu`` CPUs; None: no limit.

        Raises HostError.
        """
        where = cgroup.hierarchy()
        if cpu is None and self._is_container(node) and not self._first(node).exists():
            return  # the container is gone, and its group with it
        if (group := self._of_container(node)) is not None:
            foreign = group.limited and not group.is_ours
            if foreign and cpu is not None:
                raise HostError(
                    f"the container of {node} already has a CPU limit that is not the testbed's ({group.limited})"
                )
            if not foreign:
                group.limit(cpu)
        elif cpu is None:
            self._group(node).remove(where.of() or where.group("."))
        else:
            self._group(node).make()
            self._group(node).limit(cpu)
            self.join(node, pid)

    def join(self, node: str, pid: int) -> None:
        """Apply the limit of a node to the new process of its rank. Raises HostError."""
        if pid and not self._is_container(node):
            self._group(node).add(pid)

    def sweep(self) -> None:
        """Remove every group of this lab, listed in a journal or not. Raises HostError."""
        where = cgroup.hierarchy()
        for path in where.root.glob(f"testbed.{self._lab}.*"):
            CpuGroup(path, where.unified).remove(where.of() or where.group("."))

    def _group(self, node: str) -> CpuGroup:
        # Dots cannot occur in names of labs and nodes: two labs never share a group.
        return cgroup.hierarchy().group(f"testbed.{self._lab}.{node}")

    def _is_container(self, node: str) -> bool:
        return self._path(node).is_symlink()

    def _of_container(self, node: str) -> CpuGroup | None:
        """Return the group of a node's container; None for a namespace. Raises HostError."""
        if not self._is_container(node):
            return None
        if (group := cgroup.hierarchy().of(self._first(node).name)) is None:
            raise HostError(f"cannot find the control group of the container of {node} on this host")
        return group

    def _first(self, node: str) -> Path:
        """Return ``/proc/PID`` of a container's first process."""
        return Path(*self._path(node).readlink().parts[:3])
