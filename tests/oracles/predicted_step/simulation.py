"""Exchanges on a network, and the parts of a step that strategies share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracles.predicted_step.events import Clock, Process, Signal
from oracles.predicted_step.job import Job, Lane, Rules
from oracles.predicted_step.operations import Network, Operation, beside

Stage = Callable[[], Signal]
"""Begins an exchange."""


@dataclass
class Group:
    """Collectives that share slots."""

    slots: int
    running: int = 0
    waiting: deque[Callable[[], None]] = field(default_factory=deque)


class Simulation:
    """Lanes, groups, and what sites have begun. Sizes are bytes of the lab."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self.job, self.rules, self.clock = job, rules, Clock()
        self.sites = range(len(job.ranks))
        self.speeds = tuple(job.speeds) or (1.0,) * len(job.ranks)
        self.slices = min(job.ranks)
        self.model_bytes = 4 * job.parameters / job.scale
        self.network = Network(job.fibers, len(job.ranks), rules)
        self.free_at: dict[Lane, float] = {}
        self.sent_bytes: dict[Lane, float] = {}
        self.groups: dict[object, Group] = {}
        self.begun: dict[object, tuple[set[int], Signal]] = {}
        self.counts: dict[object, int] = {}
        self.under_way = 0
        self.kept: dict[Any, Any] = {}
        """What a strategy keeps from step to step."""

    @property
    def all_ranks(self) -> list[int]:
        """The site of each rank."""
        return [site for site in self.sites for _ in range(self.job.ranks[site])]

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def begin(
        self, site: int, name: object, sites: Sequence[int], operation: Operation, slots: int | None = None
    ) -> Signal:
        """Begin an exchange of sites at one of them; the signal fires when it has arrived."""
        number = self.counts[name, site] = self.counts.get((name, site), 0) + 1
        begun, arrived = self.begun.setdefault((name, number), (set(), Signal()))
        begun.add(site)
        if len(begun) == (len(sites) if self.rules.starts_with_last_site else 1):
            self.exchange(name, operation, slots).then(arrived.fire)
        if len(begun) == len(sites):
            del self.begun[name, number]
        return arrived

    def exchange(self, name: object, operation: Operation, slots: int | None = None) -> Signal:
        """Start an operation of a group."""
        arrived = Signal()
        group = self.groups.setdefault(name, Group(slots or self.rules.collective_slots))
        takes_slot = operation.takes_slot or self.rules.messages_take_slots
        self.under_way += 1

        def enter() -> None:
            group.running += takes_slot
            self.clock.at(self.arrival_s(operation, group.slots), leave)

        def leave() -> None:
            self.under_way -= 1
            group.running -= takes_slot
            if takes_slot and group.waiting:
                group.waiting.popleft()()
            arrived.fire()

        if takes_slot and group.running >= group.slots:
            group.waiting.append(enter)
        else:
            enter()
        return arrived

    def arrival_s(self, operation: Operation, slots: int) -> float:
        """Put the bytes of an operation that starts now on its lanes, and return when it arrives."""
        ready_s = self.clock.now + operation.software_s
        sending_s = {
            lane: 8 * size * self.job.scale / self.network.fiber(lane).rate_bps
            for lane, size in operation.lanes.items()
        }
        lane_s = max(sending_s.values(), default=0.0)
        alone_s = operation.software_s + operation.rounds.all_s + lane_s
        interleaves = operation.takes_slot and slots == 2 and 2 * lane_s <= alone_s and self.rules.interleaves
        sent_s = ready_s
        for lane, size in operation.lanes.items():
            self.sent_bytes[lane] = self.sent_bytes.get(lane, 0.0) + size
            begins_s = ready_s if interleaves else max(ready_s, self.free_at.get(lane, 0.0))
            sent_s = max(sent_s, begins_s + sending_s[lane])
            if not interleaves:
                self.free_at[lane] = begins_s + sending_s[lane]
        return sent_s + operation.rounds.behind_lane_s(lane_s)

    def in_site(self, site: int, kind: str, size: float, *, name: str = "site", slots: int | None = None) -> Signal:
        """Begin an operation of the ranks of a site; the signal has fired if the site has one rank."""
        ranks = self.job.ranks[site]
        if ranks == 1:
            return Signal(fired=True)
        return self.begin(site, (name, site), [site], self.network.operation(kind, [site] * ranks, size), slots)

    # -- parts of a step ---------------------------------------------------------------------------------------------

    def compute_s(self, site: int) -> float:
        """Return the compute of a step; with pace=time all sites compute as long as the slowest one."""
        paced = self.job.options.get("pace") == "time" and self.job.strategy != "async-diloco"
        return self.job.compute_s / (min(self.speeds) if paced else self.speeds[site])

    def passes(self, site: int, parts: int, stages: Sequence[Stage]) -> Process:
        """Compute both passes; the stages of each part go on beside the backward pass, which ends when they have."""
        yield self.compute_s(site) / 3
        ends = []
        for _ in range(parts):
            yield 2 * self.compute_s(site) / 3 / parts
            ends.append(self.clock.start(in_order(stages, self.rules.stages_follow)))
        yield from ends

    def local_step(self, site: int) -> Process:
        """A step with the mean in the site beside the backward pass."""
        ranks = self.job.ranks[site]
        if ranks == 1:
            yield self.compute_s(site)
            return
        operation = self.network.operation("all_reduce", [site] * ranks, self.model_bytes / 8)
        if self.job.options.get("pace") == "time" and self.job.strategy != "async-diloco":
            operation = operation.repeated(round(self.speeds[site] / min(self.speeds)))
        yield from self.passes(site, 8, [lambda: self.begin(site, ("site", site), [site], operation)])

    def across(self, site: int, size: float, name: object = "across") -> list[Stage]:
        """Return the stages of the sum across sites, of slices of ``size`` bytes."""
        home = self.job.options.get("aggregate_at", "")
        if home == "":
            total = self.network.sum(self.sites, self.slices, size)
            return [lambda: self.begin(site, name, self.sites, total)]
        there, back = (
            self.messages([pair for other in self.sites if other != home for pair in [(other, home)[::turn]]], size)
            for turn in (1, -1)
        )
        return [
            lambda: self.begin(site, (name, "there"), self.sites, there),
            lambda: self.begin(site, (name, "back"), self.sites, back),
        ]

    def messages(self, pairs: Sequence[Sequence[int]], size: float) -> Operation:
        """Return messages of every slice between pairs of sites, all at once."""
        return beside([self.network.operation("send", pair, size) for pair in pairs] * self.slices)

    def gather(self, site: int, size: float) -> Signal:
        """Gather slices that are together ``size`` bytes in a site, where each rank has a part as large as a slice."""
        return self.in_site(site, "all_gather", size * self.job.ranks[site] / self.slices)


def in_order(stages: Sequence[Stage], follow: bool = True) -> Process:
    """Begin stages one after the other, each when the one before has arrived, unless ``follow`` is false."""
    signals = []
    for stage in stages:
        signal = stage()
        if follow:
            yield signal
        else:
            signals.append(signal)
    yield from signals
