"""The note of a report that packets were captured meanwhile: capturing costs CPU, and may have disturbed the run."""

from __future__ import annotations

from testbed.core.records.capture_record import CaptureRecord
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats

__all__ = ["sentence", "whose"]


def whose(run: RunInfo) -> tuple[str, ...]:
    """Return whose packets were captured and where, each once: ``north:west behind the fiber``."""
    return tuple(dict.fromkeys(_whose(capture) for capture in run.captures))


def _whose(capture: CaptureRecord) -> str:
    return f"{', '.join(capture.directions)} {'before' if capture.before else 'behind'} the fiber"


def sentence(run: RunInfo) -> str:
    """Return the note; empty if nothing was captured."""
    if not run.captures:
        return ""
    captures = "; ".join(_one(capture) for capture in run.captures)
    return (
        f"Packets were captured while this was measured: {captures}. Capturing costs CPU, so steps may have been slower"
        " and packets later than without it."
    )


def _one(capture: CaptureRecord) -> str:
    lasted = ""
    if capture.began_t is not None and capture.ended_t is not None:
        lasted = f" for {formats.duration(capture.ended_t - capture.began_t)}"
    elif capture.ended_t is None:
        lasted = " until the end"
    if capture.packets is None:
        return f"{_whose(capture)}{lasted}"
    lost = (
        f"{formats.count(capture.dropped)} more dropped by the kernel"
        if capture.dropped
        else "none dropped by the kernel"
    )
    return f"{_whose(capture)}{lasted} ({formats.plural(capture.packets, 'packet')}, {lost})"
