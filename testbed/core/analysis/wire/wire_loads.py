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

    def __add__(self, more: MovedBytes) -> MovedBytes:
        return MovedBytes(self.whole + more.whole, self.share + more.share, self.touched + more.touched)


@dataclass(frozen=True)
class AttemptLoads:
    """The loads of one attempt that cross fibers. ``per_step``: their payload over the number of steps."""

    loads: tuple[WireLoad, ...]
    known_until: float
    per_step: float

    def between(self, first_t: float, last_t: float, sites: Mapping[Sites, float]) -> MovedBytes:
        """Return what crossed between two times, each pair of sites counted as often as ``sites`` says."""
        found = MovedBytes()
        for load in self.loads:
            inside = min(load.crossed_t, last_t) - max(load.begin_t, first_t)
            byte_count = _bytes(load, sites) if inside >= 0 else 0.0
            if byte_count:
                lasted = load.crossed_t - load.begin_t
                whole = load.begin_t >= first_t and load.crossed_t <= last_t
                share = inside / lasted if lasted > 0 else 1.0
                most = load.times * sum(times * load.most.get(it, 0.0) for it, times in sites.items())
                found += MovedBytes(byte_count if whole else 0.0, share * byte_count, most)
        return found


def _bytes(load: WireLoad, sites: Mapping[Sites, float]) -> float:
    return sum(times * (load.moved.get(it, 0.0) + load.headers.get(it, 0.0)) for it, times in sites.items())


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
        ends |= {(it.attempt, rank): it.t for it in log.ends if it.status == "ok"}
    at = _Crossing(twin.layout.sites)
    resumed = {job.attempt: (job.resumed_from, job.t) for log in logs for job in log.jobs}
    found = {}
    for attempt, ranks in rows.items():
        happened = twin.as_recorded((exchanges or {}).get(attempt, ()))
        found[attempt] = _of_attempt(happened, ranks, attempt, ends, at, resumed.get(attempt, (0, 0.0)))
    if twin.together:
        return found
    in_order = {attempt for attempt in rows if all((attempt, rank) in ends for rank in range(len(logs)))}
    return {attempt: _held_back(of, windows, attempt in in_order) for attempt, of in found.items()}


def _held_back(of: AttemptLoads, windows: Sequence[FaultWindow], in_order: bool) -> AttemptLoads:
    """Return the loads, with until when a fault may have held each back; by a job's end in order all have crossed."""
    last_t = max((it.end_t for it in of.loads), default=0.0) if in_order else math.inf
    begins, ends = list[float](), list[float]()
    for begin_t, end_t in sorted((it.began_t, math.inf if it.ended_t is None else it.ended_t) for it in windows):
        held_until = end_t + max(_MADE_UP_FOR_S, end_t - begin_t)
        begins.append(begin_t)
        ends.append(max([held_until, *ends[-1:]]))

    def late_until(load: WireLoad) -> float:
        before = bisect.bisect_left(begins, load.end_t)
        return min(ends[before - 1], last_t) if before and ends[before - 1] > load.begin_t else -math.inf

    return replace(of, loads=tuple(replace(it, late_until=late_until(it)) for it in of.loads))


def _of_attempt(
    twin: Twin,
    ranks: Sequence[Mapping[int, StepRecord]],
    attempt: int,
    ends: Mapping[tuple[int, int], float],
    at: _Crossing,
    resumed: tuple[int, float],
) -> AttemptLoads:
    """``resumed``: the step after which the attempt begins, and when."""
    total = twin.layout.steps or max((step for each in ranks for step in each), default=0)
    numbers = sorted({step for each in ranks for step in each})
    found: dict[tuple[float, float], list[Operation]] = defaultdict(list)
    known_until = math.inf
    after, began_t = resumed
    for operation in twin.resumed(after) if after else ():
        landings = [it.t_end for each in ranks if (it := each.get(min(after + operation.lands, total)))]
        if at.crosses(operation) and landings:
            found[began_t, max(landings)].append(operation)
    for step in numbers:
        for operation in twin.operations(step):
            if not at.crosses(operation):
                continue
            within = operation.before_update
            landed = step if within else min(step + operation.lands, total)
            known = [ranks[rank][step] for rank in operation.ranks if step in ranks[rank]]
            begins = [it.t_stepped if operation.what in _AFTER_THE_STEP else it.t_begin for it in known]
            lands = [ranks[rank][landed] for rank in operation.ranks if landed in ranks[rank]]
            if len(begins) < len(operation.ranks) or len(lands) < len(operation.ranks):
                before = [ranks[rank][step - 1].t_end for rank in operation.ranks if step - 1 in ranks[rank]]
                known_until = min([known_until, *begins, *before])
                continue
            last = [it.t_sync if within else it.t_end for it in lands]
            if landed == total and not within:
                last += [ends.get((attempt, rank), 0.0) for rank in operation.ranks]
            found[min(begins), max(last)].append(operation)
    if all(total in each for each in ranks) and all((attempt, rank) in ends for rank in range(len(ranks))):
        ending = [it for it in twin.operations(total + 1) if at.crosses(it)]
        interval = min(each[total].t_end for each in ranks), max(ends[attempt, rank] for rank in range(len(ranks)))
        found[interval] += ending
    loads = tuple(at.load(begin_t, end_t, operations) for (begin_t, end_t), operations in sorted(found.items()))
    return AttemptLoads(loads, known_until, sum(load.payload for load in loads) / max(1, len(numbers)))


class _Crossing:
    """What operations move between sites; each operation is worked out once, as most of them recur in every step."""

    def __init__(self, sites: Sequence[str]) -> None:
        self._sites = sites
        self._known: dict[Operation, tuple[Mapping[Sites, float], Mapping[Sites, float], Mapping[str, float]]] = {}

    def crosses(self, operation: Operation) -> bool:
        return bool(self._of(operation)[0])

    def load(self, begin_t: float, end_t: float, operations: Sequence[Operation]) -> WireLoad:
        found = [self._of(operation) for operation in operations]
        payload = sum(it.byte_count for it in operations)
        moved, headers, least = (
            _total([it[0] for it in found]),
            _total([it[1] for it in found]),
            [it[2] for it in found],
        )
        most = _total(
            {pair: it.at_most * count for pair, count in each.items()}
            for it, of in zip(operations, found, strict=True)
            for each in of[:2]
        )
        return WireLoad(begin_t, end_t, moved, headers, _total(least), payload, most)

    def _of(self, operation: Operation) -> tuple[Mapping[Sites, float], Mapping[Sites, float], Mapping[str, float]]:
        if operation not in self._known:
            sites = self._sites
            headers = site_bytes([operation], sites, header_bytes)
            self._known[operation] = site_bytes([operation], sites), headers, least_into(operation, sites)
        return self._known[operation]


_Key = TypeVar("_Key")


def _total(each: Iterable[Mapping[_Key, float]]) -> dict[_Key, float]:
    found = defaultdict[_Key, float](float)
    for mapping in each:
        for key, value in mapping.items():
            found[key] += value
    return dict(found)
