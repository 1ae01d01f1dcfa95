"""A predictor written from docs/prediction.md alone, to compare `testbed predict` with.

It shares no code with the product. A job is plain numbers: sites with ranks and speeds, fibers with rate and delay.
Sites are generators that compute, begin exchanges and wait for them; a loop over events runs them. `Rules` has the rules
of the page that a test may break on purpose.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MIB = 1 << 20
BUCKET_BYTES = 25 * MIB
CPU = {  # seconds a message, seconds a byte
    "all_reduce": (0.08e-3, 0.65e-9),
    "reduce_scatter": (0.09e-3, 0.85e-9),
    "all_gather": (0.10e-3, 0.88e-9),
    "all_to_all": (0.14e-3, 0.63e-9),
    "broadcast": (0.20e-3, 0.42e-9),
    "send": (0.16e-3, 0.38e-9),
}

Lane = tuple[int, int]
"""A direction of a fiber: from one site to the next."""


@dataclass(frozen=True)
class Rules:
    """What a test changes to see that the comparison notices it."""

    ring_bytes: float = 1.0
    """Factor of the bytes of an all_reduce."""
    gathered_bytes: float = 1.0
    """Factor of the bytes of an all_gather."""
    message_bytes: float = 1.0
    collective_slots: int = 2
    site_slots: int = 1
    """Of stages inside the sites of hierarchical."""
    ring_direction: int = -1
    gather_direction: int = 1
    lands_later: int = 0
    """Steps that an exchange for a later step lands after its own."""
    waits_for_all: bool = True
    """Whether an exchange starts when the last site has begun it, not the first."""
    unmerged_pushes: int = 4
    stages_follow: bool = True
    """Whether a part begins a stage when it has ended the stage before."""


@dataclass(frozen=True)
class Fiber:
    """Payload rate of each direction at full scale, and one-way delay."""

    rate_bps: float
    delay_s: float


@dataclass(frozen=True)
class Job:
    """What is predicted. Sites are numbered from 0."""

    strategy: str
    options: Mapping[str, Any]
    ranks: Sequence[int]
    fibers: Mapping[tuple[int, int], Fiber]
    """By pairs of sites (first, second), first < second."""
    compute_s: float
    parameters: float
    layers: int
    scale: float
    speeds: Sequence[float] = ()
    rules: Rules = Rules()


@dataclass(frozen=True)
class Step:
    """Of the fastest site, at the mean of steady cycles; bits are at full scale."""

    step_s: float
    bits: Mapping[Lane, float]
    steady: bool


# ---- events --------------------------------------------------------------------------------------------------------


class Signal:
    """Fires once, then what waits for it goes on."""

    def __init__(self, fired: bool = False) -> None:
        self.fired = fired
        self.callbacks: list[Callable[[], None]] = []

    def fire(self) -> None:
        if self.fired:
            return
        self.fired = True
        for callback in self.callbacks:
            callback()

    def then(self, callback: Callable[[], None]) -> None:
        if self.fired:
            callback()
        else:
            self.callbacks.append(callback)


Process = Generator["float | Signal", None, None]


class Clock:
    """Calls what is due in the order of time, then of its request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self.due, (time_s, next(self.numbers), callback))

    def start(self, process: Process) -> Signal:
        """Run a process that yields seconds to sleep or signals to wait for; the returned signal fires at its end."""
        ended = Signal()

        def go_on() -> None:
            for wait in process:
                if isinstance(wait, Signal):
                    if wait.fired:
                        continue
                    wait.then(go_on)
                else:
                    self.at(self.now + wait, go_on)
                return
            ended.fire()

        go_on()
        return ended

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while self.due and not is_done():
            self.now, _, callback = heapq.heappop(self.due)
            callback()


# ---- what an operation costs ---------------------------------------------------------------------------------------


@dataclass
class Operation:
    """Bytes on lanes, seconds of software, and the delays in sequence that a lane of so many seconds does not hide."""

    lanes: dict[Lane, float]
    software_s: float
    rounds_s: Callable[[float], float]
    all_rounds_s: Callable[[float], float]
    """All rounds, hidden or not."""
    takes_slot: bool = True

    def repeated(self, times: int) -> Operation:
        return Operation(
            {lane: size * times for lane, size in self.lanes.items()}, self.software_s * times,
            lambda lane_s: times * self.rounds_s(lane_s / times), lambda lane_s: times * self.all_rounds_s(lane_s / times),
            self.takes_slot,
        )  # fmt: skip


@dataclass
class Group:
    """Whose collectives share slots."""

    slots: int
    running: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)


