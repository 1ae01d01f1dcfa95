"""The kernel's own netem as an :class:`~testbed.host.emulators.emulator.Emulator`.

In the plant, what one end of a link receives is redirected to the other end (clsact, matchall or u32, mirred), and
leaves it through netem (chance, delay, jitter) with a tbf child (rate, queue in bytes). docs/netem.md says what each
impairment means there and where that differs from fiberd; ``netem_mapping`` makes it so.

Packets never overtake each other unless asked, whatever is changed while they are under way: netem alone sorts by the
time of departure, so that a shorter delay would send what came later first. See
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

from testbed.core.physics.impairment import Direction, Impairment
from testbed.errors import HostError, LabError, MissingTool, NotAllowed, TestbedError
from testbed.host.emulators import tc
from testbed.host.emulators.emulator import DirectionStats, EmulatorInfo, refuse_unknown
from testbed.host.emulators.netem_mapping import qdiscs_of
from testbed.host.emulators.netem_sender import Sender
from testbed.host.emulators.netem_stats import Counted
from testbed.host.linux import namespace, rtnetlink
from testbed.host.linux.interfaces import traffic

__all__ = ["Netem", "available"]

_SIOCGIFMTU: Final = 0x8921
_SO_SNDBUFFORCE: Final = 32
_SEND_BUFFER: Final = 2 << 20
_MOST_AT_ONCE: Final = 1 << 20
"""Bytes of requests in one send: a direction with jitter takes 33 kB, one without less than 1 kB."""

_PROBE: Final = Impairment(delay_s=1e-3, rate_bps=1e9, jitter_s=1e-4, p=0.1, r=0.5, corrupt=0.1, corrupt_survives=True)

Place = tuple[Path, str]
"""A network namespace and an interface in it."""


def available(netns: str | Path | None = None) -> str:
    """Why this machine has no netem emulator; empty if it has.

    A probe is attached to ``lo`` of the network namespace at ``netns`` and removed again; None: of a throw-away one.
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
        return "not permitted to try it: it needs root"
    except OSError as error:
        return f"this kernel does not have it ({error.strerror or error})"
    except TestbedError as error:
        return str(error)


@dataclasses.dataclass
class _Way:
    """One direction, and what has been attached for it."""

    direction: Direction
    impairment: Impairment
    ingress: int
    egress: int
    mtu: int
    sender: Sender | None
    changes: int = 0
    classified: bool = False
    """Whether it has a place for filters (clsact) yet."""
    largest_bytes: int = 0
    turn: int = 0
    """How often its qdiscs were replaced."""
    counted: Counted = dataclasses.field(default_factory=Counted)


