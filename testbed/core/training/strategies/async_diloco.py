"""Twin of ``async-diloco``: sites push pseudo-gradients to a server when they have them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed.core.training.parameter_server import HOME, ParameterServerTwin, faults_of_versions
from testbed.core.training.site_process import Await, Begin, Process, StepDone, Steps, in_order
from testbed.core.training.strategy_options import EVERY, OUTER_MOMENTUM, OUTER_RATE, WEIGH, choice, share, whole
from testbed.core.training.twin import Mistake, Option

__all__ = ["AsyncDiloco"]


class AsyncDiloco(ParameterServerTwin):
    """A site pushes after every H steps of its own, and goes on while at most ``window`` pushes are unanswered.

    What is committed and how many versions there are is known exactly only at the end; before, these are the least that
    is certain once all ranks have finished a step: all but the ``window`` last pushes of each site have been applied.
    """

    name = "async-diloco"
    summary = "push to a server after H steps and train on; wait only if the lag would exceed the staleness"
    source = "Liu et al. 2024, Asynchronous Local-SGD, arXiv:2401.09135, Algorithm 3"
    options = (
        EVERY,
        Option(
            "staleness", 0, whole(0, 1000), "σ: versions that a push may be late; 0: four times the number of sites"
        ),
        OUTER_RATE,
        OUTER_MOMENTUM,
        Option(
            "outer.delay", 0, whole(0, 1000), "N: pushes between two updates of the momentum; 0: the number of sites"
        ),
        Option("outer.activation", 0.0, share(0.0, 1.0), "c: share of the momentum in the pushes between, at most 1/N"),
        Option("pace", "steps", choice("steps", "time"), "time: H of a site in proportion to its speed"),
        WEIGH,
        HOME,
    )
    agreed_bytes = 16

    def mistakes(self) -> Sequence[Mistake]:
        sites, delay = len(self.layout.site_names), self._delay
        mistakes = [*super().mistakes()]
        if self.window < 0:
            message = f"staleness {self.staleness} is too small for {sites} sites: each push makes a version"
            mistakes.append(
                Mistake("staleness", message, f"write at least {sites - 1}, or {2 * sites - 1} to train on meanwhile")
            )
        if self.values["outer.activation"] > 1 / delay:
            message = (
                f"outer.activation {self.values['outer.activation']:g} is more than 1/{delay}, one over outer.delay"
            )
            mistakes.append(Mistake("outer.activation", message, f"write at most {1 / delay:.4g}"))
        return mistakes

    @property
    def staleness(self) -> int:
        """σ."""
        return int(self.values["staleness"]) or 4 * len(self.layout.site_names)

    @property
    def window(self) -> int:
        """Pushes that may be unanswered while a site trains on."""
        return (self.staleness + 1) // len(self.layout.site_names) - 1

    def every(self, site: str) -> int:
        """Return H of a site."""
        every = int(self.values["every"])
        return every if self.values["pace"] == "steps" else max(1, round(every * self.layout.speeds.get(site, 1.0)))

    @property
    def cycle(self) -> int:
        return int(self.values["every"])

    def cycle_of(self, site: str) -> int:
        return self.every(site)

    def processes(self) -> Mapping[str, Process]:
        return {site: self._process(site) for site in self.layout.site_names}

    def _process(self, site: str) -> Process:
        """Push after every H steps; go on while at most ``window`` pushes are unanswered, of any site."""
        every, (push, answer, adopt) = self.every(site), self.trip(site, self.layout.elements)
        for number in itertools.count(1):
            before = (number - 1) * every
            if every > 1:
                yield Steps(before + 1, every - 1, lambda step: self.quiet_step(site, step))
            yield from self.train_alone(site, before + every)
            yield Begin(("push", site, number), push)
            yield Begin(("answer", site, number), answer, after=("push", site, number))
            answered = number - self.window
            if answered > 0:
                yield Await(tuple(("answer", name, answered) for name in self.layout.site_names))
            # Also before the first answer, so that all rounds are alike.
            yield from in_order(adopt, ("adopt", site, number))
            yield StepDone()

    def pushes(self, site: str, step: int) -> Sequence[tuple[int | None, int]]:
        due = step % self.every(site) == 0 or step == self.layout.steps
        return ((None, self.layout.elements),) if due else ()

    @property
    def most_pushes(self) -> float:
        """A site whose speed is not declared may push after each step."""
        return 1.0 if self.values["pace"] == "steps" or self.layout.speeds else float(self.values["every"])

    def committed(self, step: int) -> float:
        if step >= self.layout.steps:
            return float(self.layout.steps)
        counts = [self.every(site) for site in self.layout.site_names]
        return float(min(every * max(0, step // every - self.window) for every in counts))

    def versions(self, step: int) -> int:
        """Return how many versions there are after ``step``: certain at the end, and the least before."""
        counts = [self.every(site) for site in self.layout.site_names]
        if step >= self.layout.steps:
            return sum(-(-step // every) for every in counts)
        return sum(max(0, step // every - self.window) for every in counts)

    @property
    def longest_gap(self) -> int:
        """A site that is σ versions ahead may have to wait, at a checkpoint or at the end, until others caught up."""
        return (self.staleness + 1) * int(self.values["every"])

    def wrong_exchanges(self, records: Iterable[Mapping[str, Any]]) -> Sequence[str]:
        written = list(records)
        return [*faults_of_versions(written, self.staleness), *self._not_due(written)]

    def _not_due(self, records: Iterable[Mapping[str, Any]]) -> Iterable[str]:
        """Yield a sentence for each push that does not end with every H-th step or has more than H; the last may."""
        every = int(self.values["every"])
        for record in records if self.values["pace"] == "steps" else ():
            if record["what"] != "pushed" or "first" not in record:
                continue
            first, step = record["first"], record["step"]
            if step - first >= every or (step % every and not record.get("last")):
                name = f"push {record['push']} of {record['site']}"
                yield f"{name} has steps {first} to {step}; one is due every {every} steps"

    @property
    def _delay(self) -> int:
        return int(self.values["outer.delay"]) or len(self.layout.site_names)
