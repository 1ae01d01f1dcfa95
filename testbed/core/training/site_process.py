"""What the sites of a job do, as processes: compute, begin exchanges, await them. Pure.

A process is a generator of actions. The simulator (``core/prediction/simulator.py``) determines how long compute and
exchanges take; a process defines only their order. :class:`Schedule` makes processes from the operations of a twin;
twins whose sites do not step together, or exchange inside their passes, write their own (``Twin.processes``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from testbed.core.training.exchange import Exchange, exchanges
from testbed.core.training.strategy_operation import Operation

if TYPE_CHECKING:
    from testbed.core.training.twin import Twin

__all__ = [
    "FORWARD_SHARE",
    "Action",
    "Await",
    "Begin",
    "Compute",
    "Keyed",
    "Process",
    "Sample",
    "Schedule",
    "StepDone",
    "StepExchanges",
    "Steps",
    "Time",
    "in_order",
    "passes",
]

FORWARD_SHARE: Final = 1 / 3
"""Share of the forward pass in a step: 2 N of 6 N operations a token (Kaplan et al., arXiv:2001.08361)."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Compute for ``share`` of the site's step."""

    share: float


@dataclass(frozen=True, slots=True)
class Begin:
    """Join ``exchange`` after the one with the key ``after`` has arrived, without waiting.

    ``key`` names it for all sites; it starts when all of its sites have joined.
    """

    key: Hashable
    exchange: Exchange
    after: Hashable | None = None


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until all ``keys`` have arrived; the answer is the set of the keys that have.

    With ``quorum`` wait for so many, and then ``grace_s`` seconds for the others. 0: do not wait.
    """

    keys: tuple[Hashable, ...]
    quorum: int | None = None
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Do ``count`` equal steps from ``first`` on, which exchange nothing between sites.

    ``body`` makes one from its number.
    """

    first: int
    count: int
    body: Callable[[int], Process]


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step is over."""


@dataclass(frozen=True, slots=True)
class Time:
    """Ask for the time; the answer is in seconds."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Record a ``value`` of the quantity ``name``."""

    name: str
    value: float


Action: TypeAlias = Compute | Begin | Await | Steps | StepDone | Time | Sample
Process: TypeAlias = Generator[Action, Any, None]


def in_order(sequence: Sequence[Exchange], key: Hashable) -> Process:
    """Do exchanges one after the other, and wait for each."""
    for number, exchange in enumerate(sequence):
        yield Begin((key, number), exchange)
        yield Await(((key, number),))


Keyed: TypeAlias = tuple[tuple[Hashable, Exchange], ...]


@dataclass(frozen=True)
class StepExchanges:
    """The exchanges of a step with their keys, in the order in which a site does them.

    Attributes:
        beside: parts of gradients, beside the backward pass, each stage after the one before.
        inner: before the inner optimizer; the site waits for each.
        updates: what each site computes after it, without an operation: where an exchange follows the inner optimizer.
        begun: for a later step.
        outer: after the inner optimizer; the site waits for each.
    """

    beside: Keyed
    inner: Keyed
    updates: Keyed
    begun: Keyed
    outer: Keyed

    def of(self, site: str) -> StepExchanges:
        """Return those in which ``site`` takes part."""
        every = (self.beside, self.inner, self.updates, self.begun, self.outer)
        return StepExchanges(*(tuple(keyed for keyed in some if site in keyed[1].sites) for some in every))


