"""The critical path of each step, in parts that add up to it: where did the time of a step go? Pure.

The critical rank of a step is the one that ended it last: the step lasted as long as that rank's did. Its time is in
exactly one part each, none of them negative:

==================  ==================================================================================================
part                what the critical rank did
==================  ==================================================================================================
compute             forward, backward, optimizer: all that the step's record calls compute
peer wait           its operation had begun, but not yet on the last rank that takes part in it
late fragments      a fragment that was to have arrived by then had not (``late_s`` of a step record)
propagation         one-way delays of the fiber that follow one another in the exchange (``step_costs.py``)
serialization       bytes of the exchange over the certified payload rate, in the busiest direction
TCP recovery        what the exchange took longer than in steps without retransmission; and slow start after idling
software            operations inside the site, and the library's work for the exchange, from the medians of its
                    operations (``operation_times.py``)
unattributed        none of these: the outer optimizer, codecs, the scheduler, and what the model of a fiber lacks
==================  ==================================================================================================

Communication that compute hides is not on the path. What is exposed of an exchange is its end, so its propagation
counts first, then its serialization; each up to what the twin and the certificate say. Recovery is judged by steps
alike: those whose twin says the same operations.

Exposed time is from ``t_ready`` to ``t_sync`` (inside the backward pass) and from ``t_stepped`` to ``t_end`` (after the
inner optimizer): two *windows*. With records of operations, waits are those of the operations, and what a rank stood
still for inside its forward and backward passes (a pipeline, sharded parameters) is no compute: a third window. Without
them, the peers' ``t_ready`` and ``t_stepped`` tell.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from testbed.core.analysis.costs.operation_times import NotNegative, OperationTime
from testbed.core.records.rank_log import StepRecord

__all__ = [
    "PARTS",
    "CriticalPath",
    "StepCost",
    "StepParts",
    "StepPath",
    "TimedOperation",
    "WindowCost",
    "critical_path",
]


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step by part, as in the module; none is negative."""

    compute_s: NotNegative = 0.0
    """Forward, backward, optimizer."""
    peer_wait_s: NotNegative = 0.0
    """Until the last rank took part."""
    late_s: NotNegative = 0.0
    """Waiting for fragments that were to have arrived."""
    propagation_s: NotNegative = 0.0
    """One-way delays in sequence."""
    serialization_s: NotNegative = 0.0
    """Bytes over the certified payload rate."""
    tcp_s: NotNegative = 0.0
    """Retransmission, and slow start after idling."""
    software_s: NotNegative = 0.0
    """Inside the site, and the library's own."""
    rest_s: NotNegative = 0.0
    """Not explained."""

    @property
    def total_s(self) -> float:
        return float(sum(getattr(self, part.name) for part in fields(self)))

    @property
    def exposed_s(self) -> float:
        return self.total_s - self.compute_s

    def __add__(self, other: StepParts) -> StepParts:
        return StepParts(**{part.name: getattr(self, part.name) + getattr(other, part.name) for part in fields(self)})

    def __mul__(self, factor: float) -> StepParts:
        return StepParts(**{part.name: getattr(self, part.name) * factor for part in fields(self)})


PARTS: Mapping[str, str] = {
    "compute_s": "compute",
    "peer_wait_s": "peer wait",
    "late_s": "late fragments",
    "propagation_s": "propagation",
    "serialization_s": "serialization",
    "tcp_s": "TCP recovery",
    "software_s": "software",
    "rest_s": "unattributed",
}
"""Fields of :class:`StepParts` and the names of the parts, in the order of plots and tables."""


@dataclass(frozen=True)
class WindowCost:
    """What the twin and the certificate say of one window of a step.

    Attributes:
        peers: rank -> the ranks whose arrival it waits for.
        crosses: whether an operation that the step waits for crosses a fiber.
        propagation_s: delays that follow one another.
        serialization_s: bytes over the payload rate, in the busiest direction.
        software_s: what the library takes for those that cross, beside the fiber; 0 if it is not known.
        cold_s: slow start of a connection that was idle for longer than ``idle_s``.
    """

    peers: Mapping[int, frozenset[int]] = field(default_factory=dict)
    crosses: bool = False
    propagation_s: float = 0.0
    serialization_s: float = 0.0
    software_s: float = 0.0
    cold_s: float = 0.0
    idle_s: float = 0.0


@dataclass(frozen=True)
class StepCost:
    """Both windows of a step. ``like``: steps of equal ``like`` have the same operations."""

    inner: WindowCost = field(default_factory=WindowCost)
    outer: WindowCost = field(default_factory=WindowCost)
    like: str = ""


@dataclass(frozen=True)
class TimedOperation:
    """An operation of one rank as recorded. ``arrived_t``: when the last of its group's ranks had begun it.

    ``crosses``: whether its group has ranks at several sites. ``waited_s``: how long the rank stood still for it before
    it ended; 0 if it did not, or that is not known.
    """

    began_t: float
    arrived_t: float
    ended_t: float
    crosses: bool
    waited_s: float = 0.0


