"""Hearing of carriers lost and regained, in many network namespaces, with the time of each.

Netlink carries no kernel timestamp, so the thread that listens does nothing else: it would be in the times.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import HostError
from testbed.host import namespace, netlink
from testbed.host.netlink import IFF_LOWER_UP
from testbed.host.rtnetlink import RTM_NEWLINK

RTMGRP_LINK = 1
IFLA_IFNAME = 3
BUFFER_BYTES = 4 << 20
"""Room for a storm of events of a large lab; what does not fit is noticed, and the state is then asked for."""

Heard = Callable[[float, str, str, bool], None]
"""(CLOCK_MONOTONIC of receipt, namespace, interface, has a carrier): one change."""


@dataclass(frozen=True)
class CarrierState:
    """Whether an interface has a carrier, and how often that changed."""

    lit: bool = True
    changes: int = 0


class CarrierWatch:
    """Watches interfaces, all lit when it begins, until :meth:`stop`.

    Args:
        places: handle of each namespace, by the name that ``heard`` gets.
        interfaces: names of the interfaces to be watched, by namespace.
        heard: called from the listening thread; must be quick.
    """

    def __init__(self, places: Mapping[str, Path], interfaces: Mapping[str, set[str]], heard: Heard) -> None:
        self._places, self._heard = places, heard
        self._states = {(place, name): CarrierState() for place in places for name in interfaces[place]}
        self._stop = threading.Event()
        self._selector = selectors.DefaultSelector()
        for place, path in places.items():
            self._selector.register(namespace.inside(path, _listen), selectors.EVENT_READ, place)
        self._thread = threading.Thread(target=self._run, name="carriers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def dark(self) -> frozenset[str]:
        """Names of watched interfaces without a carrier at one of their places at least."""
        return frozenset(name for (_, name), state in list(self._states.items()) if not state.lit)

    def states(self) -> dict[tuple[str, str], CarrierState]:
        """All by (place, interface)."""
        return dict(self._states)

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _ in self._selector.select(timeout=0.5):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                try:
                    data = source.recv(1 << 17)
                except OSError:  # ENOBUFS: more than the buffer holds came at once, and some of it is lost
                    self._ask(key.data)
                    continue
                t = time.monotonic()
                for name, lit in parse(data):
                    self._note(t, key.data, name, lit)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _note(self, t: float, place: str, name: str, lit: bool) -> None:
        before = self._states.get((place, name))
        if before is not None and before.lit != lit:
            self._states[place, name] = CarrierState(lit, before.changes + 1)
            self._heard(t, place, name, lit)

    def _ask(self, place: str) -> None:
        try:
            with netlink.Namespace(self._places[place]) as space:
                carriers, t = space.carriers(), time.monotonic()
        except HostError:
            return  # the namespace goes: so does the lab
        for name, lit in carriers.items():
            self._note(t, place, name, lit)


def _listen() -> socket.socket:
    """A socket in the thread's namespace that hears of every change of an interface there (rtnetlink(7))."""
    found = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    found.bind((0, RTMGRP_LINK))
    return found


def parse(data: bytes) -> Iterator[tuple[str, bool]]:
    """(interface, has a carrier) of each RTM_NEWLINK in one datagram; what is cut short is left out."""
    while len(data) >= 32:
        length, kind = struct.unpack_from("=IH", data)
        if length < 32:
            return
        if kind == RTM_NEWLINK:
            flags = struct.unpack_from("=I", data, 16 + 8)[0]
            name = _attribute(data[32:length], IFLA_IFNAME)
            if name:
                yield name.rstrip(b"\0").decode(errors="replace"), bool(flags & IFF_LOWER_UP)
        data = data[(length + 3) & ~3 :]


def _attribute(data: bytes, wanted: int) -> bytes:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        if length < 4:
            break
        if kind == wanted:
            return data[4:length]
        data = data[(length + 3) & ~3 :]
    return b""