class Netem:
    """Running kernel emulation of one plant. Thread-safe. Made by :meth:`start`."""

    info = EmulatorInfo("netem", "kernel")
    pid: int | None = None

    def __init__(self, netns: Path, raw: socket.socket, senders: Mapping[str, Place], seed: int | None) -> None:
        self._netns, self._raw, self._senders, self._seed = netns, raw, dict(senders), seed
        self._ways: dict[str, _Way] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    @classmethod
    def start(
        cls,
        netns: str | Path,
        directions: Sequence[Direction],
        senders: Mapping[str, Place],
        seed: int | None = None,
    ) -> Netem:
        """Forward between ends that exist already in the plant, impaired from the first packet on.

        Args:
            netns: the plant's network namespace: a path, or a name known to ``ip netns``.
            directions: their interfaces may be up or down.
            senders: for each ``ingress`` its peer, where segmentation offload is switched off while chance has a say
                over the direction's packets: what is lost on a wire is one segment, never a super-packet. One that is
                missing is left alone.
            seed: of chance. From Linux 6.7 on the same seed, changes and packets lose the same packets; older kernels
                have their own. Each direction and each change of it draws its own numbers from it.

        Raises:
            HostError, NotAllowed, MissingTool: the kernel cannot, or did something else. LabError: an impossible value.
        """
        for direction in directions:  # before anything is touched
            qdiscs_of(direction.name, direction.impairment, 1500)
        path = Path(netns) if "/" in str(netns) else namespace.netns_path(str(netns))
        raw = namespace.inside(path, rtnetlink.connect)
        with contextlib.suppress(OSError):  # else requests go in smaller lots
            raw.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _SEND_BUFFER)
        self = cls(path, raw, senders, seed)
        try:
            for direction in directions:
                self._attach(direction)
            counts = namespace.inside(path, traffic)
            for way in self._ways.values():
                way.counted.begin(counts[way.direction.egress], counts[way.direction.ingress])
            self.set({direction.name: direction.impairment for direction in directions})
            # Only now: no packet passes unimpaired.
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
        """Replace the impairment of each direction named; nothing in flight is lost or reordered, but in those of
        ``flush`` all of it is lost, which the kernel does not count; no port loses its carrier.

        Each direction is changed by two requests, netem's and tbf's, which follow each other in one send and each hold
        all values; then ``tc`` reads back what stands. A delay holds for packets that come after the change; a shorter
        one takes effect when the last one before it is out. A chain of loss begins in its good state.

        In a direction that is flushed a fresh netem takes the place of the one before; until its tbf is there,
        microseconds later, nothing limits the rate.

        Raises:
            LabError: no such direction, an impossible value or one that netem cannot do, the emulator is stopped, or
                the kernel did otherwise.
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
            found = namespace.inside(self._netns, tc.qdiscs)
        wrong = [
            f"{name}: {what}"
            for name, pair in wanted.items()
            for what in tc.differences(found.get(self._ways[name].direction.egress, {}), *pair)
        ]
        if wrong:
            raise LabError("the kernel's netem is not as asked: " + "; ".join(wrong))

    def stats(self) -> tuple[DirectionStats, ...]:
        """One record per direction, in the order they were started in. What a cut loses the kernel does not count,
        nor what it flips, doubles or holds back, and lateness it does not know. Raises LabError as :meth:`set` does."""
        with self._lock:
            self._refuse_stopped()
            found = self._count()
            counts = namespace.inside(self._netns, traffic)
            return tuple(
                way.counted.stats(
                    way.direction.name,
                    found[way.egress]["netem"],
                    found[way.egress]["tbf"],
                    # What a filter has dropped the place of filters counts (net/core/dev.c, tc_run).
                    found[way.ingress]["clsact"].drops,
                    counts[way.direction.egress],
                    counts[way.direction.ingress],
                )
                for way in self._ways.values()
            )

    def segmented(self) -> tuple[str, ...]:
        """Names of the directions whose sender sends MTU-sized packets only, because chance has a say over them."""
        with self._lock:
            return tuple(name for name, way in self._ways.items() if way.sender is not None and way.sender.segmented)

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
                with contextlib.suppress(TestbedError):
                    self._offload(way, Impairment())
            self._raw.close()
            self._stopped.set()

    # -- inside the lock -------------------------------------------------------------------------------------------

    def _refuse_stopped(self) -> None:
        if self._stopped.is_set():
            raise LabError("the emulator is stopped")

    def _attach(self, direction: Direction) -> None:
        index = {end: rtnetlink.index(self._raw, end) for end in (direction.ingress, direction.egress)}
        if lacking := [end for end, number in index.items() if not number]:
            raise HostError(f"no interface {lacking[0]} in {self._netns.name}")
        mtu = _mtu(self._raw, direction.egress)
        peer = self._senders.get(direction.ingress)
        sender = Sender(*peer) if peer is not None else None
        way = _Way(direction, Impairment(), index[direction.ingress], index[direction.egress], mtu, sender)
        netem, tbf = qdiscs_of(direction.name, Impairment(), mtu)
        self._ways[direction.name] = way
        with _translated(f"attach netem to {direction.egress}"):
            rtnetlink.exchange(self._raw, [netem.request(way.egress, True)])
            rtnetlink.exchange(self._raw, [tbf.request(way.egress, True)])

    def _next_seed(self, way: _Way) -> int | None:
        """netem begins its numbers anew with each change: another seed, lest each change lose the same packets."""
        if self._seed is None:
            return None
        words = f"{self._seed} {way.direction.name} {way.changes}".encode()
        return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "little")

    def _count(self) -> dict[int, dict[str, tc.Counters]]:
        """What the kernel has counted. Raises LabError if a direction has lost its qdiscs: somebody else took them."""
        with _translated("read the counters of netem"):
            found = tc.counters(self._raw)
        for way in self._ways.values():
            qdiscs = found.get(way.egress, {})
            if not {"netem", "tbf"} <= set(qdiscs):
                raise LabError(f"{way.direction.name}: netem or tbf is gone from {way.direction.egress}")
            way.counted.look(qdiscs["netem"], qdiscs["tbf"], by_chance=way.impairment.mean_loss > 0)
        return found

    def _limit(self, way: _Way, largest_bytes: int) -> None:
        """Have larger IP packets vanish where they enter; 0: none."""
        if largest_bytes == way.largest_bytes or not way.classified:
            return
        with _translated(f"set the largest packet of {way.direction.name}"):
            if way.largest_bytes:
                rtnetlink.exchange(self._raw, tc.drop_nothing(way.ingress))
                way.largest_bytes = 0
            if largest_bytes:
                rtnetlink.exchange(self._raw, tc.drop_larger(way.ingress, largest_bytes))
                way.largest_bytes = largest_bytes

    def _offload(self, way: _Way, impairment: Impairment) -> None:
        """Have the sender's end of a fiber send what the impairment is meant for."""
        if (sender := way.sender) is not None:
            with _translated(f"switch segmentation offload of {sender.netns.name}:{sender.interface}"):
                sender.suit(impairment)


def _lots(requests: Sequence[bytes]) -> Iterator[list[bytes]]:
    """As few sends as fit into the socket's buffer."""
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
    except OSError:  # ENOENT: this kernel does not have it
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
        raise NotAllowed(f"not permitted to {doing}: run as root (or with CAP_NET_ADMIN)") from error
    except OSError as error:
        raise HostError(f"could not {doing}: {os.strerror(error.errno) if error.errno else error}") from error
