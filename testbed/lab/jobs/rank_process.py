"""The process of a rank as its job sees it: a child of this process, or one that an mpiexec started."""

from __future__ import annotations

from typing import IO, Protocol

__all__ = ["RankProcess"]


class RankProcess(Protocol):
    """As subprocess.Popen, which has all of it. ``pid`` leads a process group."""

    @property
    def pid(self) -> int: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...
