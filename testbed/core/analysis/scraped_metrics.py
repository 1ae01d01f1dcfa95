"""What the scrapes of the ranks' ``/metrics`` say over time, and how far they disagree with the step records.

Scrapes and step records are two measurements of one thing, made by different code: the counters are summed up by the
rank's process and read from outside once a second, the records are one line a step. So each checks the other.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from testbed.core.records.rank_log import RankLog, StepRecord
from testbed.core.records.samples import DECIMALS, DIGITS, RankSample

__all__ = ["RankTrack", "ScrapeComparison", "ScrapeGap", "ScrapedMetrics", "evaluate"]

MOST_ROWS: Final = 500
"""Rows of a track; a longer run is thinned, which leaves means between rows exact, because counters accumulate."""

MISSED: Final = 1.5
"""A time between two answers is a gap from this many intervals on."""


@dataclass(frozen=True)
class ScrapeGap:
    """From a rank's last answer (or first request) to its next answer (or last request); ``missed`` scrapes in between.

    ``why`` is the reason of the last one: ``timeout``, ``refused``, …; empty where the run does not record it.
    """

    began_s: float
    ended_s: float
    missed: int
    why: str


@dataclass(frozen=True)
class RankTrack:
    """One rank over time, in seconds since the job began: one list per quantity, None where it is unknown.

    Attributes:
        t_s: times of answers; between two that are far apart, a time without values.
        tokens_per_s: mean since the time before.
        exposed_share: exposed communication / (compute + exposed), 0..1, of the steps that ended since the time before.
        cpu_cores: CPU time of the rank's process per second since the time before.
        memory_bytes: resident memory; of thinned rows the largest.
        asked: scrapes of the rank.
        answered: scrapes that it answered.
    """

    rank: int
    node: str
    site: str
    t_s: tuple[float, ...]
    tokens_per_s: tuple[float | None, ...]
    exposed_share: tuple[float | None, ...]
    cpu_cores: tuple[float | None, ...]
    memory_bytes: tuple[int | None, ...]
    asked: int
    answered: int
    gaps: tuple[ScrapeGap, ...]


@dataclass(frozen=True)
class ScrapeComparison:
    """A quantity by the last scrape of each rank and attempt, and by the records of the same steps, summed up.

    ``disagreement`` is the largest of any scrape, relative to the records, and of ``rank``; 0 if none disagrees. A
    scrape that falls into the end of a step may have either step's value.
    """

    quantity: str
    unit: str
    scraped: float
    recorded: float
    disagreement: float
    """Largest of any scrape, relative to the step records."""
    rank: int | None


@dataclass(frozen=True)
class ScrapedMetrics:
    """``late_s`` is how long a step was in the records of ``late_rank`` before a scrape counted it, at most.

    ``unmatched`` scrapes count steps that have no record.
    """

    interval_s: float | None = None
    ranks: tuple[RankTrack, ...] = ()
    comparisons: tuple[ScrapeComparison, ...] = ()
    compared: int = 0
    unmatched: int = 0
    """Scrapes that count steps without a record."""
    late_s: float | None = None
    late_rank: int | None = None

    @property
    def disagreement(self) -> float | None:
        """The largest of all quantities; None if nothing could be compared."""
        return max((comparison.disagreement for comparison in self.comparisons), default=None)


def evaluate(
    samples: Sequence[RankSample], logs: Sequence[RankLog], began_t: float | None, ended_t: float | None
) -> ScrapedMetrics:
    """Evaluate the scrapes from the beginning of the job to its end; nothing without step records, because the agents'
    metrics say nothing about a user's program."""
    if began_t is None or not any(log.steps for log in logs):
        return ScrapedMetrics()
    asked: dict[int, list[RankSample]] = {}
    for sample in samples:
        if began_t <= sample.t and (ended_t is None or sample.t <= ended_t):
            asked.setdefault(sample.rank, []).append(sample)
    interval_s = _interval(asked.values())
    of_rank = {log.rank: log for log in logs}
    tracks = []
    if interval_s is not None:  # else the job was shorter than two scrapes, but its last one can be compared
        for rank, samples_of_rank in sorted(asked.items()):
            log = of_rank.get(rank, RankLog(rank))
            tracks.append(_track(log, samples_of_rank, began_t, interval_s))
    # The last answers may come after the job has ended: the counters are final then.
    late = [sample for sample in samples if sample.t >= began_t and sample.rank in of_rank]
    return _compared(ScrapedMetrics(interval_s, tuple(tracks)), late, of_rank)


