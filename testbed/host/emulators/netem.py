"""The kernel's own netem as an :class:`~testbed.host.emulators.emulator.Emulator`.

In the plant, packets received at one end of a link are redirected to the other end (clsact, matchall or u32, mirred),
and leave through netem (random impairments, delay, jitter) with a tbf child (rate, queue in bytes). docs/netem.md has
the meaning of each impairment and the differences from fiberd; ``netem_mapping`` implements it.

Packets keep their order unless reordering is requested, even if the impairment changes while they are in flight. netem
by itself sorts by departure time, so a shorter delay would let later packets overtake; see
:data:`testbed.host.emulators.tc.IN_ORDER_RATE`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.errors import HostError, LabError, MissingTool, NotAllowed, TestbedError
from testbed.host.emulators import tc
from testbed.host.emulators.emulator import DirectionStats, EmulatorInfo, refuse_unknown
from testbed.host.emulators.netem_mapping import qdiscs_of
from testbed.host.emulators.netem_sender import Sender
from testbed.host.emulators.netem_stats import Counted
from testbed.host.linux import invocation, namespace, rtnetlink
from testbed.host.linux.interfaces import traffic

__all__ = ["Netem", "available"]

_SIOCGIFMTU: Final = 0x8921
_SO_SNDBUFFORCE: Final = 32
_SEND_BUFFER: Final = 2 << 20
_MOST_AT_ONCE: Final = 1 << 20
"""Maximum bytes of requests per send: a direction with jitter takes 33 kB, one without less than 1 kB."""

_PROBE: Final = Impairment(delay_s=1e-3, rate_bps=1e9, jitter_s=1e-4, p=0.1, r=0.5, corrupt=0.1, corrupt_survives=True)

Place = tuple[Path, str]
"""A network namespace and an interface in it."""


def available(netns: str | Path | None = None) -> str:
    """Return why netem cannot be used on this host; empty if it can.

    Attaches a probe to ``lo`` of the network namespace at ``netns`` (None: a temporary one) and removes it.
    """

    def attempt() -> str:
        with contextlib.closing(rtnetlink.connect()) as raw:
            link = rtnetlink.index(raw, "lo")
            netem, tbf = qdiscs_of("probe", _PROBE, 1500, 1)
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
        return f"not permitted to probe netem: {invocation.again()}"
    except OSError as error:
        return f"this kernel does not support netem ({error.strerror or error})"
    except TestbedError as error:
        return str(error)


@dataclasses.dataclass
class _Attached:
    """One direction and what is attached for it."""

    direction: EmulatedDirection
    impairment: Impairment
    ingress: int
    egress: int
    mtu: int
    sender: Sender | None
    changes: int = 0
    classified: bool = False
    """Whether its ingress has clsact, which filters attach to."""
    largest_bytes: int = 0
    turn: int = 0
    """Number of times its qdiscs were replaced."""
    counted: Counted = dataclasses.field(default_factory=Counted)


class Netem:
    """Kernel emulation of one plant, created by :meth:`start`. Thread-safe."""

    info = EmulatorInfo("netem", "kernel")
    pid: int | None = None

    def __init__(self, netns: Path, raw: socket.socket, senders: Mapping[str, Place], seed: int | None) -> None:
        self._netns, self._raw, self._senders, self._seed = netns, raw, dict(senders), seed
        self._ways: dict[str, _Attached] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @classmethod
    def start(
        cls,
        netns: str | Path,
        directions: Sequence[EmulatedDirection],
        senders: Mapping[str, Place],
        seed: int | None = None,
    ) -> Netem:
        """Start forwarding between existing interfaces of the plant, impaired from the first packet on.

        Args:
            netns: the plant's network namespace: a path, or a name known to ``ip netns``.
            directions: their interfaces may be up or down.
            senders: the peer of each ``ingress``. Its segmentation offload is switched off while random impairments
                apply to the direction: a wire loses single segments, never super-packets. Missing entries are skipped.
            seed: of random impairments. Since Linux 6.7, the same seed, changes and packets lose the same packets;
            older
                kernels use their own seed. Each direction and each change derives its own numbers from it.

        Raises:
            HostError, NotAllowed, MissingTool: the kernel refused, or applied other values. LabError: impossible value.
        """
        for direction in directions:  # before anything is changed
            qdiscs_of(direction.name, direction.impairment, 1500)
        path = Path(netns) if "/" in str(netns) else namespace.netns_path(str(netns))
        raw = namespace.inside(path, rtnetlink.connect)
        with contextlib.suppress(OSError):  # else requests go in smaller batches
            raw.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        self = cls(path, raw, senders, seed)
        try:
            for direction in directions:
                self._attach(direction)
            counts = namespace.inside(path, traffic)
            for way in self._ways.values():
                way.counted.begin(counts[way.direction.egress], counts[way.direction.ingress])
            self.set({direction.name: direction.impairment for direction in directions})
            # Redirect last, so that no packet passes unimpaired.
            for way in self._ways.values():
                with _translated(f"redirect {way.direction.ingress} to {way.direction.egress}"):
                    rtnetlink.exchange(raw, [tc.clsact(way.ingress)])
                    way.classified = True
                    self._limit(way, way.impairment.largest_bytes)
                    _redirect(raw, way.ingress, way.egress)
        except BaseException:
            self.stop()
            raise
        return self

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        """Replace the impairments of these directions; packets in flight are neither lost nor reordered.

        Packets in flight in the directions of ``flush`` are dropped, which the kernel does not count; no port loses its
        carrier.

        Each direction is changed by two requests, netem's and tbf's, back to back in one send, each with all values.
        Then ``tc`` reads the kernel's values back. A new delay applies to packets that arrive after the change; a
        shorter one takes effect once all earlier packets have left. A loss chain starts in its good state.

        A flushed direction gets a new netem in place of the old one; until its tbf is attached, microseconds later, the
        rate is not limited.

        Raises:
            LabError: unknown direction, impossible or unsupported value, the emulator is stopped, or the kernel has
                other values than requested.
        """
        refuse_unknown([*changes, *flush], self._ways)
        with self._lock:
            self._refuse_stopped()
            changes = {name: self._ways[name].impairment for name in flush} | dict(changes)
            wanted = {
                name: qdiscs_of(name, impairment, self._ways[name].mtu, self._next_seed(self._ways[name]))
                for name, impairment in changes.items()
            }
            counted = self._count()
            for name, impairment in changes.items():
                if impairment.touches_packets:
                    self._offload(self._ways[name], impairment)
            for name in flush:
                way = self._ways[name]
                way.counted.replaced(counted[way.egress]["netem"], counted[way.egress]["tbf"])
                way.turn += 1
            requests = [
                qdisc.request(self._ways[name].egress, name in flush, self._ways[name].turn)
                for name, pair in wanted.items()
                for qdisc in pair
            ]
            with _translated("change netem"):
                for lot in _lots(requests):
                    rtnetlink.exchange(self._raw, lot)
            for name, impairment in changes.items():
                way = self._ways[name]
                way.impairment, way.changes = impairment, way.changes + 1
                self._limit(way, impairment.largest_bytes)
                self._offload(way, impairment)
            wrong = self._differences(wanted)
        if wrong:
            raise LabError("the kernel's netem differs from the request: " + "; ".join(wrong))

    def differences(self, expected: Mapping[str, Impairment]) -> list[str]:
        """Read the values in force back; return one sentence per difference. Raises LabError as :meth:`set`."""
        refuse_unknown(expected, self._ways)
        with self._lock:
            self._refuse_stopped()
            # Seeds change with each change: none is expected.
            wanted = {name: qdiscs_of(name, impairment, self._ways[name].mtu) for name, impairment in expected.items()}
            return self._differences(wanted)

    def stats(self) -> tuple[DirectionStats, ...]:
        """Return one record per direction, in the order of the start. Raises LabError as :meth:`set`.

        The kernel counts neither losses by a cut nor corrupted, duplicated or reordered packets, and has no lateness.
        """
        with self._lock:
            self._refuse_stopped()
            counters = self._count()
            counts = namespace.inside(self._netns, traffic)
            return tuple(
                way.counted.stats(
                    way.direction.name,
                    counters[way.egress]["netem"],
                    counters[way.egress]["tbf"],
                    # Drops by a filter are counted by the clsact qdisc (net/core/dev.c, tc_run).
                    counters[way.ingress]["clsact"].drops,
                    counts[way.direction.egress],
                    counts[way.direction.ingress],
                )
                for way in self._ways.values()
            )

    def record(self, nonce: int) -> None:
        """Return None: the kernel records no packets."""

    def segmented(self) -> tuple[str, ...]:
        """Return the directions whose sender has segmentation offload off because of random impairments."""
        with self._lock:
            return tuple(name for name, way in self._ways.items() if way.sender is not None and way.sender.segmented)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until :meth:`stop` was called; return 0, or None after ``timeout_s``."""
        return 0 if self._stopped.wait(timeout_s) else None

    def stop(self) -> None:
        """Take both ends of every fiber down and remove what was attached. Idempotent."""
        with self._lock:
            if self._stopped.is_set():
                return
            links = sorted({index for way in self._ways.values() for index in (way.ingress, way.egress)})
            with contextlib.suppress(OSError):  # interfaces may be gone already
                rtnetlink.exchange(self._raw, [rtnetlink.link_state(link, False) for link in links])
            for link in links:
                _remove(self._raw, link)
            for way in self._ways.values():
                with contextlib.suppress(TestbedError):
                    self._offload(way, Impairment())
            self._raw.close()
            self._stopped.set()

    # -- inside the lock -------------------------------------------------------------------------------------------

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise LabError("the emulator is stopped")

    def _attach(self, direction: EmulatedDirection) -> None:
        index = {end: rtnetlink.index(self._raw, end) for end in (direction.ingress, direction.egress)}
        if lacking := [end for end, number in index.items() if not number]:
            raise HostError(f"no interface {lacking[0]} in {self._netns.name}")
        mtu = _mtu(self._raw, direction.egress)
        peer = self._senders.get(direction.ingress)
        sender = Sender(*peer) if peer is not None else None
        way = _Attached(direction, Impairment(), index[direction.ingress], index[direction.egress], mtu, sender)
        netem, tbf = qdiscs_of(direction.name, Impairment(), mtu)
        self._ways[direction.name] = way
        with _translated(f"attach netem to {direction.egress}"):
            rtnetlink.exchange(self._raw, [netem.request(way.egress, True)])
            rtnetlink.exchange(self._raw, [tbf.request(way.egress, True)])

    def _differences(self, wanted: Mapping[str, tuple[tc.Netem, tc.Tbf]]) -> list[str]:
        qdiscs = namespace.inside(self._netns, tc.qdiscs)
        return [
            f"{name}: {what}"
            for name, pair in wanted.items()
            for what in tc.differences(qdiscs.get(self._ways[name].direction.egress, {}), *pair)
        ]

    def _next_seed(self, way: _Attached) -> int | None:
        """Return a new seed: netem restarts its sequence with each change and would lose the same packets again."""
        if self._seed is None:
            return None
        seed_material = f"{self._seed} {way.direction.name} {way.changes}".encode()
        return int.from_bytes(hashlib.blake2b(seed_material, digest_size=8).digest(), "little")

    def _count(self) -> dict[int, dict[str, tc.Counters]]:
        """Read the kernel's counters. Raises LabError if a direction's qdiscs were removed by another program."""
        with _translated("read the counters of netem"):
            counters = tc.counters(self._raw)
        for way in self._ways.values():
            qdiscs = counters.get(way.egress, {})
            if not {"netem", "tbf"} <= set(qdiscs):
                raise LabError(f"{way.direction.name}: netem or tbf was removed from {way.direction.egress}")
            way.counted.look(qdiscs["netem"], qdiscs["tbf"], by_chance=way.impairment.mean_loss > 0)
        return counters

    def _limit(self, way: _Attached, largest_bytes: int) -> None:
        """Drop larger IP packets at the ingress; 0: none."""
        if largest_bytes == way.largest_bytes or not way.classified:
            return
        with _translated(f"set the largest packet of {way.direction.name}"):
            if way.largest_bytes:
                rtnetlink.exchange(self._raw, tc.drop_nothing(way.ingress))
                way.largest_bytes = 0
            if largest_bytes:
                rtnetlink.exchange(self._raw, tc.drop_larger(way.ingress, largest_bytes))
                way.largest_bytes = largest_bytes

    def _offload(self, way: _Attached, impairment: Impairment) -> None:
        """Set the offloads of the sending gateway's interface to match the impairment."""
        if (sender := way.sender) is not None:
            with _translated(f"switch segmentation offload of {sender.netns.name}:{sender.interface}"):
                sender.suit(impairment)