@dataclass(frozen=True)
class StepPath:
    """The critical path of one committed step: of ``rank``, which ended it last."""

    step: int
    attempt: int
    rank: int
    began_t: float
    ended_t: float
    parts: StepParts
    exchange: bool = False
    """Whether an operation that the step waits for crosses a fiber, as the twin says."""


@dataclass(frozen=True)
class CriticalPath:
    """The steps in the order of time, the mean of their parts, and what operations between sites took."""

    steps: tuple[StepPath, ...]
    operations: tuple[OperationTime, ...] = ()

    @property
    def total(self) -> StepParts:
        return sum((path.parts for path in self.steps), StepParts())

    @property
    def mean(self) -> StepParts:
        return self.total * (1 / max(1, len(self.steps)))

    @property
    def mean_of_exchanges(self) -> StepParts | None:
        """The mean of the steps with an exchange across the fiber; None if no step has one."""
        parts_of_exchanges = [path.parts for path in self.steps if path.exchange]
        return sum(parts_of_exchanges, StepParts()) * (1 / len(parts_of_exchanges)) if parts_of_exchanges else None


Row = Mapping[int, StepRecord]
Costs = Callable[[int], StepCost]
Operations = Callable[[int, StepRecord], Sequence[TimedOperation]]


@dataclass
class _Window:
    """A window of the critical rank on the way to its parts; ``network_s`` is while operations were across the fiber.

    What ``open_s`` was for is not known without records of operations.
    """

    length_s: float
    wait_s: float = 0.0
    network_s: float = 0.0
    software_s: float = 0.0
    open_s: float = 0.0
    late_s: float = 0.0


@dataclass
class _Found:
    """The windows of a step: blocked inside forward and backward, before the inner optimizer, after it."""

    row: Row
    rank: int
    cost: StepCost
    windows: tuple[_Window, _Window, _Window]
    cold_s: float = 0.0

    @property
    def record(self) -> StepRecord:
        return self.row[self.rank]


def critical_path(rows: Sequence[Row], costs: Costs, operations: Operations | None = None) -> CriticalPath:
    """Return the critical path of each step of ``rows``: rank -> its record, of all ranks, in the order of time.

    Args:
        costs: of a step, by its number.
        operations: of a rank in a step, as recorded; () if there are none.
    """
    measured_steps = []
    crossed_t: float | None = None
    for row in rows:
        rank = max(row, key=lambda rank: (row[rank].t_end, -rank))
        own, cost = row[rank], costs(row[rank].step)
        timed = operations(rank, own) if operations else ()
        measured_step = _Found(row, rank, cost, _windows(row, rank, cost, timed))
        for of, begins_t in ((cost.inner, own.t_ready), (cost.outer, own.t_stepped)):
            if of.crosses:
                if crossed_t is not None and begins_t - crossed_t > of.idle_s:
                    measured_step.cold_s += of.cold_s
                crossed_t = own.t_end
        measured_steps.append(measured_step)
    usual = _usual(measured_steps)
    return CriticalPath(tuple(_path(measured_step, usual) for measured_step in measured_steps))


def _windows(row: Row, rank: int, cost: StepCost, timed: Sequence[TimedOperation]) -> tuple[_Window, _Window, _Window]:
    own = row[rank]
    blocked = _blocked_window(own, timed)
    inner = _window([(own.t_ready, own.t_sync)], timed)
    outer = _window([(own.t_stepped, own.t_end)], timed)
    if not timed:
        for window, of, moment in ((inner, cost.inner, "t_ready"), (outer, cost.outer, "t_stepped")):
            peers = of.peers.get(rank, frozenset())
            last_t = max((getattr(row[peer], moment) for peer in peers if peer in row), default=getattr(own, moment))
            window.wait_s = min(window.length_s, max(0.0, last_t - getattr(own, moment)))
            window.open_s = window.length_s - window.wait_s
            if of.crosses:
                window.network_s, window.open_s = window.open_s, 0.0
            elif peers:
                window.software_s, window.open_s = window.open_s, 0.0
    outer.late_s = min(max(0.0, own.late_s), outer.length_s)
    return blocked, inner, outer


def _blocked_window(own: StepRecord, timed: Sequence[TimedOperation]) -> _Window:
    """Return for how long the rank stood still in its passes, by its own account, split as its operations say.

    Their waits alone do not tell: a thread beside the passes may wait for them.
    """
    length_s = min(own.blocked_s, max(0.0, own.t_ready - own.t_begin))
    window = _window(_blocked(timed, own.t_begin, own.t_ready), timed) if length_s > 0 else _Window(0.0)
    share = min(1.0, length_s / window.length_s) if window.length_s > 0 else 0.0
    parts = (window.wait_s * share, window.network_s * share, window.software_s * share)
    return _Window(length_s, *parts, open_s=max(0.0, length_s - sum(parts)))


def _blocked(timed: Sequence[TimedOperation], begin_t: float, end_t: float) -> list[tuple[float, float]]:
    """Return when the rank stood still for an operation between two times, without overlaps, in order."""
    blocked: list[tuple[float, float]] = []
    for since_t, until_t in sorted(
        (operation.ended_t - operation.waited_s, operation.ended_t) for operation in timed if operation.waited_s > 0
    ):
        since_t, until_t = max(since_t, begin_t), min(until_t, end_t)
        if blocked:
            since_t = max(since_t, blocked[-1][1])
        if until_t > since_t:
            blocked.append((since_t, until_t))
    return blocked


