"""The kernel's own netem as an :class:`~testbed.host.emulator.Emulator`.

In the plant, what one end of a link receives is redirected to the other end (clsact, matchall or u32, mirred), and
leaves it through netem (delay, loss) with a tbf child (rate, queue in bytes). docs/netem.md says what each impairment
means there and where that differs from fiberd.

Packets never overtake each other, whatever is changed while they are under way: netem alone sorts by the time of
departure, so that a shorter delay would send what came later first. See :data:`testbed.host.tc.IN_ORDER_RATE`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
import socket
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from testbed.core.physics.impairment import Direction, Impairment
from testbed.errors import HostError, LabError, MissingTool, NotAllowed, TestbedError
from testbed.host import namespace, rtnetlink, tc
from testbed.host.emulator import DROP_CAUSES, DirectionStats, EmulatorInfo

__all__ = ["Netem", "available", "qdiscs_of"]

WIRE_OVERHEAD_BYTES: Final = 24
"""Preamble, start of frame, check sequence and gap of Ethernet: what a frame costs on the wire beyond itself."""

HEADER_BYTES: Final = 14
BURST_S: Final = 250e-6
"""What tbf may send at once, as time at the rate: the lateness of a timer that costs no throughput (docs/netem.md)."""

PACKETS_UNDER_WAY: Final = 1_000_000
"""Per direction; only there so that memory is bounded."""

UNLIMITED_RATE: Final = 2**40
"""Bytes per second, for "no rate": a tbf that is always there can be changed without losing what is in it."""

UNLIMITED_QUEUE_BYTES: Final = 2**30
LONGEST_DELAY_S: Final = 3600.0
OFFLOADED_SEGMENTS: Final = 65535
"""The kernel's default of segments in a super-packet (GSO_MAX_SEGS)."""

_SIOCGIFMTU: Final = 0x8921
_MAPPED: Final = frozenset({"delay_s", "rate_bps", "queue_bytes", "loss"})

Place = tuple[Path, str]
"""A network namespace and an interface in it."""


def available(netns: str | Path | None = None) -> str:
    """Why this machine has no netem emulator; empty if it has.

    A probe is attached to ``lo`` of the network namespace at ``netns`` and removed again; None: of a throw-away one.
    """

    def attempt() -> str:
        with contextlib.closing(rtnetlink.connect()) as raw:
            link = rtnetlink.index(raw, "lo")
            netem, tbf = qdiscs_of("probe", Impairment(delay_s=1e-3, rate_bps=1e9), 1500)
            try:
                rtnetlink.exchange(raw, [netem.request(link, True)])
                rtnetlink.exchange(raw, [tbf.request(link, True)])
                rtnetlink.exchange(raw, [tc.clsact(link)])
                _redirect(raw, link, link)
                wrong = tc.differences(tc.qdiscs().get("lo", {}), netem, tbf)
            finally:
                _remove(raw, link)
        return "; ".join(wrong)

    try:
        return namespace.inside(netns, attempt) if netns is not None else namespace.in_a_fresh_one(attempt)
    except MissingTool as error:
        return str(error)
    except NotAllowed:
        return "not permitted to try it: it needs root"
    except OSError as error:
        return f"this kernel does not have it ({error.strerror or error})"
    except TestbedError as error:
        return str(error)


def qdiscs_of(direction: str, impairment: Impairment, mtu: int) -> tuple[tc.Netem, tc.Tbf]:
    """What the kernel is told for an impairment, on an interface with that MTU. Pure.

    Raises LabError for what netem cannot do.
    """
    for field in dataclasses.fields(impairment):
        if field.name not in _MAPPED and getattr(impairment, field.name) != field.default:
            raise LabError(f"{direction}: the emulator netem has no {field.name}; --emulator fiberd may have it")
    if not 0 <= impairment.delay_s <= LONGEST_DELAY_S or not 0 <= impairment.loss <= 1:
        raise LabError(f"{direction}: delay {impairment.delay_s} s, loss {impairment.loss} are impossible")
    if not math.isfinite(impairment.rate_bps) or impairment.rate_bps < 0 or impairment.queue_bytes < 0:
        raise LabError(f"{direction}: rate {impairment.rate_bps} b/s, queue {impairment.queue_bytes} B are impossible")
    rate = min(round(impairment.rate_bps / 8), UNLIMITED_RATE) if impairment.rate_bps else UNLIMITED_RATE
    if rate < 1:
        raise LabError(f"{direction}: netem has no rate below 8 b/s")
    frame = mtu + HEADER_BYTES
    # tbf counts frames where we count what they are on the wire: exact for full frames.
    queue = round(impairment.queue_bytes * frame / (frame + WIRE_OVERHEAD_BYTES)) or UNLIMITED_QUEUE_BYTES
    burst = min(frame + WIRE_OVERHEAD_BYTES + round(rate * BURST_S), UNLIMITED_QUEUE_BYTES)
    return (
        tc.Netem(round(impairment.delay_s * 1e9), PACKETS_UNDER_WAY, impairment.loss),
        tc.Tbf(rate, min(queue, UNLIMITED_QUEUE_BYTES), burst, WIRE_OVERHEAD_BYTES),
    )


