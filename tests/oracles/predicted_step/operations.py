"""Bytes by hop, software and rounds of an operation, by the table of docs/prediction.md."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from oracles.predicted_step.job import Fiber, Lane, Rules

MIB = 1 << 20
CPU_S = {
    "all_reduce": (0.08e-3, 0.65e-9),
    "reduce_scatter": (0.09e-3, 0.85e-9),
    "all_gather": (0.10e-3, 0.88e-9),
    "all_to_all": (0.14e-3, 0.63e-9),
    "broadcast": (0.20e-3, 0.42e-9),
    "send": (0.16e-3, 0.38e-9),
}
"""Seconds of a message, and of a byte."""
PHASES = {"all_reduce": 2, "reduce_scatter": 2, "all_gather": 1}
"""Of rings."""


@dataclass(frozen=True)
class Rounds:
    """One-way delays in sequence.

    Attributes:
        phases, messages: of a ring, where the lane hides a part; 0 for other operations.
        times: how often the operation is repeated.
    """

    count: int
    delay_s: float
    phases: int = 0
    messages: int = 0
    times: int = 1

    @property
    def all_s(self) -> float:
        return self.times * self.count * self.delay_s

    def behind_lane_s(self, lane_s: float) -> float:
        """Return the seconds that the lane does not hide if it sends for so long."""
        if not self.phases or not self.delay_s:
            return self.all_s
        message_s = lane_s / self.times / self.phases / self.messages
        in_turns_s = math.ceil(self.messages / 2) * (2 * self.delay_s + message_s)
        if self.messages % 2 == 0:
            in_turns_s += message_s
        return self.times * self.phases * max(in_turns_s, self.messages * message_s + 2 * self.delay_s) - lane_s


@dataclass(frozen=True)
class Operation:
    """What an exchange costs: bytes by lane, software of one rank, rounds."""

    lanes: Mapping[Lane, float]
    software_s: float
    rounds: Rounds
    takes_slot: bool = True

    def repeated(self, times: int) -> Operation:
        lanes = {lane: size * times for lane, size in self.lanes.items()}
        return replace(self, lanes=lanes, software_s=self.software_s * times, rounds=replace(self.rounds, times=times))


def beside(operations: Sequence[Operation]) -> Operation:
    """Return equal operations of several groups at the same time: bytes add up, the rest counts once."""
    slowest = max(operations, key=lambda operation: (operation.rounds.all_s, operation.software_s))
    lanes: dict[Lane, float] = {}
    for operation in operations:
        for lane, size in operation.lanes.items():
            lanes[lane] = lanes.get(lane, 0.0) + size
    return replace(slowest, lanes=lanes)


class Network:
    """Fibers between sites, and the routes over them."""

    def __init__(self, fibers: Mapping[tuple[int, int], Fiber], sites: int, rules: Rules) -> None:
        self.fibers, self.sites, self.rules = fibers, range(sites), rules
        self.known: dict[tuple[str, tuple[int, ...], float], Operation] = {}
        self.routes = {pair: self.route(*pair) for pair in itertools.permutations(self.sites, 2)}

    def fiber(self, lane: Lane) -> Fiber:
        return self.fibers[min(lane), max(lane)]

    def route(self, first: int, last: int) -> tuple[tuple[Lane, ...], float]:
        """Return the lanes of the path of the least delay, and its delay."""
        paths = []
        between = [site for site in self.sites if site not in (first, last)]
        for count in range(len(between) + 1):
            for middle in itertools.permutations(between, count):
                lanes = tuple(itertools.pairwise((first, *middle, last)))
                if all((min(lane), max(lane)) in self.fibers for lane in lanes):
                    paths.append((sum(self.fiber(lane).delay_s for lane in lanes), len(lanes), lanes))
        delay_s, _, lanes = min(paths)
        return lanes, delay_s

    def operation(self, kind: str, group: Sequence[int], size: float) -> Operation:
        """Return an operation of a group, given by the site of each rank."""
        key = (kind, tuple(group), size)
        if key not in self.known:
            self.known[key] = self.cost(*key)
        return self.known[key]

    def cost(self, kind: str, group: Sequence[int], size: float) -> Operation:
        ranks = len(group)
        lanes: dict[Lane, float] = {}
        delay_s = 0.0
        for rank, peer, sent in self.hops(kind, ranks, size):
            if group[rank] == group[peer]:
                continue
            route, route_s = self.routes[group[rank], group[peer]]
            delay_s = max(delay_s, route_s)
            for lane in route:
                lanes[lane] = lanes.get(lane, 0.0) + sent
        messages, sent = software(kind, ranks, size)
        per_message_s, per_byte_s = CPU_S[kind]
        return Operation(
            lanes, messages * per_message_s + sent * per_byte_s, rounds(kind, ranks, size, delay_s), kind != "send"
        )

    def hops(self, kind: str, ranks: int, size: float) -> Iterable[tuple[int, int, float]]:
        """Yield a rank, the rank that it sends to, and bytes."""
        if kind in ("all_reduce", "reduce_scatter"):
            for rank in range(ranks):
                yield rank, (rank + self.rules.ring_turn) % ranks, self.rules.reduced_share(ranks) * size
        elif kind == "all_gather":
            for rank in range(ranks):
                yield rank, (rank + self.rules.gather_turn) % ranks, self.rules.gathered_share(ranks) * size
        elif kind == "all_to_all":
            for rank, peer in itertools.permutations(range(ranks), 2):
                yield rank, peer, size / ranks
        elif kind == "broadcast":
            for rank in range(1, ranks):
                yield rank - (1 << (rank.bit_length() - 1)), rank, size
        else:
            yield 0, 1, size

    def sum(self, sites: Sequence[int], slices: int, size: float) -> Operation:
        """Return the sum of slices of ``size`` bytes over sites: two send each other messages."""
        if len(sites) > 2:
            return beside([self.operation("all_reduce", sites, size)] * slices)
        return beside([self.operation("send", pair, size) for pair in itertools.permutations(sites)] * slices)


def segments(ranks: int, size: float) -> int:
    """Return the messages of each of the two phases of an all_reduce."""
    return (ranks - 1) * max(2, math.ceil(math.ceil(size / MIB) / ranks))


def software(kind: str, ranks: int, size: float) -> tuple[float, float]:
    """Return the messages and the bytes that one rank sends."""
    share = (ranks - 1) / ranks
    return {
        "all_reduce": (2 * segments(ranks, size), 2 * share * size),
        "reduce_scatter": (2 * segments(ranks, size), 2 * share * size),
        "all_gather": (2 * (ranks - 1), share * size),
        "all_to_all": (ranks - 1, share * size),
        "broadcast": (2 * share, share * size),
        "send": (1, size),
    }[kind]


def rounds(kind: str, ranks: int, size: float, delay_s: float) -> Rounds:
    if kind in PHASES:
        messages = 2 * (ranks - 1) if kind == "all_gather" else segments(ranks, size)
        return Rounds(2 * PHASES[kind] * math.ceil(messages / 2), delay_s, PHASES[kind], messages)
    most_ones = max(rank.bit_count() for rank in range(ranks))
    return Rounds({"all_to_all": 2, "broadcast": 1 + most_ones, "send": 1}[kind], delay_s)
