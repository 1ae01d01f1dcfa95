"""What the operations of a library cost: rounds of messages, bytes on each lane, software. Pure.

Rounds are one-way delays that follow one another. Those of torch's gloo were measured (``benchmarks/gloo_costs.py``)
and follow from its algorithms: in a ring every hop waits until its receiver is ready, so a hop takes two.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Protocol

from testbed.core.prediction.network import Network
from testbed.core.prediction.simulator import OWN_LANE, Cost
from testbed.core.prediction.tcp_limits import LEAST_RTO_S, cold_start_s
from testbed.core.training.exchange import Exchange
from testbed.core.training.gloo_bytes import hop_bytes
from testbed.core.training.layout import Layout
from testbed.core.training.strategy_operation import Operation

__all__ = ["GLOO", "Library", "LibraryCosts", "Moved", "OperationCost", "PlainLibrary", "gloo_rounds"]

_SEGMENT_BYTES: Final = 2**20
"""gloo cuts what a rank holds of an all_reduce into segments of at most 1 MiB, two at least, and has two on the way."""
_IDLE_SHARE: Final = 0.5
"""Connections count as idle after this share of the time for which they were when a cold operation was measured."""


def gloo_rounds(kind: str, ranks: int, byte_count: float) -> float:
    """Return the one-way delays that follow one another in an operation of gloo.

    >>> gloo_rounds("all_reduce", 4, 1e6), gloo_rounds("all_reduce", 4, 64 * 2**20), gloo_rounds("send", 2, 1e6)
    (12.0, 96.0, 1.0)
    """
    phases, messages = gloo_messages(kind, ranks, byte_count)
    match kind:
        case "all_reduce" | "reduce_scatter" | "all_gather":
            return 2.0 * phases * math.ceil(messages / 2)
        case "broadcast":
            return 1.0 + ranks.bit_length() - 1
        case "send":
            return 1.0  # where its receipt is posted before, as the agents do
        case _:
            return 2.0


def gloo_messages(kind: str, ranks: int, byte_count: float) -> tuple[int, int]:
    """Return the phases of an operation of gloo, and the messages of a rank in each, of which two are on their way.

    An all_reduce is a ring twice round, in segments; a reduce_scatter is an all_reduce; others are no rings: (1, 1).
    """
    match kind:
        case "all_reduce" | "reduce_scatter":
            return 2, (ranks - 1) * max(2, math.ceil(math.ceil(byte_count / _SEGMENT_BYTES) / ranks))
        case "all_gather":
            return 1, 2 * (ranks - 1)
        case _:
            return 1, 1


def gloo_hidden_s(kind: str, ranks: int, byte_count: float, serial_s: float, delay_s: float) -> float:
    """Return the seconds of an operation's delays during which its lane sends: two messages of a ring are on their way.

    A phase of m messages of t seconds takes max(ceil(m/2) (2 d + t) + t if m is even, m t + 2 d).
    """
    phases, count = gloo_messages(kind, ranks, byte_count)
    if count == 1:
        return 0.0
    one_s = serial_s / phases / count
    ring_s = math.ceil(count / 2) * (2 * delay_s + one_s) + (one_s if count % 2 == 0 else 0.0)
    phase_s = max(ring_s, count * one_s + 2 * delay_s)
    return max(0.0, phases * (count * one_s + 2 * delay_s * math.ceil(count / 2) - phase_s))


_SOFTWARE: Final = {
    "all_reduce": (0.08e-3, 0.65e-9),
    "reduce_scatter": (0.09e-3, 0.85e-9),
    "all_gather": (0.10e-3, 0.88e-9),
    "all_to_all": (0.14e-3, 0.63e-9),
    "broadcast": (0.20e-3, 0.42e-9),
    "send": (0.16e-3, 0.38e-9),
}
"""CPU of a rank in seconds, per message and per byte that it sends: ``python -m benchmarks.gloo_costs``, least of 7 to
25, groups of 2 to 8 ranks, 4 kB to 64 MB, AMD EPYC, torch 2.15."""


def gloo_software_s(kind: str, ranks: int, byte_count: float) -> float:
    """Return the CPU of a rank for an operation of gloo, in seconds."""
    per_message_s, per_byte_s = _SOFTWARE.get(kind, (0.0, 0.0))
    phases, messages = gloo_messages(kind, ranks, byte_count)
    hops = {"all_reduce": 2, "reduce_scatter": 2, "all_gather": 1, "all_to_all": 1, "broadcast": 1}.get(kind)
    sent = byte_count if hops is None else hops * (ranks - 1) / ranks * byte_count
    count = ranks - 1 if kind == "all_to_all" else 2 * (ranks - 1) / ranks if kind == "broadcast" else phases * messages
    return per_message_s * count + per_byte_s * sent


@dataclass(frozen=True)
class OperationCost:
    """What an operation costs beside its bytes.

    Attributes:
        rounds: one-way delays in sequence.
        software_s: seconds of work.
        cold_s: how much longer it takes after its connections were idle, for ``idle_s`` when that was measured.
        lane: seconds on a lane per second that its bytes need there.
        hides: whether sending overlaps with a part of its delays, as the library's algorithm says.
    """

    rounds: float
    software_s: float = 0.0
    cold_s: float = 0.0
    idle_s: float = 0.0
    lane: float = 1.0
    hides: bool = True


class Library(Protocol):
    """How a library carries out operations.

    ``slots``: collectives of a group that run at once, None for any number; messages (``send``) are not limited.
    ``measured``: kinds of operations that were measured; other kinds have derived costs. None if nothing was measured.
    """

    @property
    def name(self) -> str: ...

    @property
    def slots(self) -> int | None: ...

    @property
    def measured(self) -> frozenset[str] | None: ...

    def cost(self, kind: str, ranks: int, byte_count: float, *, beside: bool, crosses: bool) -> OperationCost:
        """Return what an operation costs; ``beside``: as a part beside the backward pass."""
        ...

    def hidden_s(self, kind: str, ranks: int, byte_count: float, serial_s: float, delay_s: float) -> float:
        """Return the seconds of an operation's delays during which its lane sends, for ``serial_s`` in all."""
        ...

    def update_s(self, before: tuple[tuple[str, bool], ...]) -> float:
        """Return what each rank computes between its inner optimizer and the operations ``before`` which it does."""
        ...


