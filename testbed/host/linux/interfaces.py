"""Counters of the interfaces of a network namespace, cheap enough to be read each second in dozens of namespaces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import HostError
from testbed.host.linux import namespace

__all__ = ["InterfaceCounters", "Traffic", "traffic"]

_COUNTERS = "/proc/thread-self/net/dev"


@dataclass(frozen=True)
class Traffic:
    """Of an interface since it exists, as the kernel counts it; bytes with their Ethernet headers."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_drops: int
    """Packets that came and were dropped."""


def traffic() -> dict[str, Traffic]:
    """By interface, in the network namespace of the calling thread; the loopback left out."""
    return _parsed(Path(_COUNTERS).read_text())


def _parsed(text: str) -> dict[str, Traffic]:
    """Below two lines of titles eight columns received and eight sent, each bytes, packets, errors, drops and more
    (net/core/net-procfs.c, dev_seq_printf_stats)."""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.partition(":")
        columns = rest.split()
        found[name.strip()] = Traffic(
            sent_bytes=int(columns[8]),
            received_bytes=int(columns[0]),
            sent_packets=int(columns[9]),
            received_drops=int(columns[3]),
        )
    found.pop("lo", None)
    return found


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
        return _parsed(text.decode())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
