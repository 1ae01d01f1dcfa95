"""Speed: time operations that all ranks begin at the same moment, repeatedly, and count their bytes on the fibers."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.validation.cases import SpeedSeries
from testbed.core.validation.operation import CollectiveOperation
from testbed.lab.validation.library_session import Session
from testbed.lab.validation.traffic_meter import Wire

__all__ = ["Measured", "measure"]

LEAST_LEAD_S: Final = 0.02
"""Time from sending a line to the common start: all ranks must have read it and prepared their input by then."""

LEAD: Final = 1.5
"""Multiple of the time that the slowest rank took to prepare its input when it did not have to be ready in time."""

LATE_S: Final = 1e-3
"""A rank that begins this long after the common start was not ready, and the time is not the library's."""

MOST_LATE: Final = 3
"""Repeats that are done again because a rank began late; later ones count even if late."""

MOST_S: Final = 20.0
LEAST_REPEATS: Final = 3
"""A series that takes longer than MOST_S, on a busy machine, ends when it has this many repeats."""

_COMPILING: Final = -1
"""Number of the call before all others of a series."""

MORE_CALLS: Final = 50_000
"""Added to the number of a call that is repeated."""


@dataclass(frozen=True)
class Measured:
    """``times_s``: from the common start at ``began_t`` to the last rank's end, of each repeat. ``crossing``: payload
    bytes of one operation, by direction, the median over the repeats. ``trouble``: why the series stopped early; empty
    if it did not. ``unsupported``: why the library does not support the operation. ``late``: repeats done again."""

    times_s: tuple[float, ...]
    crossing: Mapping[str, int]
    trouble: str = ""
    unsupported: str = ""
    late: int = 0
    began_t: tuple[float, ...] = ()


def measure(session: Session, wire: Wire, series: SpeedSeries) -> Measured:
    """Run all calls of a series. Warm-up calls make connections and buffers, and do not count.

    The first warm-up call is done twice without a common start: once so that programs are compiled, and once to see how
    long before the common start ranks must receive a line. Raises LibraryFailed, LabError.
    """
    session.ready()
    group = session.world
    lead_s = 0.0
    times: list[float] = []
    began_t: list[float] = []
    crossed: list[Mapping[str, int]] = []
    late = 0
    waiting = [(_COMPILING, _again(series.calls[0])), *enumerate(series.calls)]
    until_t = time.monotonic() + MOST_S
    while waiting and not (len(times) >= LEAST_REPEATS and time.monotonic() > until_t):
        number, operation = waiting.pop(0)
        sent_t = time.monotonic()
        at = sent_t + lead_s if number > 0 else None
        with wire.counted() as crossing:
            done = session.perform([(operation, group)], at=at)
        if done.refused:
            return Measured((), {}, unsupported=done.refused)
        if done.finished_t is None or done.began_t is None:
            return Measured(tuple(times), _medians(crossed), trouble=done.trouble, late=late, began_t=tuple(began_t))
        if at is not None and (done.first_began_t or at) < at:
            return Measured((), {}, trouble="a rank did not wait for the common start")
        if number == 0:
            lead_s = LEAST_LEAD_S + LEAD * (done.began_t - sent_t)
        if at is None or number < series.warm_up:
            continue
        if done.began_t - at > LATE_S and late < MOST_LATE:
            late += 1
            lead_s *= 1.5
            waiting.append((number, _again(operation)))
            continue
        times.append(done.finished_t - at)
        began_t.append(at)
        crossed.append(crossing)
    return Measured(tuple(times), _medians(crossed), late=late, began_t=tuple(began_t))


def _again(operation: CollectiveOperation) -> CollectiveOperation:
    return dataclasses.replace(operation, call=operation.call + MORE_CALLS)


def _medians(crossed: Sequence[Mapping[str, int]]) -> dict[str, int]:
    names = crossed[0] if crossed else ()
    return {name: round(statistics.median(max(0, crossing.get(name, 0)) for crossing in crossed)) for name in names}