@dataclass(frozen=True)
class PlainLibrary:
    """A library by its algorithms, all by kind, ranks and bytes.

    Attributes:
        rounds: one-way delays in sequence; software_s: seconds of work.
        hidden: seconds of the delays during which the lane sends, also by seconds on the lane and one-way delay.
    """

    name: str
    rounds: Callable[[str, int, float], float]
    software_s: Callable[[str, int, float], float]
    slots: int | None
    hidden: Callable[[str, int, float, float, float], float] = lambda kind, ranks, byte_count, serial_s, delay_s: 0.0
    measured: frozenset[str] | None = None

    def cost(self, kind: str, ranks: int, byte_count: float, *, beside: bool, crosses: bool) -> OperationCost:
        return OperationCost(self.rounds(kind, ranks, byte_count), self.software_s(kind, ranks, byte_count))

    def hidden_s(self, kind: str, ranks: int, byte_count: float, serial_s: float, delay_s: float) -> float:
        return self.hidden(kind, ranks, byte_count, serial_s, delay_s)

    def update_s(self, before: tuple[tuple[str, bool], ...]) -> float:
        return 0.0


GLOO: Final = PlainLibrary("torch-gloo", gloo_rounds, gloo_software_s, 2, gloo_hidden_s)
"""torch's gloo: two threads carry out the operations of a group."""