class Schedule:
    """The steps of a twin's job by their exchanges.

    Args:
        endless: leave out how the job begins and ends.
    """

    def __init__(self, twin: Twin, *, endless: bool = True) -> None:
        self.twin, self._endless = twin, endless
        self._steps: dict[int, StepExchanges] = {}
        self._made: dict[tuple[Operation, ...], StepExchanges] = {}

    def processes(self) -> dict[str, Process]:
        """Return the process of each site."""
        return {site: self._process(site) for site in self.twin.layout.site_names}

    @cached_property
    def together(self) -> bool:
        """Whether all sites take part in each exchange between sites."""
        sites = len(self.twin.layout.site_names)
        steps = [self.step(number) for number in self.twin.busy_steps()]
        between = (
            exchange
            for step in steps
            for some in (step.beside, step.inner, step.begun, step.outer)
            for _, exchange in some
        )
        return all(len(exchange.sites) in (1, sites) for exchange in between)

    def step(self, number: int) -> StepExchanges:
        """Return the exchanges of a step, from 1."""
        if self._endless:
            number = self.twin.cycle + 1 + (number - 1) % self.twin.cycle
        if number not in self._steps:
            operations = tuple(self.twin.operations(number))
            made = self._made.get(operations)
            if made is None:
                made = self._made[operations] = self._make(operations)
            self._steps[number] = made
        return self._steps[number]

    def _make(self, operations: Sequence[Operation]) -> StepExchanges:
        numbered = list(enumerate(exchanges(operations, self.twin.layout.sites)))
        beside = [(key, exchange) for key, exchange in numbered if exchange.first.parts]
        staged = len({exchange.crosses for _, exchange in beside}) > 1
        parts = tuple(
            (key, replace(exchange, parts=exchange.first.parts, slots=1 if staged and not exchange.crosses else None))
            for key, exchange in beside
        )
        begun = tuple((key, exchange) for key, exchange in numbered if exchange.first.lands)
        awaited = [
            (key, exchange) for key, exchange in numbered if not exchange.first.lands and not exchange.first.parts
        ]
        inner = tuple((key, exchange) for key, exchange in awaited if exchange.first.before_update)
        outer = tuple((key, exchange) for key, exchange in awaited if not exchange.first.before_update)
        sites = self.twin.layout.site_names if begun or outer else ()
        computes = tuple(
            sorted({(str(exchange.first.kind), exchange.first.lands > 0) for _, exchange in (*begun, *outer)})
        )
        updates = tuple((f"update of {site}", Exchange((), (site,), computes=computes)) for site in sites)
        return StepExchanges(parts, inner, updates, begun, outer)

    def _busy(self) -> Iterator[int]:
        """Yield the steps that exchange more than others, in order."""
        cycle = self.twin.cycle
        if self._endless:
            for number in itertools.count():
                yield from (number * cycle + step for step in self.twin.busy_steps())
        else:
            yield from range(1, self.twin.layout.steps + 1)

    def _process(self, site: str) -> Process:
        before, flying = 0, dict[int, list[Hashable]]()
        last = None if self._endless else self.twin.layout.steps
        for number in self._busy():
            if number - before > 1:
                yield Steps(before + 1, number - before - 1, lambda step: self._body(step, site, {}, None))
            yield from self._body(number, site, flying, last)
            before = number

    def _body(self, number: int, site: str, flying: dict[int, list[Hashable]], last: int | None) -> Process:
        """Do one step. ``flying``: keys of what lands, by step; ``last``: after this step everything lands."""
        step = self.step(number).of(site)
        yield from passes(step.beside, number, self.twin.pace(site))
        yield from _one_by_one((*step.inner, *step.updates), number)
        after: dict[object, Hashable] = {}
        for index, exchange in step.begun:
            # The turns of one exchange follow one another.
            thread = (exchange.first.group, exchange.first.fragment)
            yield Begin((number, index), exchange, after.get(thread))
            after[thread] = (number, index)
            flying.setdefault(number + exchange.first.lands, []).append((number, index))
        landed = [key for lands in sorted(flying) if lands <= number or number == last for key in flying[lands]]
        for lands in [lands for lands in flying if lands <= number or number == last]:
            del flying[lands]
        if landed:
            yield Await(tuple(landed))
        yield from _one_by_one(step.outer, number)
        yield StepDone()


def _one_by_one(sequence: Keyed, number: int) -> Process:
    for index, exchange in sequence:
        yield Begin((number, index), exchange)
        yield Await(((number, index),))


def passes(stages: Keyed, name: Hashable, steps: float = 1.0) -> Process:
    """Compute a step; exchange its gradients in parts beside the backward pass, each stage after the one before.

    Args:
        name: of the step, which the keys of the exchanges begin with.
        steps: inner steps that it takes.
    """
    if not stages:
        yield Compute(steps)
        return
    yield Compute(FORWARD_SHARE * steps)
    parts, keys = stages[0][1].parts, list[Hashable]()
    for part in range(parts):
        yield Compute((1 - FORWARD_SHARE) * steps / parts)
        after: Hashable | None = None
        for index, exchange in stages:
            key = (name, index, part)
            yield Begin(key, exchange, after)
            after = key
        keys.append(after)
    yield Await(tuple(keys))