class Simulation:
    """A network, the exchanges on it, and what sites have begun."""

    def __init__(self, job: Job) -> None:
        self.job, self.rules, self.clock = job, job.rules, Clock()
        self.sites = range(len(job.ranks))
        self.speeds = tuple(job.speeds) or (1.0,) * len(job.ranks)
        self.slices = min(job.ranks)
        self.model_bytes = 4 * job.parameters / job.scale
        self.routes = {(a, b): self.route(a, b) for a in self.sites for b in self.sites if a != b}
        self.free_at: dict[Lane, float] = {}
        self.sent_bytes: dict[Lane, float] = {}
        self.groups: dict[object, Group] = {}
        self.begun: dict[object, tuple[set[int], Signal]] = {}
        self.counts: dict[object, int] = {}
        self.landing: dict[int, deque[tuple[int, Signal, float]]] = {}
        self.answers: dict[tuple[int, int], Signal] = {}
        self.began = [0.0 for _ in self.sites]
        self.messages: dict[tuple[int, int, int, int], Signal] = {}
        self.merges: dict[int, Merges] = {}
        self.arrived_merges: dict[int, list[tuple[int, int]]] = {}
        self.under_way = 0

    # -- the network

    def route(self, first: int, last: int) -> tuple[tuple[Lane, ...], float]:
        """Return the lanes of the shortest path by delay, and its delay."""
        paths = []
        between = [site for site in self.sites if site not in (first, last)]
        for count in range(len(between) + 1):
            for middle in itertools.permutations(between, count):
                path = (first, *middle, last)
                hops = tuple(itertools.pairwise(path))
                if all((min(hop), max(hop)) in self.job.fibers for hop in hops):
                    paths.append((sum(self.fiber(hop).delay_s for hop in hops), len(hops), hops))
        delay_s, _, hops = min(paths)
        return hops, delay_s

    def fiber(self, lane: Lane) -> Fiber:
        return self.job.fibers[min(lane), max(lane)]

    def sending_s(self, lane: Lane, size: float) -> float:
        return 8 * size * self.job.scale / self.fiber(lane).rate_bps

    # -- operations. A group is the site of each rank.

    def operation(self, kind: str, groups: Sequence[Sequence[int]], size: float, source: int = 0) -> Operation:
        """Return an operation of each of the equal groups, done at the same time."""
        ranks = len(groups[0])
        messages, sent = self.software_of(kind, ranks, size)
        per_message, per_byte = CPU[kind]
        lanes: dict[Lane, float] = {}
        delay_s = 0.0
        for group in groups:
            for rank, peer, hop_bytes in self.hops(kind, ranks, size, source):
                if group[rank] == group[peer]:
                    continue
                hops, route_s = self.routes[group[rank], group[peer]]
                delay_s = max(delay_s, route_s)
                for lane in hops:
                    lanes[lane] = lanes.get(lane, 0.0) + hop_bytes
        rounds_s, all_rounds_s = self.rounds_of(kind, ranks, size, delay_s)
        return Operation(lanes, messages * per_message + sent * per_byte, rounds_s, all_rounds_s, kind != "send")

    def software_of(self, kind: str, ranks: int, size: float) -> tuple[float, float]:
        """Return messages and bytes of one rank."""
        if kind in ("all_reduce", "reduce_scatter"):
            return 2 * segments(ranks, size), 2 * (ranks - 1) / ranks * size
        if kind == "all_gather":
            return 2 * (ranks - 1), (ranks - 1) / ranks * size
        if kind == "all_to_all":
            return ranks - 1, (ranks - 1) / ranks * size
        if kind == "broadcast":
            return 2 * (ranks - 1) / ranks, (ranks - 1) / ranks * size
        return 1, size

    def hops(self, kind: str, ranks: int, size: float, source: int) -> Iterable[tuple[int, int, float]]:
        """Yield rank, the rank that it sends to, and bytes."""
        if kind in ("all_reduce", "reduce_scatter"):
            for rank in range(ranks):
                peer = (rank + self.rules.ring_direction) % ranks
                yield rank, peer, self.rules.ring_bytes * 2 * (ranks - 1) / ranks * size
        elif kind == "all_gather":
            for rank in range(ranks):
                peer = (rank + self.rules.gather_direction) % ranks
                yield rank, peer, self.rules.gathered_bytes * (ranks - 1) / ranks * size
        elif kind == "all_to_all":
            for rank, peer in itertools.permutations(range(ranks), 2):
                yield rank, peer, size / ranks
        elif kind == "broadcast":
            for distance in range(1, ranks):
                parent = distance - (1 << (distance.bit_length() - 1))
                yield (source + parent) % ranks, (source + distance) % ranks, size
        else:
            yield 0, 1, self.rules.message_bytes * size

    def rounds_of(
        self, kind: str, ranks: int, size: float, delay_s: float
    ) -> tuple[Callable[[float], float], Callable[[float], float]]:
        rings = {"all_reduce": 2, "reduce_scatter": 2, "all_gather": 1}
        if kind in rings:
            phases = rings[kind]
            count = 2 * (ranks - 1) if phases == 1 else segments(ranks, size)
            pairs = math.ceil(count / 2)

            def shown(lane_s: float) -> float:
                message_s = lane_s / (phases * count)
                phase_s = pairs * (2 * delay_s + message_s) + (message_s if count % 2 == 0 else 0)
                return phases * max(phase_s, count * message_s + 2 * delay_s) - lane_s

            return (shown if delay_s else lambda _: 0.0), lambda _: 2 * phases * pairs * delay_s
        rounds = {"all_to_all": 2, "broadcast": 1 + max(rank.bit_count() for rank in range(ranks)), "send": 1}[kind]
        return (lambda _: rounds * delay_s), (lambda _: rounds * delay_s)

    def both_ways(self, first: Sequence[int], size: float) -> Operation:
        """Messages of two sites to each other, one for each slice."""
        there, back = (
            self.operation("send", [[a, b]] * self.slices, size) for a, b in (tuple(first), tuple(reversed(first)))
        )
        return Operation(
            add(there.lanes, back.lanes), there.software_s, lambda s: max(there.rounds_s(s), back.rounds_s(s)),
            there.all_rounds_s, False,
        )  # fmt: skip

    def sum_across(self, sites: Sequence[int], size: float) -> Operation:
        """Return the sum of slices of so many bytes over sites."""
        if len(sites) == 2:
            return self.both_ways(sites, size)
        return self.operation("all_reduce", [list(sites)] * self.slices, size)

    # -- exchanges

    def exchange(self, group: object, operation: Operation, slots: int | None = None) -> Signal:
        """Start an operation; the signal fires when it has arrived."""
        arrived = Signal()
        state = self.groups.setdefault(group, Group(slots or self.rules.collective_slots))
        self.under_way += 1

        def enter() -> None:
            state.running += operation.takes_slot
            self.clock.at(*self.sending(operation, state.slots, leave))

        def leave() -> None:
            self.under_way -= 1
            if operation.takes_slot:
                state.running -= 1
                if state.waiting:
                    state.waiting.popleft()()
            arrived.fire()

        if operation.takes_slot and state.running >= state.slots:
            state.waiting.append(enter)
        else:
            enter()
        return arrived

    def sending(
        self, operation: Operation, slots: int, arrived: Callable[[], None]
    ) -> tuple[float, Callable[[], None]]:
        """Return when the lanes of an operation that starts now have sent it and its rounds are over."""
        ready = self.clock.now + operation.software_s
        lane_s = max((self.sending_s(lane, size) for lane, size in operation.lanes.items()), default=0.0)
        rounds_s = operation.rounds_s(lane_s)
        sent = ready
        interleaved = (
            operation.takes_slot
            and slots >= 2
            and 2 * lane_s <= operation.software_s + operation.all_rounds_s(lane_s) + lane_s
        )
        for lane, size in operation.lanes.items():
            self.sent_bytes[lane] = self.sent_bytes.get(lane, 0.0) + size
            seconds = self.sending_s(lane, size)
            if interleaved:
                sent = max(sent, ready + seconds)
                continue
            end = max(ready, self.free_at.get(lane, 0.0)) + seconds
            self.free_at[lane] = end
            sent = max(sent, end)
        return sent + rounds_s, arrived

    def begin(
        self, site: int, name: object, sites: Sequence[int], operation: Operation, slots: int | None = None
    ) -> Signal:
        """Begin an exchange of sites at one of them; it starts when the last one has begun it."""
        number = self.counts[name, site] = self.counts.get((name, site), 0) + 1
        begun, arrived = self.begun.setdefault((name, number), (set(), Signal()))
        begun.add(site)
        if len(begun) == (len(sites) if self.rules.waits_for_all else 1):
            self.exchange(name, operation, slots).then(arrived.fire)
        if len(begun) == len(sites):
            del self.begun[name, number]
        return arrived

    def in_site(self, site: int, kind: str, size: float, name: str = "site", slots: int | None = None) -> Signal | None:
        if self.job.ranks[site] == 1:
            return None
        operation = self.operation(kind, [[site] * self.job.ranks[site]], size)
        return self.begin(site, (name, site), [site], operation, slots)

    def answer(self, site: int, push: int) -> Signal:
        return self.answers.setdefault((site, push), Signal())

    def state(self) -> list[float]:
        """Return what must be equal after two cycles for the job to be steady."""
        state = [max(0.0, free - self.clock.now) for _, free in sorted(self.free_at.items())]
        state.append(self.under_way)
        if self.job.strategy == "decoupled":
            state += [self.clock.now - began for began in self.began]
            state += [len(self.arrived_merges.get(site, ())) for site in self.sites]
            state += [
                state.pushed[site] - state.adopted[site] for _, state in sorted(self.merges.items()) for site in self.sites
            ]
        return state

    # -- parts of a step

    def compute_s(self, site: int) -> float:
        if self.job.options.get("pace") == "time" and self.job.strategy != "async-diloco":
            return self.job.compute_s / min(self.speeds)
        return self.job.compute_s / self.speeds[site]

    def every(self, site: int) -> int:
        """Return the steps of a site between two of its pushes."""
        every: int = self.job.options["every"]
        if self.job.options.get("pace") == "time":
            return max(1, round(every * self.speeds[site] / max(self.speeds)))
        return every

    def passes(self, site: int, parts: int, stages: Sequence[Callable[[], Signal | None]]) -> Process:
        """Forward and backward pass; stages of each part go on beside the latter, and are waited for at its end."""
        compute_s = self.compute_s(site)
        yield compute_s / 3
        ends = []
        for _ in range(parts):
            yield 2 * compute_s / 3 / parts
            ends.append(self.clock.start(in_order(stages, self.rules.stages_follow)))
        yield from ends

    def local_step(self, site: int, step: int) -> Process:
        """A step with the mean in the site beside its backward pass."""
        ranks = self.job.ranks[site]
        if ranks == 1:
            return self.passes(site, 8, [])
        operation = self.operation("all_reduce", [[site] * ranks], self.model_bytes / 8)
        operation = operation.repeated(self.inner_steps(site, step))
        return self.passes(site, 8, [lambda: self.begin(site, ("site", site), [site], operation)])

    def inner_steps(self, site: int, step: int) -> int:
        """Return how many inner steps a site makes in a step."""
        if self.job.options.get("pace") != "time" or self.job.strategy == "async-diloco":
            return 1
        ratio = self.speeds[site] / min(self.speeds)
        return math.floor(step * ratio + 1e-9) - math.floor((step - 1) * ratio + 1e-9)

    def gathered(self, site: int, size: float) -> float:
        """Return the bytes of an all_gather in a site, where each rank has a part as large as a slice."""
        return size * self.job.ranks[site] / self.slices

    def gather(self, site: int, size: float) -> Process:
        arrived = self.in_site(site, "all_gather", self.gathered(site, size))
        if arrived:
            yield arrived


