"""Interface counters of a network namespace, cheap enough to read every second in dozens of namespaces."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import HostError
from testbed.host.linux import namespace

__all__ = ["InterfaceCounters", "Traffic", "tcp_timeouts", "traffic"]

_COUNTERS = "/proc/thread-self/net/dev"
_TCP = Path("/proc/thread-self/net/netstat")


@dataclass(frozen=True)
class Traffic:
    """The kernel's counters of an interface since its creation; bytes include Ethernet headers."""

    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_drops: int
    """Packets dropped on receipt."""


def traffic() -> dict[str, Traffic]:
    """Return the counters by interface in the calling thread's network namespace, without the loopback."""
    return _parsed(Path(_COUNTERS).read_text())


def tcp_timeouts() -> int:
    """Return TCP's retransmission timeouts in the calling thread's network namespace since its creation.

    Raises:
        HostError: the kernel does not count them.
    """
    names: list[str] = []
    for line in _TCP.read_text().splitlines():
        group, *columns = line.split()
        if group == "TcpExt:" and not names:
            names = columns
        elif group == "TcpExt:":
            return int(dict(zip(names, columns, strict=True))["TCPTimeouts"])
    raise HostError(f"{_TCP}: expected a line TcpExt")


def _parsed(text: str) -> dict[str, Traffic]:
    """Parse /proc/net/dev: after two header lines, eight columns received and eight sent, each bytes, packets, errors,
    drops and more (net/core/net-procfs.c, dev_seq_printf_stats)."""
    by_interface = {}
    for line in text.splitlines()[2:]:
        name, _, columns_text = line.partition(":")
        columns = columns_text.split()
        by_interface[name.strip()] = Traffic(
            sent_bytes=int(columns[8]),
            received_bytes=int(columns[0]),
            sent_packets=int(columns[9]),
            received_drops=int(columns[3]),
        )
    by_interface.pop("lo", None)
    return by_interface


class InterfaceCounters:
    """The interface counters of one namespace. Keeps the namespace alive until closed.

    /proc/thread-self/net/dev (proc(5)) belongs to the namespace of the thread that opens it. Opened once by a thread
    inside, the descriptor can be read from any thread, without another setns(2).
    """

    def __init__(self, path: Path) -> None:
        """Raises HostError if there is no such namespace."""
        try:
            self._file = namespace.inside(path, lambda: os.open(_COUNTERS, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise HostError(f"cannot read the counters of {path.name}: {error.strerror}") from error

    def read(self) -> dict[str, Traffic]:
        """Return the counters by interface, without the loopback."""
        os.lseek(self._file, 0, os.SEEK_SET)
        text = b""
        while chunk := os.read(self._file, 1 << 16):  # the kernel returns a page at a time
            text += chunk
        return _parsed(text.decode())

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
