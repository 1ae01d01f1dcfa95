"""Every rank-second of a job in exactly one class, from the step records alone.

World size x wall time is the sum of the classes (:class:`RankSeconds`), over the job and over each of its attempts:

- *productive*: compute of committed steps, at most at its fault-free pace;
- *exposed communication* of committed steps, at most at its fault-free pace;
- *checkpoint*: a rank saved its state, or waited for a peer that did;
- *evaluation* on held-out text, or waiting for a peer's: the job's own time is without it, and so is goodput;
- *lost work*: steps that do not count, because they were done again or never finished by all ranks;
- *detection and restart*: from a rank's last step in an attempt that failed to its first step in the next one;
- *slowed by faults*: what committed steps during a fault and its aftermath took beyond the fault-free pace;
- *begin and end*: before the first step, after the last one, and the moments between two steps;
- *not told apart*: the records do not tell.

The *fault-free pace* of a rank is the mean of its committed steps outside every disturbance: a fault or a restart with
its aftermath, or several that overlap (``disturbances.py``). Steps outside are counted as they were, so ordinary noise
is no loss. Steps of one attempt in the same disturbance are compared with the pace together, so noise among them
cancels out. Where only some steps have an exchange, each is compared with those that have the same one.

A rank that waits for nobody until the job ends, as under a strategy without lock step, pays for a fault at a peer only
there. So the wait in the last step counts for the faults as far as it would be another without what they had slowed.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from testbed.core.analysis.commits import checkpoint_time, lineage
from testbed.core.analysis.disturbances import Disturbance, FaultCost
from testbed.core.analysis.exchange_schedule import ExchangeSchedule
from testbed.core.analysis.peer_waits import all_meet_after, peer_waits
from testbed.core.records.rank_log import CheckpointRecord, EvaluationRecord, RankLog, StepRecord
from testbed.core.training.twin import Twin

__all__ = ["AttemptSpan", "RankSeconds", "account"]

Sums = dict[str, float]
"""Seconds by class."""

_COMPUTE, _EXPOSED, _BETWEEN = "productive_s", "exposed_communication_s", "begin_and_end_s"
"""The parts of a committed step, of each of which a pace is known; each by its class."""
_PARTS = (_COMPUTE, _EXPOSED, _BETWEEN)
_CHECKPOINT, _EVALUATION, _LOST, _RESTART, _SLOWED, _ENDS, _UNTOLD = (
    "checkpoint_s",
    "evaluation_s",
    "lost_work_s",
    "detection_and_restart_s",
    "slowed_by_faults_s",
    "begin_and_end_s",
    "not_told_apart_s",
)


_Pause: TypeAlias = CheckpointRecord | EvaluationRecord


@dataclass(frozen=True)
class RankSeconds:
    """Rank-seconds by class, as in the module."""

    productive_s: float = 0.0
    """Compute of committed steps, at most at its fault-free pace."""
    exposed_communication_s: float = 0.0
    """Of committed steps, at most at its fault-free pace."""
    checkpoint_s: float = 0.0
    """Saving state, and waiting for a peer that did."""
    lost_work_s: float = 0.0
    """Steps done again, or never finished by all ranks."""
    detection_and_restart_s: float = 0.0
    """From a rank's last step in an attempt that failed to its first in the next."""
    slowed_by_faults_s: float = 0.0
    """What committed steps during faults and their aftermath took beyond the fault-free pace."""
    begin_and_end_s: float = 0.0
    """Before the first step, after the last one, and between steps."""
    not_told_apart_s: float = 0.0
    """The records do not tell, as of a launched program."""
    evaluation_s: float = 0.0
    """On held-out text, between two steps."""

    @property
    def total_s(self) -> float:
        return sum(self.by_class().values())

    @property
    def good_s(self) -> float:
        """The numerator of goodput."""
        return self.productive_s + self.exposed_communication_s

    def by_class(self) -> dict[str, float]:
        """Return the seconds by the name of the field."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def __add__(self, other: RankSeconds) -> RankSeconds:
        theirs = other.by_class()
        return RankSeconds(**{name: value + theirs[name] for name, value in self.by_class().items()})


@dataclass(frozen=True)
class AttemptSpan:
    """A part of the job's wall time: an attempt until its end was detected, or the restart after it."""

    attempt: int
    restart: bool
    began_t: float
    ended_t: float
    seconds: RankSeconds


_Committed = tuple[int, int | None, int]
_Slowdown = dict[tuple[int, int, str], tuple[str, float]]