def in_order(stages: Sequence[Callable[[], Signal | None]], follow: bool) -> Process:
    signals = []
    for stage in stages:
        arrived = stage()
        if arrived and follow:
            yield arrived
        elif arrived:
            signals.append(arrived)
    yield from signals


def segments(ranks: int, size: float) -> int:
    """Return the messages of a rank in each of the two phases of a ring."""
    return (ranks - 1) * max(2, math.ceil(math.ceil(size / MIB) / ranks))


def add(*lanes: Mapping[Lane, float]) -> dict[Lane, float]:
    total: dict[Lane, float] = {}
    for part in lanes:
        for lane, size in part.items():
            total[lane] = total.get(lane, 0.0) + size
    return total


# ---- strategies ----------------------------------------------------------------------------------------------------

StepOf = Callable[[Simulation, int, int], Process]
"""Of a simulation, a site and the number of a step, from 1."""


def buckets(sim: Simulation) -> int:
    written = sim.job.options.get("buckets")
    return written or min(4 * sim.job.layers, max(1, math.ceil(4 * sim.job.parameters / BUCKET_BYTES)))


def all_ranks(sim: Simulation) -> list[int]:
    return [site for site in sim.sites for _ in range(sim.job.ranks[site])]


def ddp(sim: Simulation, site: int, step: int) -> Process:
    if step % sim.job.options.get("accumulate", 1):
        yield sim.compute_s(site)
        return
    count = buckets(sim)
    size = sim.model_bytes * sim.job.options.get("bits", 32) / 32 / count
    operation = sim.operation("all_reduce", [all_ranks(sim)], size)
    yield from sim.passes(site, count, [lambda: sim.begin(site, "all", sim.sites, operation)])