def _interval(asked: Iterable[Sequence[RankSample]]) -> float | None:
    """Return the median time between two scrapes of a rank; None without two."""
    between = [
        after.t - before.t
        for samples_of_rank in asked
        for before, after in pairwise(samples_of_rank)
        if after.t > before.t
    ]
    return statistics.median(between) if between else None


# ---- over time


def _track(log: RankLog, asked: Sequence[RankSample], began_t: float, interval_s: float) -> RankTrack:
    answers = [sample for sample in asked if _answered(sample)]
    stride = -(-len(answers) // MOST_ROWS) or 1
    rows = list(_rows(answers, stride, interval_s))
    return RankTrack(
        rank=log.rank,
        node=log.node,
        site=log.site,
        t_s=tuple(row.t - began_t for row in rows),
        tokens_per_s=tuple(row.tokens_per_s for row in rows),
        exposed_share=tuple(row.exposed_share for row in rows),
        cpu_cores=tuple(row.cpu_cores for row in rows),
        memory_bytes=tuple(row.memory_bytes for row in rows),
        asked=len(asked),
        answered=len(answers),
        gaps=tuple(_gaps(asked, began_t, interval_s)),
    )


def _answered(sample: RankSample) -> bool:
    return not sample.why and sample.steps is not None


@dataclass(frozen=True)
class _Row:
    t: float
    tokens_per_s: float | None = None
    exposed_share: float | None = None
    cpu_cores: float | None = None
    memory_bytes: int | None = None


def _rows(answers: Sequence[RankSample], stride: int, interval_s: float) -> Iterator[_Row]:
    taken = [answers[index] for index in range(0, len(answers), stride)]
    before: RankSample | None = None
    for number, after in enumerate(taken):
        seen = answers[max(0, (number - 1) * stride + 1) : number * stride + 1]
        memory = max((sample.memory_bytes for sample in seen if sample.memory_bytes is not None), default=None)
        if before is None:
            yield _Row(after.t, memory_bytes=memory)
        else:
            if after.t - before.t > MISSED * stride * interval_s:
                yield _Row((before.t + after.t) / 2)  # a plotted line must not cross the gap
            yield _between(before, after, memory)
        before = after


def _between(before: RankSample, after: RankSample, memory: int | None) -> _Row:
    passed = after.t - before.t
    fresh = (after.steps or 0) < (before.steps or 0) or (after.cpu_s or 0.0) < (before.cpu_s or 0.0)
    if passed <= 0 or fresh:  # the counters of another process
        return _Row(after.t, memory_bytes=memory)
    tokens, compute_s = _grown(before.tokens, after.tokens), _grown(before.compute_s, after.compute_s)
    exposed_s, cpu_s = _grown(before.exposed_s, after.exposed_s), _grown(before.cpu_s, after.cpu_s)
    busy_s = None if compute_s is None or exposed_s is None else compute_s + exposed_s
    return _Row(
        after.t,
        tokens_per_s=None if tokens is None else tokens / passed,
        exposed_share=exposed_s / busy_s if busy_s and exposed_s is not None else None,
        cpu_cores=None if cpu_s is None else cpu_s / passed,
        memory_bytes=memory,
    )


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


def _gaps(asked: Sequence[RankSample], began_t: float, interval_s: float) -> Iterator[ScrapeGap]:
    last_t, missed, why = asked[0].t, 0, ""
    for sample in asked:
        if not _answered(sample):
            missed, why = missed + 1, sample.why
            continue
        # Runs of older versions left out the scrapes that were not answered.
        missed = missed or (
            round((sample.t - last_t) / interval_s) - 1 if _is_long(sample.t - last_t, interval_s) else 0
        )
        if missed:
            yield ScrapeGap(last_t - began_t, sample.t - began_t, missed, why)
        last_t, missed, why = sample.t, 0, ""
    if missed:
        yield ScrapeGap(last_t - began_t, asked[-1].t - began_t, missed, why)


def _is_long(passed_s: float, interval_s: float) -> bool:
    return passed_s > MISSED * interval_s


# ---- against the step records


@dataclass(frozen=True)
class _Quantity:
    name: str
    unit: str
    scraped: Callable[[RankSample], float | None]
    recorded: Callable[[StepRecord], float]
    summands: int
    """How many rounded numbers of metrics.jsonl it is the sum of."""

    def rounding(self, value: float) -> float:
        """Return how far a stored value may be from the scraped one."""
        return self.summands * max(10.0**-DECIMALS, 10.0 ** (1 - DIGITS) * value)


_QUANTITIES: Final = (
    _Quantity("tokens", "tokens", lambda record: record.tokens, lambda record: record.tokens, 0),
    _Quantity("compute", "s", lambda record: record.compute_s, lambda record: record.compute_s, 1),
    _Quantity("exposed communication", "s", lambda record: record.exposed_s, lambda record: record.exposed_s, 2),
)


@dataclass
class _Attempt:
    """The steps of one rank in one attempt, and for each quantity its sums: ``sums[name][n]`` of the first n steps."""

    steps: tuple[StepRecord, ...]
    sums: Mapping[str, Sequence[float]]
    last: RankSample | None = None


@dataclass
class _Worst:
    disagreement: float = 0.0
    rank: int | None = None
    seen: bool = False

    def note(self, disagreement: float, rank: int) -> None:
        if not self.seen or disagreement > self.disagreement:
            self.disagreement, self.rank, self.seen = disagreement, rank, True


@dataclass
class _Tally:
    worst: Mapping[str, _Worst] = field(default_factory=lambda: {quantity.name: _Worst() for quantity in _QUANTITIES})
    late: _Worst = field(default_factory=_Worst)
    compared: int = 0
    unmatched: int = 0


def _compared(scraped: ScrapedMetrics, samples: Sequence[RankSample], logs: Mapping[int, RankLog]) -> ScrapedMetrics:
    tally = _Tally()
    attempts = {rank: {job.attempt: _attempt(log, job.attempt) for job in log.jobs} for rank, log in logs.items()}
    starts = {rank: [job.t for job in log.jobs] for rank, log in logs.items()}
    for sample in samples:
        index = bisect_right(starts[sample.rank], sample.t) - 1
        if not _answered(sample) or index < 0:
            continue
        attempt = attempts[sample.rank][logs[sample.rank].jobs[index].attempt]
        _compare(sample, attempt, tally)
    lasts = [attempt for of_rank in attempts.values() for attempt in of_rank.values() if attempt.last is not None]
    return ScrapedMetrics(
        scraped.interval_s,
        scraped.ranks,
        tuple(
            _comparison(quantity, lasts, tally.worst[quantity.name])
            for quantity in _QUANTITIES
            if tally.worst[quantity.name].seen
        ),
        tally.compared,
        tally.unmatched,
        tally.late.disagreement if tally.late.seen else None,
        tally.late.rank,
    )


def _attempt(log: RankLog, number: int) -> _Attempt:
    steps = tuple(sorted((record for record in log.steps if record.attempt == number), key=lambda record: record.step))
    return _Attempt(
        steps, {quantity.name: list(accumulate(map(quantity.recorded, steps), initial=0.0)) for quantity in _QUANTITIES}
    )


def _compare(sample: RankSample, attempt: _Attempt, tally: _Tally) -> None:
    done = sample.steps or 0
    if not 0 <= done <= len(attempt.steps):
        tally.unmatched += 1
        return
    tally.compared += 1
    attempt.last = sample
    for quantity in _QUANTITIES:
        if (value := quantity.scraped(sample)) is None:
            continue
        sums = attempt.sums[quantity.name]
        # The count of steps is the last counter that a step adds to: the others may be one step ahead.
        rounding = quantity.rounding(value)
        low, high = sums[done] - rounding, sums[min(done + 1, len(attempt.steps))] + rounding
        outside = max(low - value, value - high, 0.0)
        tally.worst[quantity.name].note(outside / sums[done] if sums[done] > 0 else float(outside > 0), sample.rank)
    if done < len(attempt.steps):
        tally.late.note(max(0.0, sample.t - attempt.steps[done].t_end), sample.rank)


def _comparison(quantity: _Quantity, attempts: Iterable[_Attempt], worst: _Worst) -> ScrapeComparison:
    scraped = recorded = 0.0
    for attempt in attempts:
        assert attempt.last is not None
        value = quantity.scraped(attempt.last)
        if value is not None:
            scraped += value
            recorded += attempt.sums[quantity.name][attempt.last.steps or 0]
    return ScrapeComparison(
        quantity.name, quantity.unit, scraped, recorded, worst.disagreement, worst.rank if worst.disagreement else None
    )
