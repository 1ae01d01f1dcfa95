"""Held-out loss of a job's outer parameters over its steps, its time and its bytes on the fiber. Pure.

The time is that of training: evaluations are not in it. Where sites hold different outer parameters (asynchronous
training), the loss is the mean of theirs.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from testbed.core.analysis.commits import lineage
from testbed.core.analysis.wire.wire_directions import HEADERS
from testbed.core.records.rank_log import EvaluationRecord, RankLog
from testbed.core.records.samples import FiberSample
from testbed.core.topology.direction import link_of

__all__ = ["HeldOut", "held_out", "payload_until"]


@dataclass(frozen=True)
class HeldOut:
    """One point for each evaluation, in the order of steps; one list per column.

    Attributes:
        t_s: seconds of training since the job began.
        fiber_bytes: TCP payload that all directions of all fibers had carried; None if they were not sampled.
        loss: nats per token. version: of the outer parameters.
        tokens: of all ranks, in the steps that count until then.
    """

    step: tuple[int, ...] = ()
    t_s: tuple[float, ...] = ()
    fiber_bytes: tuple[float | None, ...] = ()
    loss: tuple[float, ...] = ()
    version: tuple[int | None, ...] = ()
    tokens: tuple[int, ...] = ()


def held_out(
    logs: Sequence[RankLog], fibers: Sequence[FiberSample], mtu: Mapping[str, int], began_t: float | None
) -> HeldOut:
    """Return the curve; empty if nothing was evaluated. ``began_t``: when the job began. ``mtu``: by link."""
    by_step: defaultdict[int, dict[int, EvaluationRecord]] = defaultdict(dict)
    went_on_from = {job.attempt: job.resumed_from for log in logs for job in log.jobs}
    for log in logs:
        for evaluation in log.evaluations:
            later = (step for attempt, step in went_on_from.items() if attempt > evaluation.attempt)
            if evaluation.step <= min(later, default=evaluation.step):  # else a later attempt did the step again
                by_step[evaluation.step][log.rank] = evaluation
    site = {log.rank: log.site for log in logs}
    until = payload_until(fibers, mtu)
    # What was timed before the first step is not the job's.
    before = until(min((record.t_begin for log in logs for record in log.steps), default=0.0)) or 0.0

    def crossed(t: float) -> float | None:
        return None if (byte_count := until(t)) is None else max(0.0, byte_count - before)

    tokens = sorted((step, sum(record.tokens for record in row.values())) for step, row in lineage(logs).items())
    token_steps, totals = [step for step, _ in tokens], [0, *accumulate(count for _, count in tokens)]
    paused_s, points = 0.0, []
    for step, records in sorted(by_step.items()):
        took_s = max(evaluation.took_s or 0.0 for evaluation in records.values())
        t = max(evaluation.t for evaluation in records.values())
        loss = _loss(records, site)
        if loss is not None and began_t is not None:
            versions = [
                evaluation.outer_version for evaluation in records.values() if evaluation.outer_version is not None
            ]
            began = t - took_s
            trained = totals[bisect.bisect_right(token_steps, step)]
            t_s = began - began_t - paused_s
            points.append((step, t_s, crossed(began), loss, max(versions, default=None), trained))
        paused_s += took_s
    return HeldOut(*map(tuple, zip(*points, strict=True))) if points else HeldOut()


def payload_until(fibers: Sequence[FiberSample], mtu: Mapping[str, int]) -> Callable[[float], float | None]:
    """Return a function of time: the TCP payload that all directions had carried by then, in bytes.

    Between two samples it grows evenly; None before the first. A restarted emulator counts from zero.
    """
    tracks: defaultdict[str, list[FiberSample]] = defaultdict(list)
    for sample in fibers:
        tracks[sample.direction].append(sample)
    lines: list[tuple[list[float], list[float]]] = []
    for direction, track in tracks.items():
        frame = mtu.get(link_of(direction), 1500) + 14
        total, times, totals = 0.0, [track[0].t], [0.0]
        for one, other in pairwise(track):
            restarted = other.byte_count < one.byte_count
            moved = other.byte_count - (0 if restarted else one.byte_count)
            segments = other.segments - (0 if restarted else one.segments)
            # Runs of the first versions did not count segments.
            total += max(0.0, moved - HEADERS * segments if segments > 0 else moved * (frame - HEADERS) / frame)
            times.append(other.t)
            totals.append(total)
        lines.append((times, totals))

    def until(t: float) -> float | None:
        if not lines or all(t < times[0] for times, _ in lines):
            return None
        return sum(_at(times, totals, t) for times, totals in lines)

    return until


def _at(times: Sequence[float], totals: Sequence[float], t: float) -> float:
    index = bisect.bisect_right(times, t)
    if index == 0:
        return totals[0]
    if index == len(times):
        return totals[-1]
    share = (t - times[index - 1]) / (times[index] - times[index - 1])
    return totals[index - 1] + share * (totals[index] - totals[index - 1])


def _loss(records: Mapping[int, EvaluationRecord], site: Mapping[int, str]) -> float | None:
    """Return the mean over sites of the mean over a site's windows; None unless all ranks have their share."""
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for rank, evaluation in records.items():
        if evaluation.heldout_loss is None:
            return None
        sums[site.get(rank, "")][0] += evaluation.heldout_loss * evaluation.windows
        sums[site.get(rank, "")][1] += evaluation.windows
    means = [total / windows for total, windows in sums.values() if windows]
    return sum(means) / len(means) if means else None