def _window(spans: Sequence[tuple[float, float]], timed: Sequence[TimedOperation]) -> _Window:
    """Return what operations were doing in ``spans``: across the fiber goes before in the site, then waiting."""
    window = _Window(sum(max(0.0, end_t - begin_t) for begin_t, end_t in spans))
    for begin_t, end_t in spans:
        inside = [operation for operation in timed if operation.ended_t > begin_t and operation.began_t < end_t]
        edges = {begin_t, end_t} if inside else set()
        for operation in inside:
            edges |= {min(max(t, begin_t), end_t) for t in (operation.began_t, operation.arrived_t, operation.ended_t)}
        for one, other in itertools.pairwise(sorted(edges)):
            middle = (one + other) / 2
            going = [operation for operation in inside if operation.began_t <= middle < operation.ended_t]
            arrived = [operation for operation in going if operation.arrived_t <= middle]
            if any(operation.crosses for operation in arrived):
                window.network_s += other - one
            elif arrived:
                window.software_s += other - one
            elif going:
                window.wait_s += other - one
    # What is left, so that the parts add up in spite of rounding.
    window.open_s = max(0.0, window.length_s - window.network_s - window.software_s - window.wait_s)
    return window


def _usual(measured_steps: Sequence[_Found]) -> dict[tuple[str, int], float]:
    """Return (like, window) -> the median time across the fiber of steps in which no rank retransmitted."""
    clean: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for measured_step in measured_steps:
        if not _retransmitted(measured_step.row):
            for number, window in enumerate(measured_step.windows):
                clean[measured_step.cost.like, number].append(window.network_s)
    return {key: statistics.median(values) for key, values in clean.items()}


def _retransmitted(row: Row) -> bool:
    return any(record.tcp is not None and record.tcp.retransmitted_bytes > 0 for record in row.values())


def _path(measured_step: _Found, usual: Mapping[tuple[str, int], float]) -> StepPath:
    own = measured_step.record
    parts = StepParts(
        compute_s=max(0.0, own.t_end - own.t_begin - sum(window.length_s for window in measured_step.windows))
    )
    resent = _retransmitted(measured_step.row)
    left = _Left.of(measured_step)
    for number, window in enumerate(measured_step.windows):
        excess_s = max(0.0, window.network_s - usual.get((measured_step.cost.like, number), window.network_s))
        parts = parts + _parts(window, excess_s if resent else 0.0, left)
    crosses = measured_step.cost.inner.crosses or measured_step.cost.outer.crosses
    return StepPath(own.step, own.attempt, measured_step.rank, own.t_begin, own.t_end, parts, crosses)


@dataclass
class _Left:
    """What of the step's exchange no window has been charged with yet."""

    propagation_s: float
    serialization_s: float
    cold_s: float
    library_s: float

    @classmethod
    def of(cls, measured_step: _Found) -> _Left:
        both = (measured_step.cost.inner, measured_step.cost.outer)
        return cls(
            max(window.propagation_s for window in both),  # the twin's delays are those of a step, in whichever window
            sum(window.serialization_s for window in both),
            measured_step.cold_s,
            sum(window.software_s for window in both),
        )

    def take(self, name: str, most_s: float) -> float:
        """Return up to ``most_s`` of one of them, which is then charged."""
        taken = max(0.0, min(most_s, getattr(self, name)))
        setattr(self, name, getattr(self, name) - taken)
        return float(taken)


def _parts(window: _Window, excess_s: float, left: _Left) -> StepParts:
    """Split a window. Each part takes from what is left of it, so their sum is the window and none is negative."""
    late_s = window.late_s
    # A late fragment's time was seen as time across the fiber, as a wait, or not at all.
    network_s, late = _taken(window.network_s, late_s)
    wait_s, late = _taken(window.wait_s, late)
    open_s, late = _taken(window.open_s, late)
    software_s, late = _taken(window.software_s, late)
    # The excess over the usual is the recovery's own, whatever an exchange usually takes.
    network_s, kept = _taken(network_s, excess_s)
    tcp_s = excess_s - kept
    network_s -= (propagation_s := left.take("propagation_s", network_s))
    network_s -= (serialization_s := left.take("serialization_s", network_s))
    network_s -= (cold_s := left.take("cold_s", network_s))
    # What the library takes is known from records of operations. What is more is unattributed.
    network_s -= (library_s := left.take("library_s", network_s))
    return StepParts(
        peer_wait_s=wait_s,
        late_s=late_s - late,
        propagation_s=propagation_s,
        serialization_s=serialization_s,
        tcp_s=tcp_s + cold_s,
        software_s=software_s + library_s,
        rest_s=open_s + network_s,
    )


def _taken(seconds: float, most_s: float) -> tuple[float, float]:
    """Return what is left of ``seconds`` after up to ``most_s`` are taken off, and what is left of those."""
    taken = min(seconds, most_s)
    return seconds - taken, most_s - taken
