"""When a job's operations moved their payload between sites, and how much: the twin's bytes with the records' times.

A *load* is what the operations of one step move within one interval of time. Gradients, activations and tokens move
within the step (``Operation.before_update``), pseudo-gradients from the end of the inner optimizer on; both, and
everything else, at the latest until the end of the step after which the result is used (``Operation.lands``), and what
follows the last step until the job's end. Of an operation whose ranks did not all record these steps, an unknown part
moved: from its beginning on, an attempt tells nothing (``known_until``).

Where sites train on without each other, what a fault holds back waits at its sender and crosses some steps later, or in
part again over a new connection. When, no record tells (``Load.late_until``).
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import RankLog, StepRecord
from testbed.core.training.gloo_bytes import header_bytes, least_into, site_bytes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["AttemptLoads", "Exchanges", "MovedBytes", "WireLoad", "attempt_loads"]

Sites = tuple[str, str]
"""Source and destination."""

_AFTER_THE_STEP = ("pseudo-gradients",)
"""What is known only when the inner optimizer is done."""

_MADE_UP_FOR_S = 2.0
"""What waits behind the parcels that a fault has held back is late, too: for as long as the fault, and for so long."""
_AT_MOST_TIMES = 2
"""So often a parcel crosses whose connection broke: as far as it had come, and again."""


@dataclass(frozen=True)
class WireLoad:
    """``moved``: bytes by source and destination site, with gloo's own in ``headers``. ``least``: those that must enter
    each site in any case. ``payload``: bytes of the operations themselves. ``most``: those of both that may cross,
    where the sites' paces decide. ``late_until``: a fault may have held it back, until then."""

    begin_t: float
    end_t: float
    moved: Mapping[Sites, float]
    headers: Mapping[Sites, float]
    least: Mapping[str, float]
    payload: float
    most: Mapping[Sites, float]
    late_until: float = -math.inf

    @property
    def crossed_t(self) -> float:
        """By when it has crossed, whatever held it back."""
        return max(self.end_t, self.late_until)

    @property
    def times(self) -> int:
        """How often its bytes may cross."""
        return _AT_MOST_TIMES if self.late_until > self.begin_t else 1


@dataclass(frozen=True)
class MovedBytes:
    """Bytes of loads wholly within an interval, with shares of those that are cut, and of all that touch it."""

    whole: float = 0.0
    share: float = 0.0
    touched: float = 0.0

    def __add__(self, other: MovedBytes) -> MovedBytes:
        return MovedBytes(self.whole + other.whole, self.share + other.share, self.touched + other.touched)


@dataclass(frozen=True)
class AttemptLoads:
    """The loads of one attempt that cross fibers. ``per_step``: their payload over the number of steps."""

    loads: tuple[WireLoad, ...]
    known_until: float
    per_step: float

    def between(self, first_t: float, last_t: float, sites: Mapping[Sites, float]) -> MovedBytes:
        """Return what crossed between two times, each pair of sites counted as often as ``sites`` says."""
        between = MovedBytes()
        for load in self.loads:
            inside = min(load.crossed_t, last_t) - max(load.begin_t, first_t)
            byte_count = _bytes(load, sites) if inside >= 0 else 0.0
            if byte_count:
                lasted = load.crossed_t - load.begin_t
                whole = load.begin_t >= first_t and load.crossed_t <= last_t
                share = inside / lasted if lasted > 0 else 1.0
                most = load.times * sum(times * load.most.get(site, 0.0) for site, times in sites.items())
                between += MovedBytes(byte_count if whole else 0.0, share * byte_count, most)
        return between


def _bytes(load: WireLoad, sites: Mapping[Sites, float]) -> float:
    return sum(times * (load.moved.get(site, 0.0) + load.headers.get(site, 0.0)) for site, times in sites.items())


Exchanges = Mapping[int, Sequence[Mapping[str, Any]]]
"""Attempt -> the ``exchange`` records of all ranks."""


def attempt_loads(
    twin: Twin, logs: Sequence[RankLog], windows: Sequence[FaultWindow] = (), exchanges: Exchanges | None = None
) -> dict[int, AttemptLoads]:
    """Return attempt -> its loads. ``logs`` are those of all ranks, in their order; ``windows`` the run's faults."""
    rows: dict[int, list[dict[int, StepRecord]]] = {}
    ends: dict[tuple[int, int], float] = {}
    for rank, log in enumerate(logs):
        for step in log.steps:
            rows.setdefault(step.attempt, [{} for _ in logs])[rank][step.step] = step
        ends |= {(end.attempt, rank): end.t for end in log.ends if end.status == "ok"}
    at = _Crossing(twin.layout.sites)
    resumed = {job.attempt: (job.resumed_from, job.t) for log in logs for job in log.jobs}
    by_attempt = {}
    for attempt, ranks in rows.items():
        happened = twin.as_recorded((exchanges or {}).get(attempt, ()))
        by_attempt[attempt] = _of_attempt(happened, ranks, attempt, ends, at, resumed.get(attempt, (0, 0.0)))
    if twin.together:
        return by_attempt
    in_order = {attempt for attempt in rows if all((attempt, rank) in ends for rank in range(len(logs)))}
    return {attempt: _held_back(of, windows, attempt in in_order) for attempt, of in by_attempt.items()}