class _Tile(NamedTuple):
    """A stretch of one rank's time.

    ``step`` is set if it is part of a committed step: the attempt, the disturbance that it was in, if any, and the
    number of the step.
    """

    began_t: float
    ended_t: float
    what: str
    step: _Committed | None = None


@dataclass
class _Timeline:
    """One rank's time up to ``end_t`` as tiles without gap or overlap; records that overlap are clipped."""

    at_t: float
    end_t: float
    tiles: list[_Tile] = field(default_factory=list)

    def until(self, t: float, what: str, step: _Committed | None = None) -> None:
        t = min(t, self.end_t)
        if t > self.at_t:
            self.tiles.append(_Tile(self.at_t, t, what, step))
            self.at_t = t


def account(
    logs: Sequence[RankLog],
    world_size: int,
    began_t: float,
    ended_t: float,
    disturbances: Sequence[Disturbance],
    *,
    complete: bool,
    observed_end: bool,
    detected: Mapping[int, float],
    twin: Twin | None = None,
    committed: Collection[tuple[int, int]] | None = None,
) -> tuple[tuple[AttemptSpan, ...], tuple[FaultCost, ...]]:
    """Return the spans of the job in order, which together are its wall time, and what the disturbances cost in them.

    ``complete``: every planned step is committed. ``observed_end``: the job was observed to end. ``detected``: when an
    attempt's end was detected, if known; else its restart is not told apart from it. ``committed``: (attempt, step)
    of the steps that count; by default all that every rank ended in the final lineage. Without ``twin`` all ranks
    wait for each other in each step.
    """
    logs = logs[:world_size]
    bounds = _bounds(logs, began_t, ended_t)
    counted = {
        id(record)
        for row in lineage(logs).values()
        if len(row) == world_size
        for record in row.values()
        if committed is None or (record.attempt, record.step) in committed
    }
    waits = _checkpoint_waits(logs, twin)
    ends = _Ends(logs, world_size, tuple(bounds), complete, observed_end)
    spans = _spans(bounds, detected)
    sums: list[Sums] = [defaultdict(float) for _ in spans]
    costs: list[Sums] = [defaultdict(float) for _ in disturbances]
    schedule = ExchangeSchedule(twin)
    resumed = {job.attempt: job.resumed_from for log in logs for job in log.jobs}
    tiled = [_tiles(log, bounds, counted, _Disturbed(disturbances), waits, ends) for log in logs]
    slowdowns = [_slowdown(tiles, resumed, schedule) for tiles in tiled]
    if complete and disturbances and len(logs) == world_size and all_meet_after(twin, world_size, schedule.last):
        _settle(logs, tiled, slowdowns)
    for tiles, slowdown in zip(tiled, slowdowns, strict=True):
        _add(tiles, slowdown, spans, sums, costs)
        _add_lost(tiles, disturbances, costs)
    # A rank without any records: its time is known, what it did is not.
    for (_, _, begin_t, end_t), total in zip(spans, sums, strict=True):
        total[_UNTOLD] += float(world_size - len(logs)) * (end_t - begin_t)
    accounted = tuple(AttemptSpan(*span, RankSeconds(**total)) for span, total in zip(spans, sums, strict=True))
    return accounted, _costs(disturbances, costs)


def _costs(disturbances: Sequence[Disturbance], costs: Sequence[Sums]) -> tuple[FaultCost, ...]:
    """Return the costs by label, in the order of the first disturbance of each."""
    by_label: dict[str, list[Sums]] = {}
    for disturbance, cost in zip(disturbances, costs, strict=True):
        by_label.setdefault(disturbance.label, []).append(cost)
    return tuple(
        FaultCost(label, len(listed), *(sum(cost[key] for cost in listed) for key in (_SLOWED, _LOST, _RESTART)))
        for label, listed in by_label.items()
    )


class _Disturbed:
    """Which of the disturbances, ordered and without overlap, a stretch of time is in."""

    def __init__(self, disturbances: Sequence[Disturbance]) -> None:
        self._begins = [disturbance.began_t for disturbance in disturbances]
        self._ends = [disturbance.ended_t for disturbance in disturbances]

    def index(self, begin_t: float, end_t: float) -> int | None:
        """Return the last one that overlaps it: the ranks have exchanged what an earlier one affected."""
        last = bisect.bisect_left(self._begins, end_t) - 1
        return last if last >= 0 and self._ends[last] > begin_t else None


