"""The scale model in a report: quantities that dividing rates by the scale biases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from testbed.core.fields import Fields, number, text
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats
from testbed.core.report.blocks import Section, Table, Text
from testbed.core.units import format_number

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["lead", "section", "table"]

_HEAD = ("fiber", "quantity", "here", "at full scale", "verdict", "why, and what helps")


def section(report: Report) -> Section | None:
    return Section.of("Scale model", Text(lead(report.run)), table(report.run))


def table(run: RunInfo) -> Table | None:
    """The quantities that scaling biases; None if nothing is scaled."""
    return Table.of(_HEAD, _rows(run), "Scale model", (2, 3))


def _rows(run: RunInfo) -> Iterator[tuple[str, ...]]:
    for fiber, finding in _worst(run):
        if text(finding, "verdict") != "holds":
            why = "; ".join(filter(None, (text(finding, "reason"), text(finding, "change"))))
            bias = " ".join(filter(None, (text(finding, "verdict"), text(finding, "direction"))))
            amounts = (_amount(number(finding, key), text(finding, "unit")) for key in ("lab", "real"))
            yield (fiber, text(finding, "quantity"), *amounts, bias, why)


def _worst(run: RunInfo) -> Iterator[tuple[str, Fields]]:
    """Return each quantity once, as it is on the fiber with the largest bias: the reasons of the others are the same,
    with other numbers."""
    groups: dict[tuple[str, str, str], list[Fields]] = {}
    for quantity in run.validity:
        key = (text(quantity, "quantity"), text(quantity, "verdict"), text(quantity, "direction"))
        groups.setdefault(key, []).append(quantity)
    for alike in groups.values():
        worst = max(alike, key=lambda quantity: number(quantity, "error") or 0.0)
        fiber = text(worst, "fiber")
        yield (f"{fiber}, the worst of {len(alike)}" if len(alike) > 1 else fiber), worst


def lead(run: RunInfo) -> str:
    """Return a sentence about how much of the scale model holds; empty if it was not checked."""
    if not run.validity:
        return ""
    quantities = {text(quantity, "quantity") for quantity in run.validity}
    biased = {text(quantity, "quantity") for quantity in run.validity if text(quantity, "verdict") != "holds"}
    return (
        f"Rates and payloads are divided by the scale, latency is not: {len(quantities - biased)} of {len(quantities)}"
        " quantities hold unchanged on every fiber."
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return formats.UNKNOWN
    return formats.duration(value) if unit == "s" else f"{format_number(value, 3)} {unit}"