@dataclass(frozen=True)
class Moved:
    """What an exchange moves once: ranks of its group, bytes of each lane and inside each site, those that a site's
    busiest node sends, and the pairs of sites that it crosses."""

    ranks: int
    lanes: Mapping[str, float]
    busiest: Mapping[str, float]
    hops: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LibraryCosts:
    """Costs of exchanges by a library over a network.

    Attributes:
        steps_s: compute of a step of each site, in seconds.
        ranks_of: how many ranks each rank of the layout stands for, by site.
        slow_start: whether connections start slowly after idling; ``connections``: of one exchange and direction.
        moved: what exchanges move, by their likeness.
        message_scale: the library's messages are so many times smaller than those of the layout.
        scale: of full scale, where the windows of TCP are those that count.
        sliced: whether the ranks of a site send slices of one payload to other sites; if not, each sends its own.
    """

    layout: Layout
    network: Network
    library: Library
    steps_s: Mapping[str, float]
    ranks_of: Mapping[str, float] = field(default_factory=dict)
    slow_start: bool = False
    connections: int = 1
    scale: float = 1.0
    message_scale: float = 1.0
    sliced: bool = True
    moved: dict[Hashable, Moved] = field(default_factory=dict, repr=False, compare=False)

    def step_s(self, site: str) -> float:
        return self.steps_s[site]

    def of(self, exchange: Exchange) -> Cost:
        likeness = exchange.likeness
        if likeness not in self._found:
            self._found[likeness] = self._of(exchange)
        return self._found[likeness]

    @cached_property
    def _found(self) -> dict[Hashable, Cost]:
        return {}

    def _of(self, exchange: Exchange) -> Cost:
        if not exchange.operations:
            return Cost(self.library.update_s(exchange.computes), 0.0, {}, {})
        times, cost, first = exchange.times, self._cost(exchange), exchange.first
        slots = self.library.slots if exchange.slots is None else exchange.slots
        slots = None if first.kind == "send" else slots
        lanes = {lane: times * cost.lane * seconds for lane, seconds in self.lanes(exchange).items()}
        propagation_s, serial_s = times * cost.rounds * self.hop_s(exchange), max(lanes.values(), default=0.0)
        software_s = times * cost.software_s
        if slots is not None and slots > 1 and slots * serial_s <= software_s + propagation_s + serial_s:
            # In other slots the library waits most of the time, and these messages are sent meanwhile.
            lanes = {OWN_LANE: serial_s}
        cold_s, cold_after_s = self._cold(exchange, cost)
        return Cost(
            software_s=software_s,
            propagation_s=propagation_s,
            lanes=lanes,
            bytes={lane: times * moved for lane, moved in self._moved(exchange).lanes.items()},
            slots=slots,
            hidden_s=times * self._hidden_s(exchange, serial_s / times, propagation_s / times) if cost.hides else 0.0,
            cold_s=cold_s,
            cold_after_s=cold_after_s,
        )

    def _hidden_s(self, exchange: Exchange, serial_s: float, propagation_s: float) -> float:
        if not propagation_s:
            return 0.0
        kind, ranks, byte_count = self._message(exchange)
        return min(propagation_s, self.library.hidden_s(kind, ranks, byte_count, serial_s, self.hop_s(exchange)))

    def _cost(self, exchange: Exchange) -> OperationCost:
        crosses = bool(self._moved(exchange).hops)
        return self.library.cost(*self._message(exchange), beside=exchange.first.parts > 0, crosses=crosses)

    def _message(self, exchange: Exchange) -> tuple[str, int, float]:
        """Return the kind of an exchange's operations, the ranks of one, and its bytes as the library cuts them."""
        return exchange.first.kind, self._moved(exchange).ranks, exchange.byte_count / self.message_scale

    def _cold(self, exchange: Exchange, cost: OperationCost) -> tuple[float, float]:
        """Return how much longer the exchange takes after an idle time, and after which: as measured, or slow start."""
        if cost.cold_s:
            return cost.cold_s, _IDLE_SHARE * cost.idle_s
        delay_s, rate_bps = self.hop_s(exchange), self.network.rate_bps * self.scale
        if not self.slow_start or not delay_s or math.isinf(rate_bps):
            return 0.0, 0.0
        bits = max(self.lanes(exchange).values(), default=0.0) * rate_bps
        cold_s = cold_start_s(rate_bps / self.connections, 2 * delay_s, bits / self.connections)
        return cold_s, LEAST_RTO_S + 2 * delay_s

    def lanes(self, exchange: Exchange) -> dict[str, float]:
        """Return the seconds for which each lane sends once: directions of fibers, and fabrics by their site."""
        moved = self._moved(exchange)
        lane_bytes = {
            lane: 8 * byte_count / rate_bps
            for lane, byte_count in moved.lanes.items()
            if math.isfinite(rate_bps := self.network.rates_bps.get(lane, math.inf))
        }
        return lane_bytes | {
            site: 8 * byte_count / self.network.fabric_bps[site]
            for site, byte_count in moved.busiest.items()
            if site in self.network.fabric_bps
        }

    def hop_s(self, exchange: Exchange) -> float:
        """Return the one-way delay of the longest hop of an exchange, in seconds."""
        return max((self.network.routes[hop].delay_s for hop in self._moved(exchange).hops), default=0.0)

    def _moved(self, exchange: Exchange) -> Moved:
        likeness = exchange.likeness
        if likeness not in self.moved:
            self.moved[likeness] = self._look(exchange)
        return self.moved[likeness]

    def _look(self, exchange: Exchange) -> Moved:
        sites = self.layout.sites
        lanes, nodes = defaultdict[str, float](float), defaultdict[tuple[str, int], float](float)
        pairs = defaultdict[tuple[str, str], float](float)
        share = 1 / exchange.parts / exchange.times  # `operations` has each of the times
        for operation, count in Counter(exchange.operations).items():
            group = self._group(operation)
            inside = {site: group.inside(site) for site, members in group.members.items() if members > 1}
            for (source, target), of_one in hop_bytes(operation).items():
                here, there, byte_count = sites[source], sites[target], count * of_one
                if here == there:
                    of_node, hops = inside[here]
                    nodes[here, source] += share * of_node * byte_count
                    lanes[here] += share * of_node * byte_count * hops
                else:
                    pairs[here, there] += share * group.factor * byte_count * self._groups(group, here)
        for pair, byte_count in pairs.items():
            for lane in self.network.routes[pair].lanes:
                lanes[lane] += byte_count
        busiest: dict[str, float] = {}
        for (site, _), byte_count in nodes.items():
            busiest[site] = max(busiest.get(site, 0.0), byte_count)
        ranks = self._group(exchange.first).ranks
        return Moved(ranks, dict(lanes), busiest, tuple(pairs))

    def _group(self, operation: Operation) -> _Group:
        """Return the group of an operation. Only all ranks of a site, of which it has several, stand for others."""
        members, whole = Counter(self.layout.sites[rank] for rank in operation.ranks), self.layout.members
        stands_for = {
            site: self.ranks_of.get(site, 1) if 1 < count == len(whole[site]) else 1 for site, count in members.items()
        }
        return _Group(operation.kind, members, stands_for)

    def _groups(self, group: _Group, site: str) -> float:
        """Return for how many groups one of some ranks of a site stands: those of slices are as many as the slices."""
        whole = len(self.layout.members[site]) == group.members[site]
        return 1 if self.sliced or whole else self.ranks_of.get(site, 1)