def _lots(requests: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Split requests into as few sends as fit into the socket's buffer."""
    lot: list[bytes] = []
    size = 0
    for request in requests:
        if lot and (size + len(request) > _MOST_AT_ONCE or len(lot) == 64):
            yield lot
            lot, size = [], 0
        lot.append(request)
        size += len(request)
    if lot:
        yield lot


def _redirect(raw: socket.socket, link: int, other: int) -> None:
    try:
        rtnetlink.exchange(raw, [tc.redirect(link, other, "matchall")])
    except OSError:  # ENOENT: this kernel has no matchall
        rtnetlink.exchange(raw, [tc.redirect(link, other, "u32")])


def _remove(raw: socket.socket, link: int) -> None:
    with contextlib.suppress(OSError):
        rtnetlink.exchange(raw, tc.no_qdiscs(link))


def _mtu(raw: socket.socket, name: str) -> int:
    return int(struct.unpack_from("i", fcntl.ioctl(raw, _SIOCGIFMTU, struct.pack("16si20x", name.encode(), 0)), 16)[0])


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise NotAllowed(f"not permitted to {doing}: {invocation.again('CAP_NET_ADMIN')}") from error
    except OSError as error:
        raise HostError(f"could not {doing}: {os.strerror(error.errno) if error.errno else error}") from error
