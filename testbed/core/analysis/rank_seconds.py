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

The *fault-free pace* of a rank is the mean of its committed steps outside every fault and aftermath. Steps outside the
faults are counted as they were, so ordinary noise is no loss. Steps of one attempt during faults are compared with the
pace together, so noise among them cancels out. Where only some steps have an exchange, each is compared with those that
have the same one.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeAlias

from testbed.core.analysis.commits import checkpoint_time, lineage
from testbed.core.analysis.peer_waits import peer_waits
from testbed.core.records.rank_log import CheckpointRecord, EvaluationRecord, RankLog, StepRecord
from testbed.core.training.twin import Twin

__all__ = ["RankSeconds", "Span", "account"]

Sums = dict[str, float]
"""Seconds by class."""

_COMPUTE, _EXPOSED, _BETWEEN = "productive_s", "exposed_communication_s", "begin_and_end_s"
"""The parts of a committed step, of each of which a pace is known; each by its class."""
_PARTS = (_COMPUTE, _EXPOSED, _BETWEEN)
_CHECKPOINT, _EVALUATION, _LOST, _RESTART, _ENDS, _UNTOLD = (
    "checkpoint_s",
    "evaluation_s",
    "lost_work_s",
    "detection_and_restart_s",
    "begin_and_end_s",
    "not_told_apart_s",
)


_Pause: TypeAlias = CheckpointRecord | EvaluationRecord


@dataclass(frozen=True)
class RankSeconds:
    """Rank-seconds by class, as in the module."""

    productive_s: float = 0.0
    exposed_communication_s: float = 0.0
    checkpoint_s: float = 0.0
    lost_work_s: float = 0.0
    detection_and_restart_s: float = 0.0
    slowed_by_faults_s: float = 0.0
    begin_and_end_s: float = 0.0
    not_told_apart_s: float = 0.0
    evaluation_s: float = 0.0

    @property
    def total_s(self) -> float:
        return sum(self.by_class().values())

    @property
    def good_s(self) -> float:
        """The numerator of goodput."""
        return self.productive_s + self.exposed_communication_s

    def by_class(self) -> dict[str, float]:
        """Return the seconds by the name of the field."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def __add__(self, more: RankSeconds) -> RankSeconds:
        theirs = more.by_class()
        return RankSeconds(**{name: value + theirs[name] for name, value in self.by_class().items()})


@dataclass(frozen=True)
class Span:
    """A part of the job's wall time: an attempt until its end was detected, or the restart after it."""

    attempt: int
    restart: bool
    began_t: float
    ended_t: float
    seconds: RankSeconds


_Committed = tuple[int, bool, int]


class _Tile(NamedTuple):
    """A stretch of one rank's time.

    ``step`` is set if it is part of a committed step: the attempt, whether a fault or its aftermath affected it, and
    the number of the step.
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
    affected: Collection[tuple[int, int]],
    *,
    complete: bool,
    observed_end: bool,
    detected: Mapping[int, float],
    twin: Twin | None = None,
    committed: Collection[tuple[int, int]] | None = None,
) -> tuple[Span, ...]:
    """Return the spans of the job in order; together they are its wall time.

    ``affected``: (attempt, step) of the committed steps during a fault or its aftermath. ``complete``: every planned
    step is committed. ``observed_end``: the job was observed to end. ``detected``: when an attempt's end was detected,
    if known; else its restart is not told apart from it. ``committed``: (attempt, step) of the steps that count; by
    default all that every rank ended in the final lineage. Without ``twin`` all ranks wait for each other in each step.
    """
    logs = logs[:world_size]
    bounds = _bounds(logs, began_t, ended_t)
    counted = {
        id(it)
        for row in lineage(logs).values()
        if len(row) == world_size
        for it in row.values()
        if committed is None or (it.attempt, it.step) in committed
    }
    waits = _checkpoint_waits(logs, twin)
    ends = _Ends(logs, world_size, tuple(bounds), complete, observed_end)
    spans = _spans(bounds, detected)
    sums: list[Sums] = [defaultdict(float) for _ in spans]

    def alike(step: int) -> Hashable:
        return None if twin is None else tuple(twin.operations(step))

    for log in logs:
        tiles = _tiles(log, bounds, counted, affected, waits, ends)
        _add(tiles, _slowdown(tiles, log, counted, affected, alike), spans, sums)
    # A rank without any records: its time is known, what it did is not.
    for (_, _, begin_t, end_t), total in zip(spans, sums, strict=True):
        total[_UNTOLD] += float(world_size - len(logs)) * (end_t - begin_t)
    return tuple(Span(*span, RankSeconds(**total)) for span, total in zip(spans, sums, strict=True))


def _bounds(logs: Sequence[RankLog], began_t: float, ended_t: float) -> dict[int, tuple[float, float]]:
    """Return each attempt's time until the next one began, in order and without gaps."""
    firsts: dict[int, float] = {}
    for log in logs:
        for attempt, t in [(it.attempt, it.t) for it in log.jobs] + [(it.attempt, it.t_begin) for it in log.steps]:
            firsts[attempt] = min(t, firsts.get(attempt, t))
    edges = [began_t]
    for attempt in sorted(firsts)[1:]:
        edges.append(min(max(firsts[attempt], edges[-1]), ended_t))
    return dict(zip(sorted(firsts), itertools.pairwise([*edges, ended_t]), strict=True))


