"""Counters of the interfaces of a network namespace, cheap enough to be read each second in dozens of namespaces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import HostError
from testbed.host.linux import namespace

__all__ = ["InterfaceCounters", "Traffic"]

_COUNTERS = "/proc/thread-self/net/dev"


@dataclass(frozen=True)
class Traffic:
    """Bytes of an interface since it exists, Ethernet headers included, as the kernel counts them."""

    sent: int
    received: int


class InterfaceCounters:
    """The interfaces of one namespace. Close it: until then it keeps the namespace alive.

    /proc/thread-self/net/dev (proc(5)) is of the namespace of whoever opens it, and stays so: opened once by a thread
    inside, it is read again by anybody, without another thread and setns(2) each time.
    """

    def __init__(self, path: Path) -> None:
        """Raises HostError when there is no such namespace."""
        try:
            self._file = namespace.inside(path, lambda: os.open(_COUNTERS, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise HostError(f"cannot read the counters of {path.name}: {error.strerror}") from error

    def read(self) -> dict[str, Traffic]:
        """By interface, the loopback left out."""
        os.lseek(self._file, 0, os.SEEK_SET)
        text = b""
        while chunk := os.read(self._file, 1 << 16):  # the kernel gives a page at a time
            text += chunk
        found = {}
        for line in text.decode().splitlines()[2:]:
            name, _, rest = line.partition(":")
            columns = rest.split()
            found[name.strip()] = Traffic(sent=int(columns[8]), received=int(columns[0]))
        found.pop("lo", None)
        return found

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
