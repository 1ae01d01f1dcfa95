"""Watch carrier changes in many network namespaces, with the time of each.

Netlink has no kernel timestamps, so the listening thread does nothing else, which would add to the times. A carrier
that goes down and up before the kernel reports it gives one message or none. But each message has the kernel's count of
changes (IFLA_CARRIER_CHANGES, linux/if_link.h), and a jump in that count proves a missed change.
"""

from __future__ import annotations

import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.host.linux import namespace
from testbed.host.linux.netlink import IFF_LOWER_UP
from testbed.host.linux.rtnetlink import NLM_F_REQUEST, RTM_NEWLINK

RTMGRP_LINK = 1
RTM_GETLINK, NLM_F_DUMP = 18, 0x300
IFLA_IFNAME, IFLA_CARRIER_CHANGES = 3, 35
BUFFER_BYTES = 4 << 20
"""Receive buffer for a burst of events in a large lab; an overflow is detected, and the state is then requested."""


@dataclass(frozen=True)
class CarrierState:
    """Whether an interface has a carrier (``lit``), and how often that changed."""

    lit: bool = True
    changes: int = 0


@dataclass(frozen=True)
class Change:
    """A carrier change of one interface.

    Attributes:
        t: time of receipt (CLOCK_MONOTONIC).
        place: name of the namespace.
        interface: name of the interface.
        lit: whether it has a carrier now.
        changes: number of changes since the watch began, by the kernel's count.
        missed: number of changes since the last message that no message reported.
        turned: False if all changes were missed and the carrier is as before.
    """

    t: float
    place: str
    interface: str
    lit: bool
    changes: int
    missed: int = 0
    turned: bool = True


Heard = Callable[[Change], None]


class CarrierWatch:
    """Watches interfaces, assumed to have a carrier at the start, until :meth:`stop`.

    Args:
        places: handle of each namespace, by the name passed to ``heard``.
        interfaces: names of the interfaces to watch, by namespace.
        heard: called with each change from the listening thread; must return quickly.
        prepare: called first in the listening thread.
    """

    def __init__(
        self,
        places: Mapping[str, Path],
        interfaces: Mapping[str, set[str]],
        heard: Heard,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._heard, self._prepare = heard, prepare
        self._states = {(place, name): CarrierState() for place in places for name in interfaces[place]}
        self._counted: dict[tuple[str, str], int] = {}
        """The kernel's counts when the watch began."""
        self._stop = threading.Event()
        self._selector = selectors.DefaultSelector()
        for place, path in places.items():
            source = namespace.inside(path, _listen)
            _ask(source)  # the first answers have the current state and the counts so far
            self._selector.register(source, selectors.EVENT_READ, place)
        self._thread = threading.Thread(target=self._run, name="carriers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def dark(self) -> frozenset[str]:
        """Return the names of watched interfaces without a carrier in at least one of their namespaces."""
        return frozenset(name for (_, name), state in list(self._states.items()) if not state.lit)

    def states(self) -> dict[tuple[str, str], CarrierState]:
        """Return all states by (place, interface)."""
        return dict(self._states)

    def _run(self) -> None:
        self._prepare()
        while not self._stop.is_set():
            for key, _ in self._selector.select(timeout=0.5):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                try:
                    data = source.recv(1 << 17)
                except OSError:  # ENOBUFS: the buffer overflowed, and messages were lost
                    _ask(source)
                    continue
                t = time.monotonic()
                for name, lit, count in parse(data):
                    self._note(t, key.data, name, lit, count)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _note(self, t: float, place: str, name: str, lit: bool, count: int) -> None:
        before = self._states.get((place, name))
        if before is None:
            return
        turned = before.lit != lit
        counted = count - self._counted.setdefault((place, name), count - turned)
        # A carrier in the same state as before has changed an even number of times.
        new = max(counted - before.changes, turned)
        if new % 2 != turned:
            new -= 1  # this change will be reported by the next message
        if new:
            state = self._states[place, name] = CarrierState(lit, before.changes + new)
            self._heard(Change(t, place, name, lit, state.changes, new - turned, turned))


def _listen() -> socket.socket:
    """Return a socket that receives every interface change in the thread's namespace (rtnetlink(7))."""
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    listener.bind((0, RTMGRP_LINK))
    return listener


def _ask(source: socket.socket) -> None:
    """Request the state of all interfaces; the answers arrive among the events, in order of time."""
    request = struct.pack("=IHHII", 32, RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, 0, 0) + bytes(16)
    try:
        source.send(request)
    except OSError:
        return  # a previous request is still being answered, or the namespace is being removed with its lab


def parse(data: bytes) -> Iterator[tuple[str, bool, int]]:
    """Yield (interface, has a carrier, number of changes) of each RTM_NEWLINK in a datagram; skips truncated ones."""
    while len(data) >= 32:
        length, kind = struct.unpack_from("=IH", data)
        if length < 32:
            return
        if kind == RTM_NEWLINK:
            flags = struct.unpack_from("=I", data, 16 + 8)[0]
            attributes = _attributes(data[32:length], {IFLA_IFNAME, IFLA_CARRIER_CHANGES})
            if name := attributes.get(IFLA_IFNAME, b"").rstrip(b"\0"):
                changes = int.from_bytes(attributes.get(IFLA_CARRIER_CHANGES, b""), sys.byteorder)
                yield name.decode(errors="replace"), bool(flags & IFF_LOWER_UP), changes
        data = data[(length + 3) & ~3 :]


def _attributes(data: bytes, wanted: set[int]) -> dict[int, bytes]:
    values_by_type: dict[int, bytes] = {}
    at = 0
    while len(values_by_type) < len(wanted) and at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        if kind in wanted:
            values_by_type[kind] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    return values_by_type