def hierarchical(sim: Simulation, site: int, step: int) -> Process:
    if step % sim.job.options.get("accumulate", 1):
        yield sim.compute_s(site)
        return
    count = buckets(sim)
    size = sim.model_bytes / count
    first = "reduce_scatter" if len(set(sim.job.ranks)) == 1 else "all_reduce"
    slots = sim.rules.site_slots
    yield from sim.passes(
        site,
        count,
        [
            lambda: sim.in_site(site, first, size, "in", slots),
            *across(sim, site, size / sim.slices),
            lambda: sim.in_site(site, "all_gather", sim.gathered(site, size), "out", slots),
        ],
    )


def across(sim: Simulation, site: int, size: float, name: str = "across") -> list[Callable[[], Signal | None]]:
    """Return the stages of the sum of slices across sites."""
    home = sim.job.options.get("aggregate_at", "")
    if home == "":
        return [lambda: sim.begin(site, name, sim.sites, sim.sum_across(sim.sites, size))]
    others = [other for other in sim.sites if other != home]
    stages = []
    for towards in (True, False):
        messages = [
            sim.operation("send", [[other, home] if towards else [home, other]] * sim.slices, size) for other in others
        ]
        operation = Operation(
            add(*(message.lanes for message in messages)), messages[0].software_s,
            lambda s, m=messages: max(message.rounds_s(s) for message in m), messages[0].all_rounds_s, False,
        )  # fmt: skip
        stages.append(lambda op=operation, way=(name, towards): sim.begin(site, way, sim.sites, op))
    return stages


def diloco(sim: Simulation, site: int, step: int) -> Process:
    ranks = sim.job.options.get("replica", "site") == "rank"
    if ranks:
        yield sim.compute_s(site)
    else:
        yield from sim.local_step(site, step)
    if step % sim.job.options["every"]:
        return
    if ranks:
        yield sim.begin(site, "all", sim.sites, sim.operation("all_reduce", [all_ranks(sim)], sim.model_bytes))
        return
    yield from in_order(across(sim, site, sim.model_bytes / sim.slices), True)
    yield from sim.gather(site, sim.model_bytes)