def _spans(
    bounds: Mapping[int, tuple[float, float]], detected: Mapping[int, float]
) -> list[tuple[int, bool, float, float]]:
    """Return (attempt, restart, begin, end)."""
    found = []
    for attempt, (begin_t, end_t) in bounds.items():
        last = attempt == max(bounds)
        middle_t = end_t if last else min(max(detected.get(attempt, end_t), begin_t), end_t)
        found.append((attempt, False, begin_t, middle_t))
        if middle_t < end_t:
            found.append((attempt, True, middle_t, end_t))
    return found


@dataclass
class _Ends:
    """What a rank did before its first and after its last step of an attempt."""

    logs: Sequence[RankLog]
    world_size: int
    attempts: tuple[int, ...]
    complete: bool
    observed_end: bool

    def __post_init__(self) -> None:
        self.stepped = {it.attempt for log in self.logs for it in log.steps}
        self.failed = {it.attempt for log in self.logs for it in log.ends if it.status == "failed"}
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
        if self.complete or any(it.attempt == attempt for it in log.ends):
            return _ENDS
        return _RESTART if self.observed_end else _UNTOLD

    def uncounted(self, attempt: int) -> str:
        """The class of a step that is not committed."""
        return _LOST if attempt in self.whole else _UNTOLD


def _attempts(log: RankLog) -> set[int]:
    kinds = (log.jobs, log.steps, log.checkpoints, log.evaluations, log.ends)
    return {it.attempt for kind in kinds for it in kind}


