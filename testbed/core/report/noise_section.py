"""The noise of the host in a report: the sentence on the first screen, and the verdicts of expectations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.core.analysis.noise.host_noise import NoiseSummary
from testbed.core.analysis.noise.inside_noise import Range
from testbed.core.experiment import expect
from testbed.core.records.run_info import JudgedExpectation
from testbed.core.report import formats
from testbed.core.units import Unreadable

__all__ = ["judged", "sentence"]


def judged(expectations: Sequence[JudgedExpectation], ranges: Mapping[str, Range]) -> tuple[JudgedExpectation, ...]:
    """Return the expectations; an expectation is unknown if its verdict differs within the range of its metric."""
    return tuple(_judged(expectation, ranges) for expectation in expectations)


def _judged(recorded: JudgedExpectation, ranges: Mapping[str, Range]) -> JudgedExpectation:
    try:
        expectation = expect.parse(recorded.text)
    except Unreadable:
        return recorded
    uncertain = ranges.get(expectation.metric)
    if uncertain is None or recorded.measured is None:
        return recorded
    low, high = uncertain
    if expectation.op in ("==", "!="):
        same = not low <= expectation.bound <= high
    else:
        same = expectation.holds(low) == expectation.holds(high)
    return replace(recorded, holds=recorded.holds if same else None, low=low, high=high)


def sentence(summary: NoiseSummary | None) -> str:
    """Return a sentence on a noisy host; empty if the host is quiet, or its noise is unknown."""
    if summary is None or not summary.noisy:
        return ""
    timeouts = f", {formats.plural(summary.timeouts, 'TCP timeout')} began in stalls" if summary.timeouts else ""
    return (
        f"Noisy host: at least one core was stalled {formats.share(summary.stalled_share)} of the time"
        f" ({formats.plural(summary.stalls, 'stall')}, the longest {formats.duration(summary.longest_s)}{timeouts})."
        " Verdicts that the stalls could change are unknown."
    )