def torchft(sim: Simulation, site: int, step: int) -> Process:
    yield from sim.local_step(site, step)
    if step % sim.job.options["every"] == 0:
        operation = sim.operation("all_reduce", [list(sim.sites)] * sim.slices, sim.model_bytes)
        yield sim.begin(site, "across", sim.sites, operation)


def tensors(sim: Simulation) -> list[list[int]]:
    """Return the values of the four tensors of each layer; they differ by one value at most."""
    return [[*parts(layer, 4)] for layer in parts(round(sim.job.parameters / sim.job.scale), sim.job.layers)]


def parts(total: int, count: int) -> list[int]:
    return [total // count + (number < total % count) for number in range(count)]


def padded_layers(sim: Simulation, ranks: int) -> list[int]:
    """Return the bytes of each layer if every rank has an equal part of each tensor."""
    return [sum(4 * ranks * math.ceil(values / ranks) for values in layer) for layer in tensors(sim)]


def sharded(sim: Simulation, ranks: Sequence[int]) -> list[Operation]:
    """Return what a group that shards the model does in a step."""
    sizes = Counter(padded_layers(sim, len(ranks)))
    return [
        sim.operation(kind, [ranks], size).repeated(times * count)
        for kind, times in (("all_gather", 2), ("reduce_scatter", 1))
        for size, count in sizes.items()
    ]


def fsdp(sim: Simulation, site: int, step: int) -> Process:
    yield sim.compute_s(site)
    for operation in sharded(sim, all_ranks(sim)):
        yield sim.begin(site, "all", sim.sites, operation)


def hsdp(sim: Simulation, site: int, step: int) -> Process:
    yield sim.compute_s(site)
    ranks = sim.job.ranks[site]
    if ranks > 1:
        for operation in sharded(sim, [site] * ranks):
            yield sim.begin(site, ("site", site), [site], operation)
    for size, count in Counter(padded_layers(sim, ranks)).items():
        operation = sim.operation("all_reduce", [list(sim.sites)] * ranks, size / ranks).repeated(count)
        yield sim.begin(site, "across", sim.sites, operation)


def coded_bytes(values: float, bits: int) -> float:
    """Return the bytes of values of streaming-diloco and decoupled, scales included."""
    return math.ceil(values * bits / 8) + (4 * math.ceil(values / 256) if bits in (4, 8) else 0)


def sparse_bytes(sim: Simulation, slices: int) -> list[float]:
    """Return the bytes of the codes of each slice. A block is cut where a slice ends, each part then is a block."""
    top, bits = sim.job.options.get("top", 64), sim.job.options.get("bits", 2)
    total = round(sim.job.parameters / sim.job.scale)
    width = math.ceil(total / slices)
    ends = {width * number for number in range(1, slices)} | {total}
    position = 0
    for values in itertools.chain.from_iterable(tensors(sim)):
        ends |= {position + block for block in range(0, values, 4096)} | {position + values}
        position += values
    kept, blocks = [0] * slices, [0] * slices
    for begin, end in itertools.pairwise(sorted(ends | {0})):
        kept[begin // width] += math.ceil(top * (end - begin) / 4096)
        blocks[begin // width] += 1
    return [
        math.ceil(12 * count / 8) + math.ceil(bits * count / 8) + (4 * number if bits == 2 else 0)
        for count, number in zip(kept, blocks, strict=True)
    ]


def sparse_loco(sim: Simulation, site: int, step: int) -> Process:
    options = sim.job.options
    ranks = options.get("replica", "site") == "rank"
    if ranks:
        yield sim.compute_s(site)
    else:
        yield from sim.local_step(site, step)
    if step % options["every"]:
        return
    group = all_ranks(sim) if ranks else list(sim.sites)
    sizes = sparse_bytes(sim, 1 if ranks else sim.slices)
    operations = [sim.operation("all_gather", [group], size * len(group)) for size in sizes]
    largest = max(operations, key=lambda operation: operation.software_s)
    operation = replace(largest, lanes=add(*(operation.lanes for operation in operations)))
    yield sim.begin(site, "across", sim.sites, operation)
    if not ranks:
        yield from sim.gather(site, sim.model_bytes)


def fragment_values(sim: Simulation) -> list[int]:
    count = sim.job.options.get("fragments", 1)
    layers = [sum(layer) for layer in tensors(sim)]
    return [sum(layers[fragment::count]) for fragment in range(count)]


def due_offset(sim: Simulation, fragment: int) -> int:
    every = sim.job.options["every"]
    return math.floor(every * fragment / sim.job.options.get("fragments", 1) + 0.5) % every


def due(sim: Simulation, step: int) -> list[int]:
    """Return the fragments that are due after a step."""
    fragments = range(sim.job.options.get("fragments", 1))
    return [fragment for fragment in fragments if step % sim.job.options["every"] == due_offset(sim, fragment)]


def streaming(sim: Simulation, site: int, step: int) -> Process:
    """Fragments begun after a step land a few steps later, at the same place of the step."""
    options, values = sim.job.options, fragment_values(sim)
    every, overlap = options["every"], options.get("overlap", 0)
    offsets = sorted(due_offset(sim, fragment) for fragment in range(len(values)))
    gaps = [after - before for before, after in itertools.pairwise([*offsets, offsets[0] + every])]
    own_groups = len(values) > 1 and overlap >= min(gaps)
    yield from sim.local_step(site, step)
    if site not in sim.landing:
        before = ((past + overlap, fragment) for past in range(1 - overlap, 1) for fragment in due(sim, past))
        sim.landing[site] = deque((lands, Signal(True), 4 * values[fragment]) for lands, fragment in before)
    begun = sim.landing[site]
    for fragment in due(sim, step):
        group = fragment if own_groups else 0
        size = math.ceil(values[fragment] / sim.slices)
        if options.get("bits", 32) == 32:
            arrived = sim.clock.start(in_order(across(sim, site, 4 * size, f"across {group}"), True))
        else:
            coded = coded_bytes(size, options["bits"]) * len(sim.sites)
            operation = sim.operation("all_gather", [list(sim.sites)] * sim.slices, coded)
            arrived = sim.begin(site, ("across", group), sim.sites, operation)
        if overlap == 0:
            yield arrived
            yield from sim.gather(site, 4 * values[fragment])
        else:
            begun.append((step + overlap + sim.rules.lands_later, arrived, 4 * values[fragment]))
    landed = []
    while begun and begun[0][0] <= step:
        landed.append(begun.popleft())
    yield from [arrived for _, arrived, _ in landed]
    for _, _, gathered in landed:
        yield from sim.gather(site, gathered)


def multi_tier(sim: Simulation, site: int, step: int) -> Process:
    options = sim.job.options
    count = len(sim.job.ranks)
    regions = options.get("regions") or [list(range((count + 1) // 2)), list(range((count + 1) // 2, count))]
    region = next(region for region in regions if site in region)
    size = sim.model_bytes / sim.slices
    yield from sim.local_step(site, step)
    if step % options["every"]:
        return
    name = ("region", region[0])
    if len(region) > 1:
        yield sim.begin(site, name, region, sim.sum_across(region, size))
    if step % options["every_regions"] == 0:
        heads = [region[0] for region in regions]
        if site in heads:
            yield sim.begin(site, "heads", heads, sim.sum_across(heads, size))
        if len(region) > 1:
            yield sim.begin(site, name, region, sim.operation("broadcast", [list(region)] * sim.slices, size))
    yield from sim.gather(site, sim.model_bytes)


def async_diloco(sim: Simulation, site: int, step: int) -> Process:
    options, count = sim.job.options, len(sim.job.ranks)
    home = options.get("home", "") or 0
    yield from sim.local_step(site, step)
    agreed = sim.in_site(site, "all_reduce", 16)
    if agreed:
        yield agreed
    if step % sim.every(site):
        return
    push = step // sim.every(site)
    size = 4 * math.ceil(sim.model_bytes / 4 / sim.slices)
    operations = [
        sim.operation("send", [hop] * sim.slices, size) for hop in ([site, home], [home, site]) if site != home
    ]
    sim.clock.start(answered(sim, operations, sim.answer(site, push)))
    unanswered = ((options.get("staleness", 0) or 4 * count) + 1) // count - 1
    if push > unanswered:
        for other in sim.sites:
            yield sim.answer(other, push - unanswered)
    yield from sim.gather(site, size * sim.slices)


def answered(sim: Simulation, operations: Sequence[Operation], answer: Signal) -> Process:
    for operation in operations:
        yield sim.exchange("messages", operation)
    answer.fire()


@dataclass
class Merges:
    """Of a fragment of decoupled, by site: pushes made, delivered, merged; and merges that sites have not adopted."""

    pushed: Counter[int] = field(default_factory=Counter)
    delivered: Counter[int] = field(default_factory=Counter)
    merged: Counter[int] = field(default_factory=Counter)
    adopted: Counter[int] = field(default_factory=Counter)
    """Pushes of a site in what it has adopted."""
    running: Signal | None = None


def decoupled(sim: Simulation, site: int, step: int) -> Process:
    options, values = sim.job.options, fragment_values(sim)
    yield from sim.local_step(site, step)
    agreed = sim.in_site(site, "all_reduce", 8)
    if agreed:
        yield agreed
    pushes = due(sim, step)
    arrived = sim.arrived_merges.setdefault(site, [])
    looks = bool(pushes) or step % max(1, options["every"] // 50) == 0
    for fragment in range(len(values)):
        state = sim.merges.setdefault(fragment, Merges())
        if fragment in pushes and state.pushed[site] - state.adopted[site] < sim.rules.unmerged_pushes:
            state.pushed[site] += 1
            sim.clock.start(delivered(sim, fragment, site, coded_bytes(slice_of(sim, values[fragment]), bits_of(sim))))
    for fragment in range(len(values)):
        while looks and (merge := next((merge for merge in arrived if merge[0] == fragment), None)):
            arrived.remove(merge)
            sim.merges[fragment].adopted[site] = merge[1]
            yield from sim.gather(site, 4 * slice_of(sim, values[fragment]) * sim.slices)


def slice_of(sim: Simulation, values: float) -> int:
    return math.ceil(values / sim.slices)


def bits_of(sim: Simulation) -> int:
    return sim.job.options.get("bits", 32)


def delivered(sim: Simulation, fragment: int, site: int, size: float) -> Process:
    home = sim.job.options.get("home", "") or 0
    if site != home:
        yield sim.exchange("messages", sim.operation("send", [[site, home]] * sim.slices, size))
    state = sim.merges[fragment]
    state.delivered[site] += 1
    ready = [other for other in sim.sites if state.delivered[other] > state.merged[other]]
    count = len(sim.job.ranks)
    if state.running:
        if len(ready) == count:
            state.running.fire()
    elif len(ready) >= (sim.job.options.get("quorum", 0) or count // 2 + 1):
        state.running = Signal()
        state.running.then(lambda: merge(sim, fragment, size))
        if len(ready) == count:
            state.running.fire()
        else:
            running = state.running
            sim.clock.at(sim.clock.now + sim.job.options.get("grace", 0.05), running.fire)


def merge(sim: Simulation, fragment: int, size: float) -> None:
    home = sim.job.options.get("home", "") or 0
    state = sim.merges[fragment]
    state.running = None
    state.merged = Counter(state.delivered)
    for site in sim.sites:
        sim.clock.start(sent(sim, fragment, home, site, size, state.merged[site]))


def sent(sim: Simulation, fragment: int, home: int, site: int, size: float, own: int) -> Process:
    if site != home:
        yield sim.exchange("messages", sim.operation("send", [[home, site]] * sim.slices, size))
    sim.arrived_merges.setdefault(site, []).append((fragment, own))


AGENT_WIDTH = 96
TOKENS = 256


def pipeline(sim: Simulation, site: int, step: int) -> Process:
    options, stages = sim.job.options, len(sim.job.ranks)
    batches, in_flight = options.get("micro_batches", 4), options.get("in_flight", 0)
    behind = stages - 1 - site
    limit = batches
    if options.get("schedule", "1f1b") != "gpipe" and in_flight:
        limit = min(batches, 1 + math.ceil((in_flight - 1) * behind / (stages - 1)))
    compute_s = sim.compute_s(site)
    size = 4 * TOKENS * stages / batches * AGENT_WIDTH
    ranks = sim.job.ranks[site]

    def message(first: int, second: int, batch: int) -> Signal:
        return sim.messages.setdefault((first, second, step, batch), Signal())

    def send(to: int, batch: int) -> None:
        operation = sim.operation("send", [[site, to]] * ranks, size)
        sim.exchange("messages", operation).then(message(site, to, batch).fire)

    forward = backward = 0
    while backward < batches:
        if forward < batches and forward - backward < limit:
            if site > 0:
                yield message(site - 1, site, forward)
            yield compute_s / 3 / batches
            if behind:
                send(site + 1, forward)
            forward += 1
        else:
            if behind:
                yield message(site + 1, site, backward)
            yield 2 * compute_s / 3 / batches
            if site > 0:
                send(site - 1, backward)
            backward += 1
    arrived = sim.in_site(site, "all_reduce", sim.model_bytes / stages)
    if arrived:
        yield arrived


@dataclass(frozen=True)
class Gpt:
    """The model of tensor and moe, in values: width, of a block's perceptron, outside matrices, and of all."""

    width: int
    layers: int

    @property
    def perceptrons(self) -> int:
        return self.layers * (8 * self.width**2 + 5 * self.width)

    @property
    def unsplit(self) -> int:
        """Embedding, positions, norms, and the biases behind a sum."""
        return (6 * self.layers + 322) * self.width

    @property
    def values(self) -> int:
        return 12 * self.layers * self.width**2 + (13 * self.layers + 322) * self.width

    @classmethod
    def of(cls, job: Job) -> Gpt:
        heads = math.sqrt(job.parameters / 12 / job.layers) / 128
        return cls(128 * (16 * round(heads / 16) if heads > 16 else max(1, round(heads))), job.layers)


def tensor(sim: Simulation, site: int, step: int) -> Process:
    gpt, scale, slices, sites = Gpt.of(sim.job), sim.job.scale, sim.slices, sim.sites
    yield sim.compute_s(site)
    is_across = sim.job.options.get("across", False)
    ranks = len(sites) if is_across else slices
    tokens = 8 * TOKENS * ranks / scale
    activations = 4 * TOKENS * ranks * gpt.width / scale
    shard = 4 * (gpt.values - gpt.unsplit) / ranks / scale
    unsplit = 4 * gpt.unsplit / scale
    for kind, size, times in (("all_gather", tokens, 1), ("all_reduce", activations, 4 * gpt.layers)):
        if is_across:
            operation = sim.operation(kind, [list(sites)] * slices, size).repeated(times)
            yield sim.begin(site, "across", sites, operation)
        elif ranks > 1:
            yield sim.begin(site, ("site", site), [site], sim.operation(kind, [[site] * ranks], size).repeated(times))
    if is_across:
        yield from some(sim.in_site(site, "all_reduce", shard + unsplit))
    else:
        yield sim.begin(site, "across", sites, sim.sum_across(sites, shard + unsplit / ranks))
        yield from some(sim.in_site(site, "all_gather", unsplit))


def some(signal: Signal | None) -> list[Signal]:
    return [signal] if signal else []


def moe(sim: Simulation, site: int, step: int) -> Process:
    options, gpt, scale, sites = sim.job.options, Gpt.of(sim.job), sim.job.scale, sim.sites
    yield sim.compute_s(site)
    in_site = options.get("experts", "all") == "site"
    group = [site] * sim.slices if in_site else all_ranks(sim)
    share = math.ceil(options.get("capacity", 1.0) * options.get("top_k", 1) * TOKENS / len(group))
    tokens = 4 * share * len(group) * gpt.width / scale
    if len(group) > 1:
        operation = sim.operation("all_to_all", [group], tokens).repeated(4 * gpt.layers)
        yield sim.begin(site, "tokens" if not in_site else ("tokens", site), [site] if in_site else sites, operation)
    others = 4 * (gpt.values - gpt.perceptrons + gpt.layers * len(group) * gpt.width) / scale
    yield from some(sim.in_site(site, "reduce_scatter", others))
    yield sim.begin(site, "across", sites, sim.sum_across(sites, others / sim.slices))
    yield from some(sim.in_site(site, "all_gather", others))
    if in_site:
        yield sim.begin(site, "across", sites, sim.sum_across(sites, 4 * gpt.perceptrons / scale))


STRATEGIES: dict[str, StepOf] = {
    "tensor": tensor,
    "moe": moe,
    "pipeline": pipeline,
    "decoupled": decoupled,
    "async-diloco": async_diloco,
    "fsdp": fsdp,
    "hsdp": hsdp,
    "sparse-loco": sparse_loco,
    "streaming-diloco": streaming,
    "multi-tier": multi_tier,
    "ddp": ddp,
    "hierarchical": hierarchical,
    "local-sgd": diloco,
    "diloco": diloco,
    "torchft-diloco": torchft,
}


# ---- steady cycles -------------------------------------------------------------------------------------------------


def predict(job: Job) -> Step:
    """Simulate cycles until they repeat."""
    sim = Simulation(job)
    cycle = cycle_of(job)
    ends: list[list[float]] = [[0.0] for _ in sim.sites]
    states: list[list[float]] = [[]]
    sent: list[dict[Lane, float]] = [{}]
    step_of = STRATEGIES[job.strategy]
    fastest = sim.speeds.index(max(sim.speeds))

    def site(number: int) -> Process:
        own_cycle = sim.every(number) if job.strategy == "async-diloco" else cycle
        for step in itertools.count(1):
            sim.began[number] = sim.clock.now
            yield from step_of(sim, number, step)
            if step % own_cycle == 0:
                ends[number].append(sim.clock.now)
                if number == fastest:
                    states.append(sim.state())
                    sent.append(dict(sim.sent_bytes))

    for number in sim.sites:
        sim.clock.start(site(number))
    for count in range(2, 65):
        sim.clock.run_until(lambda count=count: all(len(times) > count for times in ends))
        for period in range(1, min(31, count // 2) + 1):
            if bits_repeat(sent, period, count) and repeats(
                ends, states, period, count, job.strategy != "decoupled"
            ):
                return mean(ends[fastest], sent, count - period, count, cycle, job, True)
    return mean(ends[fastest], sent, 32, 64, cycle, job, False)


def cycle_of(job: Job) -> int:
    options = job.options
    return math.lcm(options.get("every", 1), options.get("every_regions", 1), options.get("accumulate", 1))


def bits_repeat(sent: list[dict[Lane, float]], period: int, count: int) -> bool:
    first, middle, last = (sent[count - 2 * period], sent[count - period], sent[count])
    return all(
        equal(size - middle.get(lane, 0), middle.get(lane, 0) - first.get(lane, 0)) for lane, size in last.items()
    )


def repeats(
    ends: list[list[float]], states: list[tuple[float, int]], period: int, count: int, alike: bool
) -> bool:
    """Return whether the last cycles take as long as those before, at all sites alike, and as much is under way."""
    pairs = zip(states[count - period : count + 1], states[count - 2 * period : count - period + 1], strict=True)
    if not all(len(now) == len(before) and all(map(equal, now, before)) for now, before in pairs):
        return False
    lengths = []
    for times in ends:
        durations = [end - begin for begin, end in itertools.pairwise(times[: count + 1])]
        if not all(map(equal, durations[-period:], durations[-2 * period : -period])):
            return False
        lengths.append(times[count] - times[count - period])
    return not alike or equal(min(lengths), max(lengths))


def equal(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-9)


def mean(
    ends: list[float], sent: list[dict[Lane, float]], begin: int, end: int, cycle: int, job: Job, steady: bool
) -> Step:
    steps = cycle * (end - begin)
    return Step(
        (ends[end] - ends[begin]) / steps,
        {lane: (size - sent[begin].get(lane, 0.0)) * 8 * job.scale / steps for lane, size in sent[end].items()},
        steady,
    )