@dataclasses.dataclass
class _Way:
    """One direction and what has been counted of it. ``seen`` are (netem's, tbf's) drops at the last look."""

    direction: Direction
    impairment: Impairment
    ingress: int
    egress: int
    mtu: int
    packets_before: int = 0
    missed_before: int = 0
    seen: tuple[int, int] = (0, 0)
    lost: int = 0
    crowded: int = 0

    def count(self, drops: tuple[int, int]) -> None:
        """netem counts its child's drops too. What is over is chance where there is loss, else the packet limit."""
        more = max(0, (drops[0] - self.seen[0]) - (drops[1] - self.seen[1]))
        if self.impairment.loss > 0:
            self.lost += more
        else:
            self.crowded += more
        self.seen = drops


class Netem:
    """Running kernel emulation of one plant. Thread-safe. Made by :meth:`start`."""

    info = EmulatorInfo("netem", "kernel")
    pid: int | None = None

    def __init__(self, netns: Path, raw: socket.socket, ways: Sequence[_Way], senders: Mapping[str, Place]) -> None:
        self._netns, self._raw, self._senders = netns, raw, dict(senders)
        self._ways = {way.direction.name: way for way in ways}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @classmethod
    def start(cls, netns: str | Path, directions: Sequence[Direction], senders: Mapping[str, Place]) -> Netem:
        """Forward between ends that exist already in the plant, impaired from the first packet on.

        Args:
            netns: the plant's network namespace: a path, or a name known to ``ip netns``.
            directions: their interfaces may be up or down.
            senders: for each ``ingress`` its peer, where segmentation offload is switched off while the direction has
                loss: what is lost on a wire is one segment, never a super-packet. One that is missing is left alone.

        Raises:
            HostError, NotAllowed, MissingTool: the kernel cannot, or did something else. LabError: an impossible value.
        """
        path = Path(netns) if "/" in str(netns) else namespace.netns_path(str(netns))
        raw = namespace.inside(path, rtnetlink.connect)
        self = cls(path, raw, [], senders)
        try:
            for direction in directions:
                index = {end: rtnetlink.index(raw, end) for end in (direction.ingress, direction.egress)}
                if lacking := [end for end, number in index.items() if not number]:
                    raise HostError(f"no interface {lacking[0]} in {path.name}")
                mtu = _mtu(raw, direction.egress)
                way = _Way(direction, Impairment(), index[direction.ingress], index[direction.egress], mtu)
                netem, tbf = qdiscs_of(direction.name, Impairment(), mtu)
                self._ways[direction.name] = way
                with _translated(f"attach netem to {direction.egress}"):
                    rtnetlink.exchange(raw, [netem.request(way.egress, True)])
                    rtnetlink.exchange(raw, [tbf.request(way.egress, True)])
            counters = namespace.inside(path, _counters)
            for way in self._ways.values():
                way.packets_before, way.missed_before = _own_counters(way, counters)
            self.set({direction.name: direction.impairment for direction in directions})
            # Only now: no packet passes unimpaired.
            for way in self._ways.values():
                with _translated(f"redirect {way.direction.ingress} to {way.direction.egress}"):
                    rtnetlink.exchange(raw, [tc.clsact(way.ingress)])
                    _redirect(raw, way.ingress, way.egress)
        except BaseException:
            self.stop()
            raise
        return self

    def set(self, changes: Mapping[str, Impairment]) -> None:
        """Replace the impairment of each direction named; nothing in flight is lost or reordered.

        netem and tbf of all directions are changed by one send, each in one piece, then read back by ``tc``. A delay
        holds for packets that come after the change; a shorter one takes effect when the last one before it is out.

        Raises:
            LabError: no such direction, an impossible value, the emulator is stopped, or the kernel did otherwise.
        """
        for name in changes:
            if name not in self._ways:
                raise LabError(f"the emulator has no direction named '{name}'")
        wanted = {name: qdiscs_of(name, it, self._ways[name].mtu) for name, it in changes.items()}
        with self._lock:
            self._refuse_stopped()
            self._count(self._read())
            for name, impairment in changes.items():
                if impairment.loss > 0:
                    self._segment(self._ways[name], True)
            requests = [
                qdisc.request(self._ways[name].egress, False) for name, pair in wanted.items() for qdisc in pair
            ]
            with _translated("change netem"):
                for first in range(0, len(requests), 64):  # what fits into a socket's buffer
                    rtnetlink.exchange(self._raw, requests[first : first + 64])
            for name, impairment in changes.items():
                was, self._ways[name].impairment = self._ways[name].impairment, impairment
                if was.loss > 0 and impairment.loss == 0:
                    self._segment(self._ways[name], False)
            found = self._read()
        wrong = [
            f"{name}: {what}"
            for name, pair in wanted.items()
            for what in tc.differences(found.get(self._ways[name].direction.egress, {}), *pair)
        ]
        if wrong:
            raise LabError("the kernel's netem is not as asked: " + "; ".join(wrong))

    def stats(self) -> tuple[DirectionStats, ...]:
        """One record per direction, in the order they were started in. What a cut loses the kernel does not count,
        and lateness it does not know. Raises LabError as :meth:`set` does."""
        with self._lock:
            self._refuse_stopped()
            found = self._read()
            self._count(found)
            counters = namespace.inside(self._netns, _counters)
            return tuple(_stats(way, found[way.direction.egress], counters) for way in self._ways.values())

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until it is stopped: the kernel does not die. 0 then, None after ``timeout_s``."""
        return 0 if self._stopped.wait(timeout_s) else None

    def stop(self) -> None:
        """Take both ends of every fiber down and remove what was attached. Does nothing the second time."""
        with self._lock:
            if self._stopped.is_set():
                return
            links = sorted({index for way in self._ways.values() for index in (way.ingress, way.egress)})
            with contextlib.suppress(OSError):  # whatever is gone already
                rtnetlink.exchange(self._raw, [rtnetlink.link_state(link, False) for link in links])
            for link in links:
                _remove(self._raw, link)
            for way in self._ways.values():
                if way.impairment.loss > 0:
                    with contextlib.suppress(TestbedError):
                        self._segment(way, False)
            self._raw.close()
            self._stopped.set()

    # -- inside the lock -------------------------------------------------------------------------------------------

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise LabError("the emulator is stopped")

    def _read(self) -> dict[str, dict[str, dict[str, Any]]]:
        """What stands. Raises LabError if a direction has lost its qdiscs: somebody else took them."""
        found = namespace.inside(self._netns, tc.qdiscs)
        for way in self._ways.values():
            if not {"netem", "tbf"} <= set(found.get(way.direction.egress, {})):
                raise LabError(f"{way.direction.name}: netem or tbf is gone from {way.direction.egress}")
        return found

    def _count(self, found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        for way in self._ways.values():
            qdiscs = found[way.direction.egress]
            way.count((int(qdiscs["netem"]["drops"]), int(qdiscs["tbf"]["drops"])))

    def _segment(self, way: _Way, on: bool) -> None:
        """Have the sender's end of a fiber send MTU-sized packets only, or super-packets again."""
        if way.direction.ingress not in self._senders:
            return
        path, interface = self._senders[way.direction.ingress]

        def change() -> None:
            with contextlib.closing(rtnetlink.connect()) as raw:
                request = tc.segments_per_packet(rtnetlink.index(raw, interface), 1 if on else OFFLOADED_SEGMENTS)
                rtnetlink.exchange(raw, [request])

        with _translated(f"switch segmentation offload of {path.name}:{interface}"):
            namespace.inside(path, change)


