"""The experiment in a report: what it teaches, and its fault schedule with what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from testbed.core.fields import Fields, integer, mapping, number, text
from testbed.core.physics import full_scale
from testbed.core.records.run_info import RunInfo
from testbed.core.report import fault_words, formats
from testbed.core.report.blocks import Section, Table, Text

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["section", "table", "teaches"]

_HEAD = ("when", "fault", "for", "began")


def teaches(info: RunInfo) -> str:
    """Return what the experiment teaches as a sentence; empty if it does not say."""
    purpose = text(info.experiment, "teaches").strip().rstrip(".")
    return f"{formats.upper_first(purpose)}." if purpose else ""


def table(info: RunInfo, scale: float = 1.0) -> Table | None:
    """The fault schedule as planned, and how often each fault began; None if no fault was planned. Runs of earlier
    versions did not record how long a fault was to last."""
    rows = list(_rows(info, scale))
    if any("lasts_s" in fault for fault in info.schedule):
        return Table.of(_HEAD, rows, "Fault schedule", (2, 3))
    return Table.of((*_HEAD[:2], _HEAD[3]), [(*row[:2], row[3]) for row in rows], "Fault schedule", (2,))


def _rows(info: RunInfo, scale: float) -> Iterator[tuple[str, ...]]:
    for fault in info.schedule:
        parameters = {str(key): value for key, value in mapping(fault, "parameters").items() if isinstance(value, str)}
        planned, began = integer(fault, "repeat") or 1, integer(fault, "began")
        yield (
            _when(fault),
            full_scale.in_text(fault_words.in_full(text(fault, "inject"), text(fault, "target"), parameters), scale),
            _for(fault),
            formats.UNKNOWN if began is None else f"{formats.count(began)} of {formats.count(planned)}",
        )


def _when(fault: Fields) -> str:
    after, at_s, when = integer(fault, "after_step"), number(fault, "at_s"), text(fault, "when")
    time = formats.UNKNOWN
    if after is not None:
        time = f"after step {formats.count(after)}"
    elif at_s is not None:
        time = f"at {formats.duration(at_s)}"
    elif when:
        time = f"once {when}"
    repeat, every_s = integer(fault, "repeat") or 1, number(fault, "every_s")
    every = f" every {formats.duration(every_s)}" if every_s else ""
    return f"{time}, {formats.count(repeat)} times{every}" if repeat > 1 else time


def _for(fault: Fields) -> str:
    if "lasts_s" not in fault:
        return formats.UNKNOWN
    lasts_s = number(fault, "lasts_s")
    return "until the end" if lasts_s is None else formats.duration(lasts_s)


def section(report: Report) -> Section | None:
    run = report.run
    return Section.of("Experiment", Text(teaches(run)), table(run, report.scale))