def _bounds(logs: Sequence[RankLog], began_t: float, ended_t: float) -> dict[int, tuple[float, float]]:
    """Return each attempt's time until the next one began, in order and without gaps."""
    firsts: dict[int, float] = {}
    for log in logs:
        for attempt, t in [(job.attempt, job.t) for job in log.jobs] + [
            (record.attempt, record.t_begin) for record in log.steps
        ]:
            firsts[attempt] = min(t, firsts.get(attempt, t))
    edges = [began_t]
    for attempt in sorted(firsts)[1:]:
        edges.append(min(max(firsts[attempt], edges[-1]), ended_t))
    return dict(zip(sorted(firsts), itertools.pairwise([*edges, ended_t]), strict=True))


def _spans(
    bounds: Mapping[int, tuple[float, float]], detected: Mapping[int, float]
) -> list[tuple[int, bool, float, float]]:
    """Return (attempt, restart, begin, end)."""
    spans = []
    for attempt, (begin_t, end_t) in bounds.items():
        last = attempt == max(bounds)
        middle_t = end_t if last else min(max(detected.get(attempt, end_t), begin_t), end_t)
        spans.append((attempt, False, begin_t, middle_t))
        if middle_t < end_t:
            spans.append((attempt, True, middle_t, end_t))
    return spans


@dataclass
class _Ends:
    """What a rank did before its first and after its last step of an attempt."""

    logs: Sequence[RankLog]
    world_size: int
    attempts: tuple[int, ...]
    complete: bool
    observed_end: bool

    def __post_init__(self) -> None:
        self.stepped = {record.attempt for log in self.logs for record in log.steps}
        self.failed = {end.attempt for log in self.logs for end in log.ends if end.status == "failed"}
        self.present = {log.rank: _attempts(log) for log in self.logs}
        everyone = Counter(itertools.chain.from_iterable(self.present.values()))
        self.whole = {attempt for attempt, ranks in everyone.items() if ranks >= self.world_size}
        """Attempts of which every rank of the world has records."""

    def before(self, attempt: int) -> str:
        return _ENDS if attempt == self.attempts[0] else _RESTART

    def after(self, log: RankLog, attempt: int) -> str:
        if attempt not in self.present[log.rank] and attempt in self.stepped:
            return _UNTOLD  # no rank steps alone, so this one's records were lost
        if attempt != self.attempts[-1] or attempt in self.failed:
            return _RESTART
        if self.complete or any(end.attempt == attempt for end in log.ends):
            return _ENDS
        return _RESTART if self.observed_end else _UNTOLD

    def uncounted(self, attempt: int) -> str:
        """The class of a step that is not committed."""
        return _LOST if attempt in self.whole else _UNTOLD


def _attempts(log: RankLog) -> set[int]:
    kinds = (log.jobs, log.steps, log.checkpoints, log.evaluations, log.ends)
    return {record.attempt for kind in kinds for record in kind}


def _tiles(
    log: RankLog,
    bounds: Mapping[int, tuple[float, float]],
    counted: Collection[int],
    disturbed: _Disturbed,
    waits: Mapping[int, tuple[float, float]],
    ends: _Ends,
) -> list[_Tile]:
    records: list[StepRecord | _Pause] = [*log.steps, *log.checkpoints, *log.evaluations]
    by_attempt: dict[int, list[StepRecord | _Pause]] = {}
    saved = {(checkpoint.attempt, checkpoint.step + 1) for checkpoint in log.checkpoints}
    for record in records:
        by_attempt.setdefault(record.attempt, []).append(record)
    tiles: list[_Tile] = []
    for attempt, (begin_t, end_t) in bounds.items():
        line = _Timeline(begin_t, end_t)
        before: StepRecord | None = None
        for record in sorted(by_attempt.get(attempt, ()), key=_end_t):
            if isinstance(record, CheckpointRecord | EvaluationRecord):
                took_s = record.t - line.at_t if record.took_s is None else record.took_s
                line.until(min(record.t, record.t - took_s), ends.before(attempt) if before is None else _BETWEEN)
                line.until(record.t, _CHECKPOINT if isinstance(record, CheckpointRecord) else _EVALUATION)
                continue
            if before is None:
                line.until(record.t_begin, ends.before(attempt))
            elif record.step != before.step + 1:
                line.until(record.t_begin, _UNTOLD)
            if id(record) not in counted:
                line.until(record.t_end, ends.uncounted(attempt))
            else:
                step = (attempt, disturbed.index(line.at_t, record.t_end), record.step)
                line.until(record.t_begin, _BETWEEN, step)
                within_s, after_s = waits.get(id(record), (0.0, 0.0))
                # When forward and backward waited is not known, only how long: shown after what they computed.
                line.until(record.t_ready - record.blocked_s, _COMPUTE, step)
                line.until(record.t_ready, _EXPOSED, step)
                waited_for = _CHECKPOINT if (attempt, record.step) in saved else _EVALUATION
                line.until(record.t_ready + within_s, waited_for)
                line.until(record.t_sync, _EXPOSED, step)
                line.until(record.t_stepped, _COMPUTE, step)
                line.until(record.t_stepped + after_s, waited_for)
                line.until(record.t_end, _EXPOSED, step)
            before = record
        line.until(end_t, ends.after(log, attempt))
        tiles += line.tiles
    return tiles