def _held_back(of: AttemptLoads, windows: Sequence[FaultWindow], in_order: bool) -> AttemptLoads:
    """Return the loads, with until when a fault may have held each back; by a job's end in order all have crossed."""
    last_t = max((load.end_t for load in of.loads), default=0.0) if in_order else math.inf
    begins, ends = list[float](), list[float]()
    for begin_t, end_t in sorted(
        (window.began_t, math.inf if window.ended_t is None else window.ended_t) for window in windows
    ):
        held_until = end_t + max(_MADE_UP_FOR_S, end_t - begin_t)
        begins.append(begin_t)
        ends.append(max([held_until, *ends[-1:]]))

    def late_until(load: WireLoad) -> float:
        before = bisect.bisect_left(begins, load.end_t)
        return min(ends[before - 1], last_t) if before and ends[before - 1] > load.begin_t else -math.inf

    return replace(of, loads=tuple(replace(load, late_until=late_until(load)) for load in of.loads))


def _of_attempt(
    twin: Twin,
    ranks: Sequence[Mapping[int, StepRecord]],
    attempt: int,
    ends: Mapping[tuple[int, int], float],
    at: _Crossing,
    resumed: tuple[int, float],
) -> AttemptLoads:
    """``resumed``: the step after which the attempt begins, and when."""
    total = twin.layout.steps or max((step for records in ranks for step in records), default=0)
    numbers = sorted({step for records in ranks for step in records})
    by_time: dict[tuple[float, float], list[Operation]] = defaultdict(list)
    known_until = math.inf
    after, began_t = resumed
    for operation in twin.resumed(after) if after else ():
        landings = [landing.t_end for records in ranks if (landing := records.get(min(after + operation.lands, total)))]
        if at.crosses(operation) and landings:
            by_time[began_t, max(landings)].append(operation)
    for step in numbers:
        for operation in twin.operations(step):
            if not at.crosses(operation):
                continue
            within = operation.before_update
            landed = step if within else min(step + operation.lands, total)
            begun = [ranks[rank][step] for rank in operation.ranks if step in ranks[rank]]
            begins = [record.t_stepped if operation.what in _AFTER_THE_STEP else record.t_begin for record in begun]
            lands = [ranks[rank][landed] for rank in operation.ranks if landed in ranks[rank]]
            if len(begins) < len(operation.ranks) or len(lands) < len(operation.ranks):
                before = [ranks[rank][step - 1].t_end for rank in operation.ranks if step - 1 in ranks[rank]]
                known_until = min([known_until, *begins, *before])
                continue
            last = [record.t_sync if within else record.t_end for record in lands]
            if landed == total and not within:
                last += [ends.get((attempt, rank), 0.0) for rank in operation.ranks]
            by_time[min(begins), max(last)].append(operation)
    if all(total in records for records in ranks) and all((attempt, rank) in ends for rank in range(len(ranks))):
        ending = [operation for operation in twin.operations(total + 1) if at.crosses(operation)]
        interval = (
            min(records[total].t_end for records in ranks),
            max(ends[attempt, rank] for rank in range(len(ranks))),
        )
        by_time[interval] += ending
    loads = tuple(at.load(begin_t, end_t, operations) for (begin_t, end_t), operations in sorted(by_time.items()))
    return AttemptLoads(loads, known_until, sum(load.payload for load in loads) / max(1, len(numbers)))


class _Crossing:
    """What operations move between sites; each operation is worked out once, as most of them recur in every step."""

    def __init__(self, sites: Sequence[str]) -> None:
        self._sites = sites
        self._known: dict[Operation, tuple[Mapping[Sites, float], Mapping[Sites, float], Mapping[str, float]]] = {}

    def crosses(self, operation: Operation) -> bool:
        return bool(self._of(operation)[0])

    def load(self, begin_t: float, end_t: float, operations: Sequence[Operation]) -> WireLoad:
        parts = [self._of(operation) for operation in operations]
        payload = sum(operation.byte_count for operation in operations)
        moved, headers, least = (
            _total([moved[0] for moved in parts]),
            _total([moved[1] for moved in parts]),
            [moved[2] for moved in parts],
        )
        most = _total(
            {pair: operation.at_most * count for pair, count in bytes_by_pair.items()}
            for operation, of in zip(operations, parts, strict=True)
            for bytes_by_pair in of[:2]
        )
        return WireLoad(begin_t, end_t, moved, headers, _total(least), payload, most)

    def _of(self, operation: Operation) -> tuple[Mapping[Sites, float], Mapping[Sites, float], Mapping[str, float]]:
        if operation not in self._known:
            sites = self._sites
            headers = site_bytes([operation], sites, header_bytes)
            self._known[operation] = site_bytes([operation], sites), headers, least_into(operation, sites)
        return self._known[operation]


_Key = TypeVar("_Key")


def _total(summands: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    totals = defaultdict[_Key, float](float)
    for mapping in summands:
        for key, value in mapping.items():
            totals[key] += value
    return dict(totals)
