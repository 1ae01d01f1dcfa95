"""Twin of ``decoupled``: sites never wait for each other; a server merges what a quorum has delivered."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from testbed.core.training.codec_bytes import dense_bytes
from testbed.core.training.exchange import Exchange
from testbed.core.training.parameter_server import HOME, ParameterServerTwin, faults_of_versions
from testbed.core.training.periodic_exchange import Fragment, cut, too_many_fragments
from testbed.core.training.site_process import Await, Begin, Process, Sample, StepDone, Steps, Time, in_order
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, choice, whole
from testbed.core.training.twin import Mistake, Option
from testbed.core.units import parse_duration_s

__all__ = ["Decoupled"]


HELD = 4
"""Pushes of a fragment that are not merged, at most; then a site withholds the next one (agents' ``decoupled``)."""

_SAMPLED = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Steps of a push whose ages are taken, as shares of the time since the push before."""

_Trips: TypeAlias = Mapping[tuple[str, int], tuple[Exchange, Exchange, tuple[Exchange, ...]]]


@dataclass(frozen=True)
class _Merge:
    """A merge: the pushes that it took, by site and number, and the last one of each site that is in the outer
    parameters."""

    taken: tuple[tuple[str, int], ...]
    included: Mapping[str, int]


class Decoupled(ParameterServerTwin):
    """A fragment is pushed when it is due, and after the last step.

    How often a fragment is merged depends on who is late. The operations are those of sites at the same pace: all
    deliver within the grace time, and each fragment is merged once in H steps. What is committed is what has had a
    whole H steps to be merged; exactly known only at the end.
    """

    name = "decoupled"
    summary = "never wait: a syncer merges fragments once K of M sites delivered, latecomers count in the next round"
    source = "after Douillard et al. 2025, arXiv:2501.18512, and Liu et al. 2024, arXiv:2401.09135"
    options = (
        EVERY,
        Option("fragments", 1, whole(1, 10_000), "P: parts of the model, each with every P-th layer"),
        Option("quorum", 0, whole(0, 1000), "K: sites that must have delivered; 0: more than half"),
        Option("grace", 0.05, parse_duration_s, "time for the other sites once the quorum has delivered"),
        Option("bits", 32, choice(32, 16, 8, 4), "of each value on the fiber: float32, bfloat16, int8 or E3M0"),
        OUTER_RATE,
        OUTER_MOMENTUM,
        HOME,
    )
    agreed_bytes = 8
    waits = False

    def mistakes(self) -> Sequence[Mistake]:
        mistakes = [*super().mistakes()]
        sites, quorum = len(self.layout.site_names), int(self.values["quorum"])
        if quorum > sites:
            message = f"a quorum of {quorum} among {sites} sites is never there"
            mistakes.append(Mistake("quorum", message, f"write at most {sites}"))
        return [*mistakes, *too_many_fragments(self.layout, len(self.fragments))]

    @cached_property
    def fragments(self) -> tuple[Fragment, ...]:
        return cut(self.layout, int(self.values["fragments"]), self.cycle)

    @property
    def quorum(self) -> int:
        """K."""
        return int(self.values["quorum"]) or len(self.layout.site_names) // 2 + 1

    def processes(self) -> Mapping[str, Process]:
        sites = self.layout.site_names
        sizes = [fragment.elements for fragment in self.fragments]
        trips = {(site, number): self.trip(site, size) for site in sites for number, size in enumerate(sizes)}
        merges: list[list[_Merge]] = [[] for _ in sizes]
        spans: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in trips}
        learners = {site: self._learner(site, trips, merges, spans) for site in sites}
        servers = {f"{self.home}/{number}": self._server(number, trips, merges[number]) for number in range(len(sizes))}
        return {**learners, **servers}

    def _learner(
        self,
        site: str,
        trips: _Trips,
        merges: Sequence[list[_Merge]],
        spans: Mapping[tuple[str, int], list[tuple[float, float]]],
    ) -> Process:
        """Train, push each fragment when it is due, adopt what was merged at the end of a step; never wait.

        ``spans``: by site and fragment, in which time the steps of each of its pushes ended.
        """
        adopted, before = [0] * len(merges), 0
        for step in self._looks():
            if step - before > 1:
                yield Steps(before + 1, step - before - 1, lambda number: self.quiet_step(site, number))
            yield from self.train_alone(site, step)
            before, now_s = step, (yield Time())
            for fragment, part in enumerate(self.fragments):
                if not part.due(step):
                    continue
                merged, own = merges[fragment], spans[site, fragment]
                included = merged[adopted[fragment] - 1].included[site] if adopted[fragment] else 0
                yield Sample("withheld", float(len(own) - included >= HELD))
                if len(own) - included < HELD:
                    own.append((own[-1][1] if own else 0.0, now_s))
                    yield Begin(("push", site, fragment, len(own)), trips[site, fragment][0])
            for fragment, merged in enumerate(merges):
                while adopted[fragment] < len(merged):
                    number = adopted[fragment] + 1
                    if not (yield Await((("answer", site, fragment, number),), quorum=0)):
                        break
                    adopted[fragment] = number
                    yield from in_order(trips[site, fragment][2], ("adopt", site, fragment, number))
                    for other, push in merged[number - 1].taken:
                        if other != site:
                            since_s, until_s = spans[other, fragment][push - 1]
                            for share in _SAMPLED:
                                yield Sample("age_s", now_s - since_s - share * (until_s - since_s))
            yield StepDone()

    def _looks(self) -> Iterator[int]:
        """Yield the steps after which a site looks what has arrived: those that push, and 50 of a cycle or more."""
        every, interval = self.cycle, max(1, self.cycle // 50)
        due = {fragment.offset or every for fragment in self.fragments}
        looks = sorted({*range(interval, every + 1, interval), *due})
        for cycle in itertools.count():
            yield from (cycle * every + look for look in looks)

    def _server(self, fragment: int, trips: _Trips, merges: list[_Merge]) -> Process:
        """Merge a fragment once a quorum has delivered and the grace time is over; latecomers are in the next merge."""
        sites = self.layout.site_names
        included = dict.fromkeys(sites, 0)
        while True:
            wanted = tuple(("push", site, fragment, included[site] + 1) for site in sites)
            yield Await(wanted, self.quorum, float(self.values["grace"]))
            taken = []
            for site in sites:
                while (yield Await((("push", site, fragment, included[site] + 1),), quorum=0)):
                    included[site] += 1
                    taken.append((site, included[site]))
            merges.append(_Merge(tuple(taken), dict(included)))
            yield Sample("merge_s", (yield Time()))
            for site in sites:
                yield Begin(
                    ("answer", site, fragment, len(merges)), replace(trips[site, fragment][1], sites=(self.home,))
                )

    def pushes(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        return [
            (fragment.number, fragment.elements)
            for fragment in self.fragments
            if fragment.due(step) or step == self.layout.steps
        ]

    def elements(self, fragment: int | None) -> int:
        return self.fragments[fragment or 0].elements

    def slice_bytes(self, elements: int) -> float:
        return float(dense_bytes(-(-elements // self.layout.slices), int(self.values["bits"])))

    @property
    def most_answers(self) -> float:
        """A merge takes K pushes, of which the sites make M in a round: what comes late is in another merge."""
        return len(self.layout.site_names) / self.quorum

    def committed(self, step: int) -> float:
        if step >= self.layout.steps:
            return float(self.layout.steps)
        merged = [fragment.elements * max(0, fragment.last_due(step - self.cycle)) for fragment in self.fragments]
        return sum(merged) / max(1, self.layout.elements)

    def versions(self, step: int) -> int:
        """Return how many versions there are after ``step``: certain at the end, and the least before."""
        last = self.layout.steps
        if step >= last:
            return sum(fragment.count(last - 1) + 1 for fragment in self.fragments)
        return sum(fragment.count(step - self.cycle) for fragment in self.fragments)

    @property
    def cycle(self) -> int:
        return int(self.values["every"])

    @property
    def longest_gap(self) -> int:
        """Only at a checkpoint and at the end one site waits for another, however far behind that is."""
        return self.layout.steps

    def wrong_exchanges(self, records: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        return faults_of_versions(records)