def _end_t(record: StepRecord | _Pause) -> float:
    return record.t_end if isinstance(record, StepRecord) else record.t


def _checkpoint_waits(logs: Sequence[RankLog], twin: Twin | None) -> dict[int, tuple[float, float]]:
    """Return id of a step's record -> how much of its exposed time is due to longer checkpoints of its peers: before
    its inner optimizer, and after it.

    That is the peer wait, less what it would have been if no rank had saved its state before the step.
    """
    if not any(log.checkpoints or log.evaluations for log in logs):
        return {}
    without = peer_waits(logs, twin, {log.rank: checkpoint_time(log) for log in logs})
    return {
        id(one.record): (max(0.0, one.within_s - other.within_s), max(0.0, one.after_s - other.after_s))
        for rank, waits in peer_waits(logs, twin).items()
        for one, other in zip(waits, without[rank], strict=True)
    }


@dataclass
class _Parts:
    """What committed steps spent in each of their parts; the first step of an attempt has no ``between``."""

    spent: Sums = field(default_factory=lambda: defaultdict(float))
    numbers: set[tuple[int, int]] = field(default_factory=set)
    """(attempt, step)."""
    betweens: int = 0

    def add(self, tile: _Tile) -> None:
        self.spent[tile.what] += tile.ended_t - tile.began_t
        self.betweens += tile.what == _BETWEEN
        if tile.step is not None:
            self.numbers.add((tile.step[0], tile.step[2]))

    @property
    def steps(self) -> int:
        return len(self.numbers)

    def count(self, part: str) -> int:
        return self.betweens if part == _BETWEEN else self.steps

    def mean(self, part: str) -> float:
        return self.spent[part] / max(1, self.count(part))


def _slowdown(tiles: Sequence[_Tile], resumed: Mapping[int, int], schedule: ExchangeSchedule) -> _Slowdown:
    """Return (attempt, disturbance, part) -> the class of what its steps took beyond the pace, and its share.

    A step is compared with those outside the disturbances that have the same exchanges, regular ones if there are any;
    without such steps, with all of them. ``resumed``: the step from which each attempt resumed. Without a fault-
    free pace all of it is not told apart.
    """
    regular, quiet = (defaultdict[Hashable, _Parts](_Parts) for _ in range(2))
    during = defaultdict[tuple[int, int], dict[Hashable, _Parts]](lambda: defaultdict(_Parts))
    every = _Parts()
    for tile in tiles:
        if tile.step is not None:
            attempt, disturbance, step = tile.step
            kind = schedule.kind(step)
            if disturbance is not None:
                during[attempt, disturbance][kind].add(tile)
                continue
            for parts in (quiet[kind], every):
                parts.add(tile)
            if schedule.is_regular(step, resumed.get(attempt, 0)):
                regular[kind].add(tile)

    def usual_s(kind: Hashable, part: str) -> float:
        steps = next((steps for steps in (regular[kind], quiet[kind]) if steps.count(part)), every)
        return steps.mean(part)

    slowdown: _Slowdown = {}
    for (attempt, disturbance), kinds in during.items():
        if not every.steps:
            slowdown |= {(attempt, disturbance, part): (_UNTOLD, 1.0) for part in _PARTS}
            continue
        spent = {part: sum(parts.spent[part] for parts in kinds.values()) for part in _PARTS}
        pace = {part: sum(usual_s(kind, part) * parts.count(part) for kind, parts in kinds.items()) for part in _PARTS}
        over = {part: max(0.0, spent[part] - pace[part]) for part in _PARTS}
        slowed_s = max(0.0, sum(spent.values()) - sum(pace.values()))
        share = min(1.0, slowed_s / sum(over.values())) if sum(over.values()) > 0 else 0.0
        for part in _PARTS:
            if spent[part] > 0:
                slowdown[attempt, disturbance, part] = (_SLOWED, share * over[part] / spent[part])
    return slowdown