def _tiles(
    log: RankLog,
    bounds: Mapping[int, tuple[float, float]],
    counted: Collection[int],
    affected: Collection[tuple[int, int]],
    waits: Mapping[int, tuple[float, float]],
    ends: _Ends,
) -> list[_Tile]:
    records: list[StepRecord | _Pause] = [*log.steps, *log.checkpoints, *log.evaluations]
    by_attempt: dict[int, list[StepRecord | _Pause]] = {}
    saved = {(it.attempt, it.step + 1) for it in log.checkpoints}
    for each in records:
        by_attempt.setdefault(each.attempt, []).append(each)
    found: list[_Tile] = []
    for attempt, (begin_t, end_t) in bounds.items():
        line = _Timeline(begin_t, end_t)
        before: StepRecord | None = None
        for each in sorted(by_attempt.get(attempt, ()), key=_end_t):
            if isinstance(each, CheckpointRecord | EvaluationRecord):
                took_s = each.t - line.at_t if each.took_s is None else each.took_s
                line.until(min(each.t, each.t - took_s), ends.before(attempt) if before is None else _BETWEEN)
                line.until(each.t, _CHECKPOINT if isinstance(each, CheckpointRecord) else _EVALUATION)
                continue
            if before is None:
                line.until(each.t_begin, ends.before(attempt))
            elif each.step != before.step + 1:
                line.until(each.t_begin, _UNTOLD)
            if id(each) not in counted:
                line.until(each.t_end, ends.uncounted(attempt))
            else:
                step = (attempt, (attempt, each.step) in affected, each.step)
                line.until(each.t_begin, _BETWEEN, step)
                within_s, after_s = waits.get(id(each), (0.0, 0.0))
                # When forward and backward waited is not known, only how long: shown after what they computed.
                line.until(each.t_ready - each.blocked_s, _COMPUTE, step)
                line.until(each.t_ready, _EXPOSED, step)
                waited_for = _CHECKPOINT if (attempt, each.step) in saved else _EVALUATION
                line.until(each.t_ready + within_s, waited_for)
                line.until(each.t_sync, _EXPOSED, step)
                line.until(each.t_stepped, _COMPUTE, step)
                line.until(each.t_stepped + after_s, waited_for)
                line.until(each.t_end, _EXPOSED, step)
            before = each
        line.until(end_t, ends.after(log, attempt))
        found += line.tiles
    return found


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
    steps: int = 0
    betweens: int = 0

    def add(self, tile: _Tile) -> None:
        self.spent[tile.what] += tile.ended_t - tile.began_t
        self.betweens += tile.what == _BETWEEN

    def count(self, part: str) -> int:
        return self.betweens if part == _BETWEEN else self.steps

    def mean(self, part: str) -> float:
        return self.spent[part] / max(1, self.count(part))


def _slowdown(
    tiles: Sequence[_Tile],
    log: RankLog,
    counted: Collection[int],
    affected: Collection[tuple[int, int]],
    alike: Callable[[int], Hashable],
) -> dict[tuple[int, str], tuple[str, float]]:
    """Return (attempt, part) -> the class of what steps during faults took beyond the pace, and its share of the part.

    A step is compared with those outside the faults that are ``alike``, which have the same exchanges; if there are
    none, with all of them. Without a fault-free pace all of it is not told apart.
    """
    quiet = defaultdict[Hashable, _Parts](_Parts)
    during = defaultdict[int, dict[Hashable, _Parts]](lambda: defaultdict(_Parts))
    every = _Parts()
    for tile in tiles:
        if tile.step is not None:
            attempt, slow, step = tile.step
            for parts in [during[attempt][alike(step)]] if slow else [quiet[alike(step)], every]:
                parts.add(tile)
    if not during:
        return {}
    for it in log.steps:
        if id(it) in counted:
            slow = (it.attempt, it.step) in affected
            for parts in [during[it.attempt][alike(it.step)]] if slow else [quiet[alike(it.step)], every]:
                parts.steps += 1
    found: dict[tuple[int, str], tuple[str, float]] = {}
    for attempt, kinds in during.items():
        if not every.steps:
            found |= {(attempt, part): (_UNTOLD, 1.0) for part in _PARTS}
            continue
        spent = {part: sum(parts.spent[part] for parts in kinds.values()) for part in _PARTS}
        pace = {
            part: sum(
                (quiet[kind] if quiet[kind].count(part) else every).mean(part) * parts.count(part)
                for kind, parts in kinds.items()
            )
            for part in _PARTS
        }
        over = {part: max(0.0, spent[part] - pace[part]) for part in _PARTS}
        slowed_s = max(0.0, sum(spent.values()) - sum(pace.values()))
        share = min(1.0, slowed_s / sum(over.values())) if sum(over.values()) > 0 else 0.0
        for part in _PARTS:
            if spent[part] > 0:
                found[attempt, part] = ("slowed_by_faults_s", share * over[part] / spent[part])
    return found


def _add(
    tiles: Sequence[_Tile],
    slowdown: Mapping[tuple[int, str], tuple[str, float]],
    spans: Sequence[tuple[int, bool, float, float]],
    sums: Sequence[Sums],
) -> None:
    """Add the tiles of one rank to the spans that they lie in."""
    at = 0
    for tile in tiles:
        while at + 1 < len(spans) and spans[at][3] <= tile.began_t:
            at += 1
        excess, share = slowdown.get((tile.step[0], tile.what), ("", 0.0)) if tile.step and tile.step[1] else ("", 0.0)
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