@dataclass(frozen=True)
class _Group:
    """The ranks of an operation: how many of the layout each site has in it, and for how many each of these stands."""

    kind: str
    members: Mapping[str, int]
    stands_for: Mapping[str, float]

    @cached_property
    def size(self) -> int:
        """Ranks of the layout."""
        return sum(self.members.values())

    @cached_property
    def ranks(self) -> int:
        """Ranks that take part."""
        return round(sum(count * self.stands_for[site] for site, count in self.members.items()))

    @cached_property
    def factor(self) -> float:
        """What the operation moves on a hop, relative to one among the ranks of the layout only."""
        if self.size == self.ranks:
            return 1.0
        if self.kind == "all_to_all":
            return self.ranks / self.size
        return (1 - 1 / self.ranks) / (1 - 1 / self.size)

    def inside(self, site: str) -> tuple[float, float]:
        """Return what the operation moves on a hop in ``site``, as :attr:`factor`, and for how many hops it stands."""
        members, stands_for = self.members[site], self.stands_for[site]
        neighbours = (members * stands_for - 1) / (members - 1)
        if self.kind == "all_to_all":
            return neighbours * self.size / self.ranks, stands_for
        # A ring over several sites leaves each of them once.
        return self.factor, neighbours if members < self.size else stands_for
