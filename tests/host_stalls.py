"""Stalls of this machine's cores while tests run, as ``fiberd --stalls`` logs them; times are of CLOCK_MONOTONIC.

A bound of elapsed time is extended by the stalls in its interval, and never by a larger constant: on a quiet machine
nothing is extended. Without a watch (no root, no real-time priority) no stalls are known. Imports nothing from
``testbed``, because oracles use this module.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

FIBERD = Path(__file__).resolve().parents[1] / "testbed" / "fiberd" / "fiberd"

PERIOD_S = 0.001
"""A stall may have begun this long before the watch was due to wake up."""

LOGGED_S = 0.005
"""Time after the end of a stall by which it is logged."""

AFTER_S = 0.002
"""Time after the end of a stall by which all waiting tasks have run."""

_watch: subprocess.Popen[bytes] | None = None
_stalls: list[tuple[float, float]] = []
"""(begin, end), by their end."""
_changing = threading.Lock()


def watch() -> None:
    """Watch all cores until this process ends."""
    global _watch
    if _watch is None:
        with contextlib.suppress(OSError):
            argv = [str(FIBERD), "--stalls", "--parent", str(os.getpid())]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            _watch = subprocess.Popen(argv, start_new_session=True, **pipes)  # type: ignore[call-overload]
            threading.Thread(target=_read, args=(_watch,), daemon=True).start()


def _read(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    next(process.stdout, None)  # period and threshold
    for line in process.stdout:
        _, due_ns, length_ns = map(int, line.split())
        with _changing:
            bisect.insort(_stalls, (due_ns * 1e-9 - PERIOD_S, (due_ns + length_ns) * 1e-9), key=lambda stall: stall[1])


def stalls(begin: float, end: float) -> list[tuple[float, float]]:
    """Return the (begin, end) of each time in which at least one core was stalled, within an interval."""
    if _watch is not None and time.monotonic() < end + LOGGED_S:
        time.sleep(LOGGED_S)
    with _changing:
        overlapping = sorted(_stalls[bisect.bisect(_stalls, begin, key=lambda stall: stall[1]) :])
    joined: list[tuple[float, float]] = []
    for first, last in overlapping:
        first, last = max(first, begin), min(last, end)
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        elif first < last:
            joined.append((first, last))
    return joined


def stalled_s(begin: float, end: float) -> float:
    """Return how long at least one core was stalled in an interval."""
    return sum(last - first for first, last in stalls(begin, end))


def elapsed_s(begin: float, end: float | None = None) -> float:
    """Return the time from ``begin`` to ``end`` (default: now) in which no core was stalled."""
    end = time.monotonic() if end is None else end
    return end - begin - stalled_s(begin, end)


def longest_gap_s(times: Sequence[float]) -> float:
    """Return the longest time between successive times, each less the stalls in it."""
    longest = 0.0
    for gap_s, begin in sorted(((end - begin, begin) for begin, end in itertools.pairwise(times)), reverse=True):
        if gap_s <= longest:
            break
        longest = max(longest, elapsed_s(begin, begin + gap_s))
    return longest


def undelayed(intervals: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each interval whether no core was stalled in it, nor in :data:`AFTER_S` before.

    What happened in such an interval was not delayed by the host, however long it took.
    """
    if not intervals:
        return []
    longest_s = 1.0  # longer than any stall that ended AFTER_S before the first interval
    stalled = stalls(min(intervals)[0] - longest_s, max(end for _, end in intervals))
    ends = [end for _, end in stalled]
    places = [bisect.bisect(ends, begin - AFTER_S) for begin, _ in intervals]
    return [place == len(stalled) or stalled[place][0] > end for place, (_, end) in zip(places, intervals, strict=True)]
