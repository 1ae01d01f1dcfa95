"""The note of a report that packets were captured meanwhile: capturing costs CPU, and may have disturbed the run."""

from __future__ import annotations

from testbed.core.records.capture_record import CaptureRecord
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats

__all__ = ["sentence", "whose"]


def whose(run: RunInfo) -> tuple[str, ...]:
    """Return whose packets were captured and where, each once: ``north:west behind the fiber``."""
    return tuple(dict.fromkeys(_whose(it) for it in run.captures))


def _whose(it: CaptureRecord) -> str:
    return f"{', '.join(it.directions)} {'before' if it.before else 'behind'} the fiber"


def sentence(run: RunInfo) -> str:
    """Return the note; empty if nothing was captured."""
    if not run.captures:
        return ""
    told = "; ".join(_one(it) for it in run.captures)
    return (
        f"Packets were captured while this was measured: {told}. Capturing costs CPU, so steps may have been slower and"
        " packets later than without it."
    )


def _one(it: CaptureRecord) -> str:
    lasted = ""
    if it.began_t is not None and it.ended_t is not None:
        lasted = f" for {formats.duration(it.ended_t - it.began_t)}"
    elif it.ended_t is None:
        lasted = " until the end"
    if it.packets is None:
        return f"{_whose(it)}{lasted}"
    lost = f"{formats.count(it.dropped)} more dropped by the kernel" if it.dropped else "none dropped by the kernel"
    return f"{_whose(it)}{lasted} ({formats.plural(it.packets, 'packet')}, {lost})"
