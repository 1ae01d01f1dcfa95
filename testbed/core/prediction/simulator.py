"""The one simulator: what a twin's processes cost, with given costs of exchanges. Pure.

Events are on one heap; those of one time run in the order in which they were scheduled, so a simulation is
deterministic. An exchange waits for its sites, holds a slot of the library, costs software, then each lane of its route
sends its bits, first in, first out, and then the last bits travel. Sites wait where their process awaits; such a wait
is split by what the exchange that ended it was doing at each moment (:class:`Parts`).

A simulation runs until its cycles repeat, so figures are those of the steady state; jobs that end are simulated from
their first step to their last, or until :data:`MOST_EVENTS`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

from testbed.core.training.exchange import Exchange
from testbed.core.training.site_process import Await, Begin, Compute, Process, StepDone, Steps, Time

__all__ = ["OWN_LANE", "Cost", "Costs", "Parts", "Simulated", "TooMany", "Transfer", "simulate"]

MOST_CYCLES: Final = 64
"""After so many cycles the mean of the latter half counts, though they do not repeat."""
MOST_EVENTS: Final = 200_000
_LONGEST_PERIOD: Final = 31
"""Cycles of a pattern that repeats, at most."""
_ALIKE: Final = 1e-9
"""Times that differ by no larger share are equal."""
OWN_LANE: Final = ""
"""Of an exchange whose bits are sent between those of others."""
_WATCHED: Final = 2
"""Of equal quiet steps so many are simulated; the others take as long as the last of them."""


@dataclass(frozen=True)
class Parts:
    """Where the time of a step goes, in seconds, beside compute.

    Attributes:
        waiting_s: another site has not come so far yet.
        propagation_s: bits travel: each sequential round of messages counts.
        serialization_s: the exchange's own bits are sent.
        queueing_s: the lane sends bits of other exchanges of the job.
        software_s: the library works.
        tcp_s: connections start slowly, or recover.
        unattributed_s: what a run measured beyond all of these.
    """

    waiting_s: float = 0.0
    propagation_s: float = 0.0
    serialization_s: float = 0.0
    queueing_s: float = 0.0
    software_s: float = 0.0
    tcp_s: float = 0.0
    unattributed_s: float = 0.0

    @property
    def total_s(self) -> float:
        return (
            self.waiting_s + self.propagation_s + self.serialization_s + self.queueing_s
            + self.software_s + self.tcp_s + self.unattributed_s
        )  # fmt: skip

    def __add__(self, other: Parts) -> Parts:
        return Parts(
            self.waiting_s + other.waiting_s,
            self.propagation_s + other.propagation_s,
            self.serialization_s + other.serialization_s,
            self.queueing_s + other.queueing_s,
            self.software_s + other.software_s,
            self.tcp_s + other.tcp_s,
            self.unattributed_s + other.unattributed_s,
        )

    def __mul__(self, factor: float) -> Parts:
        return Parts(
            self.waiting_s * factor,
            self.propagation_s * factor,
            self.serialization_s * factor,
            self.queueing_s * factor,
            self.software_s * factor,
            self.tcp_s * factor,
            self.unattributed_s * factor,
        )


@dataclass(frozen=True)
class Cost:
    """What one exchange costs.

    Attributes:
        software_s: of the library, all operations of the exchange that follow one another included.
        propagation_s: of all rounds of messages that follow one another.
        hidden_s: of these, while the lane sends.
        lanes: seconds for which each lane sends; :data:`OWN_LANE`: without waiting for other exchanges.
        bytes: that each lane carries; of what stays inside a site by its name.
        slots: how many exchanges of its group run at once; None for any number.
        cold_s: how much longer it takes if its connections were idle for ``cold_after_s``.
    """

    software_s: float
    propagation_s: float
    lanes: Mapping[str, float]
    bytes: Mapping[str, float]
    slots: int | None = None
    hidden_s: float = 0.0
    cold_s: float = 0.0
    cold_after_s: float = 0.0

    @property
    def alone_s(self) -> float:
        """Seconds that it takes by itself, its connections warm."""
        return self.software_s + self.propagation_s - self.hidden_s + max(self.lanes.values(), default=0.0)


class Costs(Protocol):
    """Costs of exchanges, and compute of a step of each site in seconds."""

    def of(self, exchange: Exchange) -> Cost: ...

    def step_s(self, site: str) -> float: ...


@dataclass(eq=False, slots=True)
class Transfer:
    """One exchange as it happens; times in seconds, None before.

    Attributes:
        after: the transfer that it follows.
        behind: the transfer whose slot it took over, if it waited for one.
        ready_s: all sites have come so far; started_s: it has a slot; software_s: the library is done.
        flowing_s: slow start is over; sent_s: the lanes have sent it, for the last ``serial_s`` of which its own bits.
        travels_s: from when on its rounds count, which the lane hides in part.
    """

    key: Hashable
    exchange: Exchange | None = None
    missing: int = -1
    after: Transfer | None = None
    behind: Transfer | None = None
    ready_s: float = 0.0
    started_s: float = 0.0
    software_s: float = 0.0
    flowing_s: float = 0.0
    sent_s: float = 0.0
    serial_s: float = 0.0
    travels_s: float = 0.0
    arrived_s: float | None = None
    awaited_by: list[Callable[[], None]] = field(default_factory=list)

    @property
    def queued_s(self) -> float:
        """Until when the lane sends other exchanges."""
        return min(max(self.flowing_s, self.sent_s - self.serial_s), self.travels_s)

    def parts(self, since_s: float, until_s: float) -> Parts:
        """Split the time between two moments by what this transfer was doing, or those before it that it waited for."""
        moments = (self.ready_s, self.started_s, self.software_s, self.flowing_s, self.queued_s, self.travels_s)
        ready_s, started_s, software_s, flowing_s, queued_s, travels_s = [
            min(max(moment_s, since_s), until_s) for moment_s in moments
        ]
        own = Parts(
            propagation_s=until_s - travels_s,
            serialization_s=travels_s - queued_s,
            queueing_s=queued_s - flowing_s,
            software_s=software_s - started_s,
            tcp_s=flowing_s - software_s,
        )
        if self.behind is not None and ready_s < started_s:
            own = own + self.behind.parts(ready_s, started_s)
        if since_s < ready_s:
            if self.after is not None and self.after.arrived_s is not None and self.after.arrived_s > since_s:
                own = own + self.after.parts(since_s, min(ready_s, self.after.arrived_s))
                since_s = self.after.arrived_s
            own = own + Parts(waiting_s=max(0.0, ready_s - since_s))
        return own


@dataclass(frozen=True)
class Simulated:
    """What a simulation found, of the site that was looked at, or of a mean step.

    Attributes:
        step_s, parts: of a mean step; ``compute_s``: of its compute.
        lane_bytes: that each lane carries in a mean step; of what stays inside a site by its name.
        steps: that the mean is over.
        steady: whether the cycles repeat, or the job has ended.
        samples: values of each quantity that processes recorded since the measurement began.
        transfers: all of them, in the order in which they arrived.
    """

    step_s: float
    compute_s: float
    parts: Parts
    lane_bytes: Mapping[str, float]
    steps: int
    steady: bool
    samples: Mapping[str, tuple[float, ...]]
    transfers: tuple[Transfer, ...] = ()

    @property
    def utilization(self) -> float:
        return self.compute_s / self.step_s

    def beyond(self, seconds: float) -> Simulated:
        """Return the outcome with ``seconds`` of unattributed time in a step; if negative, with less software."""
        software_s = min(0.0, max(seconds, -self.parts.software_s))
        beyond = Parts(software_s=software_s, unattributed_s=max(0.0, seconds))
        return replace(self, step_s=self.step_s + beyond.total_s, parts=self.parts + beyond)


class _Mark(NamedTuple):
    """The end of a step of a process, or of a stretch of steps.

    ``moved``, ``sampled``: how many transfers had arrived, and how many samples were taken, of all processes.
    """

    steps: int
    at_s: float
    parts: Parts
    moved: int
    sampled: int


class _State(NamedTuple):
    """Of sites that do not wait for each other, at the end of a cycle of one of them.

    ``phases_s``: of each site since when its step goes on, and how long the step before took. ``arrived``: which of the
    exchanges that each other process waits for have arrived.
    """

    phases_s: Sequence[tuple[float, float]]
    arrived: Sequence[tuple[bool, ...]]

    def repeats(self, before: _State, exact_s: float) -> bool:
        """Whether sites are at the same points of their steps as before, and as much has arrived."""
        for (since_s, step_s), (since_before_s, _) in zip(self.phases_s, before.phases_s, strict=True):
            apart_s = abs(since_s - since_before_s)
            # Where a step ends just now, rounding decides whether it counts as over.
            if min(apart_s, abs(step_s - apart_s)) > exact_s:
                return False
        return self.arrived == before.arrived


class _Terms(NamedTuple):
    """Values looked up once per exchange.

    ``pool``: its group and sites, which share slots; ``joining``: processes that join it; ``times``: for how many
    exchanges it stands: those inside the sites for which its site stands.
    """

    exchange: Exchange
    cost: Cost
    pool: tuple[str, ...]
    joining: int
    times: int


class _Account:
    """Steps and waits of a process, and its marks."""

    def __init__(self) -> None:
        self.steps = 0
        self.parts = Parts()
        self.marks = [_Mark(0, 0.0, self.parts, 0, 0)]


class TooMany(Exception):
    """A simulation would have too many events; the message says of what."""


class _Over(Exception):
    """The simulation has found what it was for."""


class _Simulation:
    def __init__(
        self, costs: Costs, done: Callable[[str], bool], stand_for: Mapping[str, int], late_as_waiting: bool
    ) -> None:
        self._costs, self._done, self._stand_for, self._late_as_waiting = costs, done, stand_for, late_as_waiting
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._transfers: dict[Hashable, Transfer] = {}
        self.ended = False
        self._lanes: defaultdict[str, float] = defaultdict(float)
        self._slots: dict[tuple[str, ...], list[int]] = {}
        self._queues: defaultdict[tuple[str, ...], deque[Transfer]] = defaultdict(deque)
        self._last_used: dict[str, float] = {}
        self._terms_of: dict[int, _Terms] = {}
        self.accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self.samples: list[tuple[str, float]] = []
        self.sent: list[Transfer] = []
        self.moved: list[tuple[Mapping[str, float], int]] = []
        """Bytes by lane, how often: of each transfer that arrived."""
        self._flying: dict[int, Transfer] = {}
        self._awaited: dict[str, list[Transfer]] = {}
        """What each process waits for."""

    def run(self, processes: Mapping[str, Process]) -> None:
        """Run until all processes have ended, or it is done."""
        try:
            for name, process in processes.items():
                self._start(name, process)
            for _ in range(MOST_EVENTS):
                if not self._heap:
                    self.ended = True
                    break
                self.now_s, _, action = heapq.heappop(self._heap)
                action()
        except _Over:
            pass

    def _at(self, time_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (time_s, next(self._order), action))

    def _start(self, name: str, process: Process, then: Callable[[], None] | None = None) -> None:
        site, account = name.partition("/")[0], self.accounts[name]

        def go_on(answer: object = None) -> None:
            self._awaited.pop(name, None)
            while True:
                try:
                    action = process.send(answer)
                except StopIteration:
                    if then is not None:
                        then()
                    return
                answer = None
                if isinstance(action, Compute):
                    self._at(self.now_s + action.share * self._costs.step_s(site), go_on)
                    return
                if isinstance(action, Begin):
                    self._begin(action)
                elif isinstance(action, Await):
                    keys = [self._transfer(key) for key in action.keys]
                    wanted = len(keys) if action.quorum is None else min(action.quorum, len(keys))
                    arrived = [transfer.key for transfer in keys if transfer.arrived_s is not None]
                    if len(arrived) < wanted or (wanted and action.grace_s):
                        self._awaited[name] = keys
                        self._wait(account, keys, wanted, action, go_on)
                        return
                    answer = set(arrived)
                elif isinstance(action, Steps):
                    self._quiet(name, action, go_on)
                    return
                elif isinstance(action, StepDone):
                    account.steps += 1
                    self._mark(account)
                    if self._done(name):
                        raise _Over
                elif isinstance(action, Time):
                    answer = self.now_s
                else:
                    self.samples.append((action.name, action.value))

        go_on()

    def _mark(self, account: _Account) -> None:
        mark = _Mark(account.steps, self.now_s, account.parts, len(self.moved), len(self.samples))
        account.marks.append(mark)

    def flying_s(self) -> list[float]:
        """Return since when each exchange that has not arrived is on its way, and until when lanes send it, from now.

        Both are equal where the simulation repeats. Where lanes fall behind, sites may go on as before for a while.
        """
        flying = self._flying.values()
        return [
            time_s - self.now_s for transfer in flying for time_s in (transfer.ready_s, transfer.sent_s or self.now_s)
        ]

    def state(self, sites: Sequence[str], others: Sequence[str]) -> _State:
        """Return where sites are in their steps, and what has arrived for other processes."""
        marks = [self.accounts[site].marks[-2:] for site in sites]
        return _State(
            [(self.now_s - last[-1].at_s, last[-1].at_s - last[0].at_s) for last in marks],
            [tuple(transfer.arrived_s is not None for transfer in self._awaited.get(name, ())) for name in others],
        )

    def _quiet(self, name: str, steps: Steps, then: Callable[[], None]) -> None:
        """Simulate the first of equal steps; the others take as long as the last of these."""
        account, watched, site = self.accounts[name], min(steps.count, _WATCHED), name.partition("/")[0]

        def body() -> Process:
            for number in range(steps.first, steps.first + watched):
                yield from steps.body(number)

        def rest() -> None:
            left = steps.count - watched
            if not left:
                then()
                return
            before, after = account.marks[-2:]
            took_s = after.at_s - before.at_s
            late = itertools.takewhile(lambda transfer: (transfer.arrived_s or 0.0) > before.at_s, reversed(self.sent))
            repeated = [transfer.exchange for transfer in late if transfer.exchange]

            def over() -> None:
                for exchange in repeated:
                    terms = self._terms(exchange)
                    if exchange.sites == (site,) and terms.cost.bytes.keys() <= {site}:
                        self.moved.append((terms.cost.bytes, left * terms.times))
                account.steps += left
                account.parts = account.parts + (after.parts + before.parts * -1.0) * left
                self._mark(account)
                then()

            self._at(self.now_s + left * took_s, over)

        self._start(name, body(), rest)

    def _transfer(self, key: Hashable) -> Transfer:
        transfer = self._transfers.get(key)
        if transfer is None:
            transfer = self._transfers[key] = Transfer(key)
        return transfer

    def _wait(
        self, account: _Account, keys: list[Transfer], wanted: int, action: Await, then: Callable[[object], None]
    ) -> None:
        since_s, over, grace = self.now_s, False, False
        needs_all = wanted == len(keys) and not action.grace_s
        outstanding = [transfer for transfer in keys if transfer.arrived_s is None]

        def finish() -> None:
            nonlocal over
            if over:
                return
            over = True
            arrived = [transfer for transfer in keys if transfer.arrived_s is not None]
            if self.now_s > since_s and action.quorum is None:
                last = max(arrived, key=lambda transfer: transfer.arrived_s or 0.0)
                exchange = last.exchange
                if self._late_as_waiting and exchange and exchange.operations and exchange.first.lands:
                    account.parts = account.parts + Parts(waiting_s=self.now_s - since_s)
                else:
                    account.parts = account.parts + last.parts(since_s, self.now_s)
            then({transfer.key for transfer in arrived})

        def look() -> None:
            nonlocal grace
            if needs_all:
                while outstanding and outstanding[-1].arrived_s is not None:
                    outstanding.pop()
                if not outstanding:
                    finish()
                return
            count = sum(transfer.arrived_s is not None for transfer in keys)
            if count == len(keys) or (count >= wanted and not action.grace_s):
                finish()
            elif count >= wanted and not grace:
                grace = True
                self._at(self.now_s + action.grace_s, finish)

        for transfer in tuple(outstanding):
            transfer.awaited_by.append(look)
        look()

    def _begin(self, action: Begin) -> None:
        transfer = self._transfer(action.key)
        if transfer.exchange is None:
            transfer.exchange = action.exchange
            transfer.missing = self._terms(action.exchange).joining
        if action.after is None:
            self._come(transfer)
            return
        before = self._transfer(action.after)

        def come() -> None:
            transfer.after = before
            self._come(transfer)

        if before.arrived_s is None:
            before.awaited_by.append(come)
        else:
            come()

    def _come(self, transfer: Transfer) -> None:
        transfer.missing -= 1
        if transfer.missing:
            return
        exchange = transfer.exchange
        assert exchange is not None
        transfer.ready_s = self.now_s
        self._flying[id(transfer)] = transfer
        terms = self._terms(exchange)
        if terms.cost.slots is None:
            self._go(transfer, terms)
            return
        free = self._slots.setdefault(terms.pool, [terms.cost.slots])
        if free[0] > 0:
            free[0] -= 1
            self._go(transfer, terms)
        else:
            self._queues[terms.pool].append(transfer)

    def _terms(self, exchange: Exchange) -> _Terms:
        terms = self._terms_of.get(id(exchange))
        if terms is None:
            sites, group = exchange.sites, exchange.first.group if exchange.operations else ""
            joining = sum(member in self._stand_for for member in sites)
            times = self._stand_for[sites[0]] if len(sites) == 1 else 1
            terms = _Terms(exchange, self._costs.of(exchange), (group, *sites), joining, times)
            self._terms_of[id(exchange)] = terms
        return terms

    def _go(self, transfer: Transfer, terms: _Terms) -> None:
        _, cost, pool, _, times = terms
        now_s = transfer.started_s = self.now_s
        transfer.software_s = transfer.flowing_s = now_s + cost.software_s
        if cost.cold_s and now_s - self._last_used.get(pool[0], -math.inf) > cost.cold_after_s:
            transfer.flowing_s += cost.cold_s
        transfer.sent_s = transfer.flowing_s
        for lane, serial_s in cost.lanes.items():
            free_s = 0.0 if lane == OWN_LANE else self._lanes[lane]
            sent_s = self._lanes[lane] = max(transfer.flowing_s, free_s) + serial_s
            if sent_s >= transfer.sent_s:
                transfer.sent_s, transfer.serial_s = sent_s, serial_s

        def arrive() -> None:
            self._last_used[pool[0]] = self.now_s
            if cost.slots is not None:
                queue = self._queues[pool]
                if queue:
                    successor = queue.popleft()
                    successor.behind = transfer
                    self._go(successor, self._terms(successor.exchange or terms.exchange))
                else:
                    self._slots[pool][0] += 1
            self.sent.append(transfer)
            self.moved.append((cost.bytes, times))
            self._arrive(transfer)

        arrives_s = transfer.sent_s + cost.propagation_s - cost.hidden_s
        transfer.travels_s = max(transfer.flowing_s, arrives_s - cost.propagation_s)
        if arrives_s > now_s:
            self._at(arrives_s, arrive)
        else:
            arrive()

    def _arrive(self, transfer: Transfer) -> None:
        transfer.arrived_s = self.now_s
        del self._flying[id(transfer)]
        waiting, transfer.awaited_by = transfer.awaited_by, []
        for go_on in waiting:
            go_on()


def simulate(
    processes: Mapping[str, Process],
    costs: Costs,
    *,
    cycle: int | None,
    cycles: Mapping[str, int] | None = None,
    site: str,
    stand_for: Mapping[str, int] | None = None,
    skip: int = 0,
    keep: bool = False,
    late_as_waiting: bool = False,
    free: bool = False,
    pace: float = 1.0,
) -> Simulated:
    """Return what a mean step of ``site`` takes.

    Args:
        processes: by site, or by a name that begins with ``site/``.
        stand_for: for how many sites that do the same the process of each site stands; None for itself.
        cycle: steps after which the exchanges recur; None for processes that end, whose first ``skip`` steps do not
            count.
        cycles: steps that each site makes in a cycle; by default as many as ``site``.
        keep: keep the transfers.
        pace: inner steps of ``site`` in a step.
        free: sites do not wait for each other, so that each has a pace of its own.
        late_as_waiting: do not split the wait for what was to have landed by now, as records do not.
    """
    names = [name for name in processes if "/" not in name]
    others = [name for name in processes if "/" in name]
    ended: list[tuple[_Mark, list[float]]] = []
    steps_by_site = cycles or dict.fromkeys(names, cycle or 1)
    states: list[_State] = []
    first_cycle, steady = 0, False

    def done(name: str) -> bool:
        """Look at each end of a cycle of ``site`` whether the last cycles repeat those before: at all sites alike, and
        with as much under way."""
        nonlocal first_cycle, steady
        account = simulation.accounts[site]
        if name != site or cycle is None or account.steps % cycle:
            return False
        ended.append((account.marks[-1], simulation.flying_s()))
        if free:
            states.append(simulation.state(names, others))
        count = len(ended)
        if count >= MOST_CYCLES:
            first_cycle = count // 2
            return True
        for period in range(1, min(_LONGEST_PERIOD, (count - 1) // 2) + 1):
            (first, _), (middle, before), (last, after) = (ended[-1 - back * period] for back in (2, 1, 0))
            exact_s, took_s = _ALIKE * last.at_s, last.at_s - middle.at_s
            if (
                abs(took_s - (middle.at_s - first.at_s)) <= exact_s
                and last.moved - middle.moved == middle.moved - first.moved
                and last.sampled - middle.sampled == middle.sampled - first.sampled
                and len(before) == len(after)
                and all(abs(one - other) <= exact_s for one, other in zip(before, after, strict=True))
                and (
                    states[-1].repeats(states[-1 - period], exact_s)
                    if free
                    else _alike(simulation.accounts, {name: period * steps_by_site[name] for name in names}, took_s)
                )
            ):
                first_cycle, steady = count - period, True
                return True
        return False

    simulation = _Simulation(costs, done, stand_for or dict.fromkeys(names, 1), late_as_waiting)
    simulation.run(processes)
    account = simulation.accounts[site]
    by_step = {mark.steps: mark for mark in account.marks}
    if cycle is None:
        first, steady = (skip if skip < account.steps else 0), simulation.ended
    else:
        first = first_cycle * cycle if steady or len(ended) >= MOST_CYCLES else account.steps // 2
        first = max((step for step in by_step if step <= first), default=0)
    if not account.steps:
        raise TooMany(f"a step has more than {MOST_EVENTS} events")
    before, after = by_step[first], by_step[account.steps]
    steps = account.steps - first
    lane_bytes: defaultdict[str, float] = defaultdict(float)
    for moved, times in simulation.moved[before.moved : after.moved]:
        for lane, byte_count in moved.items():
            lane_bytes[lane] += times * byte_count / steps
    samples: defaultdict[str, list[float]] = defaultdict(list)
    for name, value in simulation.samples[before.sampled : after.sampled]:
        samples[name].append(value)
    return Simulated(
        step_s=(after.at_s - before.at_s) / steps,
        compute_s=pace * costs.step_s(site),
        parts=(after.parts + before.parts * -1.0) * (1 / steps),
        lane_bytes=dict(lane_bytes),
        steps=steps,
        steady=steady,
        samples={name: tuple(values) for name, values in samples.items()},
        transfers=tuple(simulation.sent) if keep else (),
    )


def _alike(accounts: Mapping[str, _Account], steps: Mapping[str, int], took_s: float) -> bool:
    """Whether all sites took as long for their last ``steps``: sites that wait for each other do in the end."""
    for name, count in steps.items():
        marks = accounts[name].marks
        last = marks[-1]
        since_s = next((mark.at_s for mark in reversed(marks) if mark.steps == last.steps - count), None)
        if since_s is None or abs((last.at_s - since_s) - took_s) > 1e-6 * took_s:
            return False
    return True
