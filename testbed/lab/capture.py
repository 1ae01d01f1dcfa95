"""Capture the packets of a fiber, at the gateway that they leave or at the one that they reach, into a pcapng file."""

from __future__ import annotations

import bisect
import contextlib
import select
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from testbed.core import pcapng
from testbed.core.topology.direction import link_of
from testbed.core.topology.model import Topology
from testbed.errors import LabError, TestbedError, UserError
from testbed.host import lab_nodes
from testbed.host.files.capture_file import CaptureFile, ReaderEnded
from testbed.host.lab_folder import LabFolder
from testbed.host.measure.packet_ring import RETIRED_MS, PacketRing
from testbed.keeper import client
from testbed.lab import fiber_status
from testbed.version import __version__

__all__ = ["LONGEST_SNAPLEN", "MOST_BYTES", "Capture", "Captured", "Ending", "capture"]

MOST_BYTES: Final = 1_000_000_000
"""Size of a file unless another is asked for: 10 s of a fiber at 800 Mb/s."""

LEAST_BYTES: Final = 4096
LONGEST_SNAPLEN: Final = 262_144
"""As tcpdump's; larger than any packet."""
_SHORTEST_SNAPLEN: Final = 14
_ORDERED_WITHIN_NS: Final = 4 * RETIRED_MS * 1_000_000
"""Packets of several directions are written in the order of time: each waits this long for earlier ones."""
_LOOK_S: Final = 0.2
_AT_ONCE: Final = 1024
"""Packets per write(2)."""
_STATISTICS_BYTES: Final = 80
"""More than the counters of a direction take at the end of the file."""
_ETHERNET_BYTES: Final = 14 + 4
"""Header and VLAN tag: a longer packet than the MTU and this is none that a wire carries."""

Ending = str
"""Why a capture ended: ``stopped``, ``time``, ``size`` (the file is as large as it may be), ``reader`` (of the output
is gone), ``disk`` or ``lab``; empty while it runs."""


@dataclass
class Captured:
    """What was captured of one direction: packets in the file, their bytes from the Ethernet header on as the
    interface had them, and packets that the kernel dropped because this process was too busy to take them.

    ``super_packets`` are larger than a wire carries: hosts hand over many segments of one flow at once (GSO). The
    ``largest_bytes`` one is that long. ``unchecked`` ones have no checksum yet, which hosts leave to the interface.
    """

    direction: str
    gateway: str
    interface: str
    packets: int = 0
    bytes: int = 0
    dropped: int = 0
    super_packets: int = 0
    largest_bytes: int = 0
    unchecked: int = 0