def _redirect(raw: socket.socket, link: int, other: int) -> None:
    try:
        rtnetlink.exchange(raw, [tc.redirect(link, other, "matchall")])
    except OSError:  # ENOENT: this kernel does not have it
        rtnetlink.exchange(raw, [tc.redirect(link, other, "u32")])


def _remove(raw: socket.socket, link: int) -> None:
    with contextlib.suppress(OSError):
        rtnetlink.exchange(raw, tc.no_qdiscs(link))


def _mtu(raw: socket.socket, name: str) -> int:
    return int(struct.unpack_from("i", fcntl.ioctl(raw, _SIOCGIFMTU, struct.pack("16si20x", name.encode(), 0)), 16)[0])


def _counters() -> dict[str, tuple[int, int]]:
    """{interface: (packets sent, received ones dropped)} in the namespace of the calling thread; proc(5), net/dev."""
    found = {}
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines()[2:]:
        name, _, words = line.partition(":")
        fields = words.split()
        found[name.strip()] = (int(fields[9]), int(fields[3]))
    return found


def _own_counters(way: _Way, counters: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    return counters[way.direction.egress][0], counters[way.direction.ingress][1]


def _stats(
    way: _Way, qdiscs: Mapping[str, Mapping[str, Any]], counters: Mapping[str, tuple[int, int]]
) -> DirectionStats:
    netem, tbf = qdiscs["netem"], qdiscs["tbf"]
    packets, missed = _own_counters(way, counters)
    drops = dict.fromkeys(DROP_CAUSES, 0)
    drops |= {"loss": way.lost, "memory": way.crowded, "queue": int(tbf["drops"])}
    drops["receive"] = missed - way.missed_before
    return DirectionStats(
        direction=way.direction.name,
        packets=packets - way.packets_before,
        # The kernel counts a super-packet as its segments, and their headers (qdisc_pkt_len_init).
        segments=int(netem["packets"]),
        bytes=int(netem["bytes"]),
        drops=drops,
        queue_bytes=int(tbf["backlog"]),
        in_flight_packets=int(netem["qlen"]),
    )


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise NotAllowed(f"not permitted to {doing}: run as root (or with CAP_NET_ADMIN)") from error
    except OSError as error:
        raise HostError(f"could not {doing}: {os.strerror(error.errno) if error.errno else error}") from error