def _settle(logs: Sequence[RankLog], tiled: Sequence[list[_Tile]], slowdowns: Sequence[_Slowdown]) -> None:
    """Charge every rank for as much as the disturbances delayed the last step, in which all ranks wait for all.

    A rank that a peer's fault did not slow before then waits longer in the last step. One that was slowed, though the
    job did not wait for it, waits less there: so much of its slowdown cost nothing. Does nothing if the last step is
    in a disturbance.
    """
    lasts = [tiles[index] if (index := _last_wait(tiles)) is not None else None for tiles in tiled]
    if any(last is None or last.step is None or last.step[1] is not None for last in lasts):
        return
    arrived = [log.steps[-1].t_stepped for log in logs]
    attempt = logs[0].steps[-1].attempt
    slowed = [_slowed(tiles, slowdown, attempt) for tiles, slowdown in zip(tiled, slowdowns, strict=True)]
    slowed_s = [sum(by_disturbance.values()) for by_disturbance in slowed]
    delay_s = max(arrived) - max(t - seconds for t, seconds in zip(arrived, slowed_s, strict=True))
    last_rank = arrived.index(max(arrived))
    for tiles, slowdown, seconds in zip(tiled, slowdowns, slowed_s, strict=True):
        if delay_s > seconds:
            # All waited for the last rank: for what had slowed it.
            for disturbance, part_s in slowed[last_rank].items():
                _charge_last(tiles, disturbance, (delay_s - seconds) * part_s / slowed_s[last_rank])
        elif seconds > 0:
            for key, (what, share) in slowdown.items():
                if key[0] == attempt and what == _SLOWED:
                    slowdown[key] = (what, share * delay_s / seconds)


def _slowed(tiles: Sequence[_Tile], slowdown: _Slowdown, attempt: int) -> dict[int, float]:
    """Return what slowed a rank in an attempt, in seconds by disturbance."""
    slowed_s: dict[int, float] = defaultdict(float)
    for tile in tiles:
        if tile.step and tile.step[0] == attempt and tile.step[1] is not None:
            what, share = slowdown.get((attempt, tile.step[1], tile.what), ("", 0.0))
            slowed_s[tile.step[1]] += share * (tile.ended_t - tile.began_t) if what == _SLOWED else 0.0
    return slowed_s


def _last_wait(tiles: Sequence[_Tile]) -> int | None:
    """Return the index of a rank's last wait in a committed step; None if its last step has none."""
    of_steps = [index for index, tile in enumerate(tiles) if tile.step]
    return of_steps[-1] if of_steps and tiles[of_steps[-1]].what == _EXPOSED else None


def _charge_last(tiles: list[_Tile], disturbance: int, seconds: float) -> None:
    index = _last_wait(tiles)
    tile = None if index is None else tiles[index]
    if index is None or tile is None or tile.step is None:
        return
    until_t = min(tile.ended_t, tile.began_t + seconds)
    charged = _Tile(tile.began_t, until_t, _SLOWED, (tile.step[0], disturbance, tile.step[2]))
    tiles[index : index + 1] = [charged, tile._replace(began_t=until_t)]


def _add(
    tiles: Sequence[_Tile],
    slowdown: _Slowdown,
    spans: Sequence[tuple[int, bool, float, float]],
    sums: Sequence[Sums],
    costs: Sequence[Sums],
) -> None:
    """Add the tiles of one rank to the spans that they lie in, and what is beyond the pace to its disturbance."""
    at = 0
    for tile in tiles:
        while at + 1 < len(spans) and spans[at][3] <= tile.began_t:
            at += 1
        disturbance = tile.step[1] if tile.step else None
        excess, share = "", 0.0
        if tile.step and disturbance is not None:
            excess, share = slowdown.get((tile.step[0], disturbance, tile.what), ("", 0.0))
            costs[disturbance][excess or tile.what] += (tile.ended_t - tile.began_t) * (share if excess else 1.0)
        for index in range(at, len(spans)):
            _, _, begin_t, end_t = spans[index]
            if begin_t >= tile.ended_t:
                break
            seconds = min(tile.ended_t, end_t) - max(tile.began_t, begin_t)
            if seconds <= 0:
                continue
            sums[index][tile.what] += seconds * (1.0 - share)
            if excess:
                sums[index][excess] += seconds * share


def _add_lost(tiles: Sequence[_Tile], disturbances: Sequence[Disturbance], costs: Sequence[Sums]) -> None:
    """Add lost work and restarts of one rank to the disturbance with the restart that followed."""
    restarts = sorted((t, index) for index, disturbance in enumerate(disturbances) for t in disturbance.resumed_t)
    for tile in tiles:
        if tile.what in (_LOST, _RESTART):
            following = bisect.bisect_right(restarts, tile.began_t, key=lambda restart: restart[0])
            if following < len(restarts):
                costs[restarts[following][1]][tile.what] += tile.ended_t - tile.began_t