class Capture:
    """A capture in progress; as a context manager it ends with the block. Made by :func:`capture`.

    Packets are read by a thread of its own. What it has counted so far can be read at any time.
    """

    def __init__(
        self,
        lab: LabFolder,
        topology: Topology,
        directions: Sequence[str],
        target: Path | int,
        *,
        before: bool,
        for_s: float | None,
        most_bytes: int | None,
        snaplen: int,
    ) -> None:
        self.file = target if isinstance(target, Path) else None
        self.before, self.size = before, 0
        self.found = tuple(_place(topology, direction, before) for direction in directions)
        self.ending: Ending = ""
        self._lab, self._most_bytes, self._snaplen = lab, most_bytes, snaplen
        self._largest = [topology.link(link_of(direction)).mtu + _ETHERNET_BYTES for direction in directions]
        self._failure: TestbedError | None = None
        self._stop, self._over = threading.Event(), threading.Event()
        self._pending: list[_Taken] = []
        self._undo = contextlib.ExitStack()
        try:
            self._open(target)
        except BaseException:
            self._undo.close()
            raise
        self._until = None if for_s is None else time.monotonic() + for_s
        threading.Thread(target=self._run, name="capture", daemon=True).start()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if kind is None:
            self.stop()
        else:
            with contextlib.suppress(TestbedError):
                self.stop()

    @property
    def packets(self) -> int:
        return sum(fiber.packets for fiber in self.found)

    @property
    def dropped(self) -> int:
        """Packets that this process was too busy to take; they are missing in the file."""
        return sum(fiber.dropped for fiber in self.found)

    @property
    def super_packets(self) -> int:
        return sum(fiber.super_packets for fiber in self.found)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether the capture has ended, after ``timeout_s`` seconds at most.

        Raises StorageError (what was written before is kept, and is a whole file), LabError: the lab is gone.
        """
        over = self._over.wait(timeout_s)
        if over and self._failure is not None:
            raise self._failure
        return over

    def stop(self) -> None:
        """End the capture, and return when the file is complete. Raises as :meth:`wait`; does nothing the next time."""
        self._stop.set()
        self.wait()

    # ---- the thread

    def _open(self, target: Path | int) -> None:
        self._connection = self._undo.enter_context(client.Connection(self._lab))
        self._connection.keeper.hello()  # a lab without a keeper is not captured: what it applies is unknown
        self._rings: list[PacketRing] = []
        for fiber in self.found:
            netns = lab_nodes.netns(self._lab, fiber.gateway)
            ring = PacketRing(netns, fiber.interface, outgoing=self.before, snaplen=self._snaplen)
            self._rings.append(self._undo.enter_context(contextlib.closing(ring)))
        self._began_ns = time.time_ns()
        self._out = self._undo.enter_context(contextlib.closing(CaptureFile(target)))
        self._out.write([pcapng.header(f"testbed {__version__}", self._comment(), self._interfaces())])
        self._out.write(())  # raises what the disk refused
        self._connection.keeper.begin_capture(directions=[fiber.direction for fiber in self.found], before=self.before)

    def _comment(self) -> str:
        apart_s = time.time() - time.monotonic()
        return (
            f"lab {self._lab.name}, packets {'before the fiber' if self.before else 'after the fiber'}. Packets larger"
            " than the MTU are super-packets (GSO): segments that the host hands over at once. Checksums may be"
            " incomplete, as hosts on one machine leave them out (checksum offload). The testbed's records have"
            f" CLOCK_MONOTONIC: {apart_s:.6f} s less than the times here."
        )

    def _interfaces(self) -> tuple[pcapng.Interface, ...]:
        way = "sent into the fiber" if self.before else "received from the fiber"
        return tuple(
            pcapng.Interface(f"{fiber.gateway}/{fiber.interface}", f"{fiber.direction}, {way}", snaplen=self._snaplen)
            for fiber in self.found
        )

    def _run(self) -> None:
        try:
            ending = self._take()
            if ending in ("stopped", "time", "lab"):
                self._rest()
            self._statistics()
            if ending == "lab":
                self._failure = LabError(f"lab {self._lab.name} was taken down; the capture has ended")
        except ReaderEnded:
            ending = "reader"
        except TestbedError as error:
            ending, self._failure = "disk", error
        except Exception as error:  # what waits for the end must not wait for ever
            ending, self._failure = "failed", LabError(f"the capture failed: {error!r}")
        self.ending = ending
        self._count()
        with contextlib.suppress(TestbedError):
            if ending != "lab":
                counted = {"packets": self.packets, "super_packets": self.super_packets, "dropped": self.dropped}
                self._connection.keeper.end_capture(counted=counted)
        self._undo.close()
        self._over.set()

    def _take(self) -> Ending:
        """Write packets until something ends the capture; return what."""
        ready = select.poll()
        for descriptor in (*(ring.fileno() for ring in self._rings), self._connection.fileno()):
            ready.register(descriptor, select.POLLIN)
        while True:
            left_s = _LOOK_S if self._until is None else min(_LOOK_S, self._until - time.monotonic())
            if self._stop.is_set():
                return "stopped"
            if left_s <= 0:
                return "time"
            readable = {descriptor for descriptor, _ in ready.poll(left_s * 1000)}
            if not self._drain():
                return "size"
            if self._connection.fileno() in readable:
                return "lab"  # nothing was asked: the keeper has ended

    def _drain(self, last: bool = False) -> bool:
        """Write what has come, in the order of time; return whether the file may grow further."""
        way = pcapng.OUTBOUND if self.before else pcapng.INBOUND
        for number, ring in enumerate(self._rings):
            self._pending += [
                _Taken(at_ns, number, length, unchecked, pcapng.packet(number, at_ns, data, length, way))
                for at_ns, data, length, unchecked in ring.read()
            ]
        self._count()
        if len(self._rings) > 1:
            self._pending.sort(key=_time_of)
        old_ns = time.time_ns() - _ORDERED_WITHIN_NS
        ready = len(self._pending)
        if len(self._rings) > 1 and not last:
            ready = bisect.bisect_right(self._pending, old_ns, key=_time_of)
        blocks, self._pending = self._pending[:ready], self._pending[ready:]
        fitting = self._fitting(blocks)
        self._write(blocks[:fitting])
        return fitting == len(blocks)

    def _fitting(self, blocks: Sequence[_Taken]) -> int:
        """Return how many of ``blocks`` the file has room for."""
        if self._most_bytes is None:
            return len(blocks)
        left = self._most_bytes - self._out.size - _STATISTICS_BYTES * len(self._rings)
        for count, packet in enumerate(blocks):
            if (left := left - len(packet.block)) < 0:
                return count
        return len(blocks)

    def _write(self, blocks: Sequence[_Taken]) -> None:
        """Write packets, and count those that are in the file. Raises StorageError, ReaderEnded."""
        for start in range(0, len(blocks), _AT_ONCE):
            chunk = blocks[start : start + _AT_ONCE]
            written = self._out.write([packet.block for packet in chunk])
            for packet in chunk[:written]:
                fiber = self.found[packet.number]
                fiber.packets += 1
                fiber.bytes += packet.length
                fiber.unchecked += packet.unchecked
                fiber.super_packets += packet.length > self._largest[packet.number]
                fiber.largest_bytes = max(fiber.largest_bytes, packet.length)
            self.size = self._out.size
            if written < len(chunk):
                self._out.write(())

    def _rest(self) -> None:
        """Write what came until now: the last packets are still in blocks of the kernel's that are not full."""
        for ring in self._rings:
            ring.stop()
        for _ in range(3):
            time.sleep(RETIRED_MS * 1e-3)
            if not self._drain():
                return
        self._drain(last=True)

    def _count(self) -> None:
        for ring, fiber in zip(self._rings, self.found, strict=True):
            ring.count()
            fiber.dropped = ring.dropped

    def _statistics(self) -> None:
        now_ns = time.time_ns()
        self._out.write(
            [
                pcapng.statistics(number, self._began_ns, now_ns, ring.received, ring.dropped)
                for number, ring in enumerate(self._rings)
            ]
        )
        self.size = self._out.size


