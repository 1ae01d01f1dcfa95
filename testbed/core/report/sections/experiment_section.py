"""The experiment in a report: what it teaches, and its fault schedule with what became of it."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.core.fields import Fields, integer, mapping, number, text
from testbed.core.physics import full_scale
from testbed.core.records.run_info import RunInfo
from testbed.core.report import fault_words, formats
from testbed.core.report.report_table import Table

__all__ = ["table", "teaches"]

_HEAD = ("when", "fault", "for", "began")


def teaches(info: RunInfo) -> str:
    """Return what the experiment teaches as a sentence; empty if it does not say."""
    said = text(info.experiment, "teaches").strip().rstrip(".")
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def table(info: RunInfo, scale: float = 1.0) -> Table | None:
    """The fault schedule as planned, and how often each fault began; None if no fault was planned. Runs of earlier
    versions did not record how long a fault was to last."""
    rows = list(_rows(info, scale))
    if any("lasts_s" in it for it in info.schedule):
        return Table.of(_HEAD, rows, "Fault schedule", (2, 3))
    return Table.of((*_HEAD[:2], _HEAD[3]), [(*row[:2], row[3]) for row in rows], "Fault schedule", (2,))


def _rows(info: RunInfo, scale: float) -> Iterator[tuple[str, ...]]:
    for each in info.schedule:
        parameters = {str(key): value for key, value in mapping(each, "parameters").items() if isinstance(value, str)}
        planned, began = integer(each, "repeat") or 1, integer(each, "began")
        yield (
            _when(each),
            full_scale.in_text(fault_words.in_full(text(each, "inject"), text(each, "target"), parameters), scale),
            _for(each),
            formats.UNKNOWN if began is None else f"{formats.count(began)} of {formats.count(planned)}",
        )


def _when(each: Fields) -> str:
    after, at_s, when = integer(each, "after_step"), number(each, "at_s"), text(each, "when")
    said = formats.UNKNOWN
    if after is not None:
        said = f"after step {formats.count(after)}"
    elif at_s is not None:
        said = f"at {formats.duration(at_s)}"
    elif when:
        said = f"once {when}"
    repeat, every_s = integer(each, "repeat") or 1, number(each, "every_s")
    every = f" every {formats.duration(every_s)}" if every_s else ""
    return f"{said}, {formats.count(repeat)} times{every}" if repeat > 1 else said


def _for(each: Fields) -> str:
    if "lasts_s" not in each:
        return formats.UNKNOWN
    lasts_s = number(each, "lasts_s")
    return "until the end" if lasts_s is None else formats.duration(lasts_s)