class _Taken(NamedTuple):
    """A packet that waits to be written: its time, the number of its direction, its length, and its block."""

    at_ns: int
    number: int
    length: int
    unchecked: bool
    block: bytes


def _time_of(taken: _Taken) -> int:
    return taken.at_ns


def _place(topology: Topology, direction: str, before: bool) -> Captured:
    """Return where packets of a direction are captured: at the gateway that sends them, or at the one they reach."""
    path = topology.directions[direction]
    gateway = topology.site(path.tail if before else path.head).gateway
    return Captured(direction, gateway, topology.interfaces.of_link(path.link))


def capture(
    lab: LabFolder,
    topology: Topology,
    target: str,
    file: Path | int,
    *,
    before: bool = False,
    for_s: float | None = None,
    most_bytes: int | None = MOST_BYTES,
    snaplen: int = LONGEST_SNAPLEN,
) -> Capture:
    """Begin to capture a direction (``north:west``) or both of a link (``north``); see :class:`Capture`.

    Args:
        file: where to; a descriptor is left open.
        before: what the sender's port sends into the fiber, rather than what arrives behind it.
        for_s: seconds after which the capture ends by itself.
        most_bytes: size of the file at which it ends; None: no limit.
        snaplen: bytes that are kept of each packet.

    Raises:
        UserError, UnknownName: an argument. HostError: this process may not capture. StorageError: ``file`` cannot be
            written. LabError: the lab's keeper does not answer.
    """
    directions = fiber_status.fibers(topology, target)
    if for_s is not None and not for_s > 0:
        raise UserError(f"expected a capture longer than 0 s, got {for_s:g} s; omit it to capture until it is stopped")
    if not _SHORTEST_SNAPLEN <= snaplen <= LONGEST_SNAPLEN:
        raise UserError(
            f"expected a snaplen from {_SHORTEST_SNAPLEN} (the Ethernet header) to {LONGEST_SNAPLEN} bytes,"
            f" got {snaplen}"
        )
    if most_bytes is not None and most_bytes < LEAST_BYTES:
        raise UserError(f"expected a file of at least {LEAST_BYTES} bytes, got {most_bytes}")
    return Capture(lab, topology, directions, file, before=before, for_s=for_s, most_bytes=most_bytes, snaplen=snaplen)
