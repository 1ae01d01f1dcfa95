"""The plots of two runs side by side: those of each run's own page, with the same axes, so that heights compare."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from testbed.core.report.comparison.side import Side
from testbed.core.report.figures.run_figures import Figure, figures

__all__ = ["SHOWN", "pairs", "placed"]

SHOWN = ("step-time", "throughput")
"""Ids of the plots of a run's page that are shown of both runs."""

_AXES = ("xaxis", "yaxis")


def pairs(a: Side, b: Side) -> tuple[tuple[Figure | None, Figure | None], ...]:
    """Return the plots of A and B beside each other; None where a run has nothing for one."""
    mine, theirs = _own(a), _own(b)
    found = [(mine.get(id), theirs.get(id)) for id in SHOWN if id in mine or id in theirs]
    return tuple(_alike(left, right) for left, right in found)


def _own(side: Side) -> Mapping[str, Figure]:
    return {it.id: it for it in figures(side.report) if it.id in SHOWN} if side.report else {}


def _alike(left: Figure | None, right: Figure | None) -> tuple[Figure | None, Figure | None]:
    ranges: dict[str, Sequence[float]] = {}
    if left and right:
        for axis in _AXES:
            if _kind(left, axis) == _kind(right, axis) and (common := _common(left, right, axis)):
                ranges[axis] = common
    return _named(left, "A", ranges), _named(right, "B", ranges)


def _named(figure: Figure | None, side: str, ranges: Mapping[str, Sequence[float]]) -> Figure | None:
    """Give a plot the side's name, as its id has to be unique on the page, and the axes' ranges."""
    if figure is None:
        return None
    layout = dict(_layout(figure))
    for axis, reach in ranges.items():
        own = dict(_axis(figure, axis))
        own.pop("rangemode", None)
        layout[axis] = {**own, "range": list(reach), "autorange": False}
    spec = {**figure.spec, "layout": layout}
    return dataclasses.replace(figure, id=f"{side.lower()}-{figure.id}", title=f"{side}: {figure.title}", spec=spec)


def _layout(figure: Figure) -> Mapping[str, object]:
    layout = figure.spec.get("layout")
    return layout if isinstance(layout, Mapping) else {}


def _axis(figure: Figure, axis: str) -> Mapping[str, object]:
    found = _layout(figure).get(axis)
    return found if isinstance(found, Mapping) else {}


def _kind(figure: Figure, axis: str) -> object:
    return _axis(figure, axis).get("type", "linear")


def _common(left: Figure, right: Figure, axis: str) -> tuple[float, float] | None:
    """Return the range of ``axis`` that holds both plots; of a logarithmic one in powers of ten, as plotly takes it."""
    reach = [it for figure in (left, right) for it in _reach(figure, axis)]
    if not reach:
        return None
    low, high = min(reach), max(reach)
    if _kind(left, axis) != "log" and low >= 0:
        low = 0.0
    room = 0.04 * (high - low) or 1.0
    return (low if low == 0 else low - room, high + room)


def _reach(figure: Figure, axis: str) -> Iterator[float]:
    """Yield the ends of a plot's own range, or those of its data where it leaves the range to plotly."""
    given = _axis(figure, axis).get("range")
    if isinstance(given, Sequence) and all(isinstance(it, int | float) for it in given):
        yield from given
        return
    logarithmic = _kind(figure, axis) == "log"
    data = figure.spec.get("data")
    for trace in data if isinstance(data, Sequence) else ():
        values = trace.get(axis[0]) if isinstance(trace, Mapping) else None
        numbers = [it for it in values if isinstance(it, int | float)] if isinstance(values, Sequence) else []
        if logarithmic:
            numbers = [math.log10(it) for it in numbers if it > 0]
        if numbers:
            yield min(numbers)
            yield max(numbers)


def placed(found: Sequence[tuple[Figure | None, Figure | None]]) -> tuple[Figure, ...]:
    """Return all plots of ``found`` in a row, for the page's script."""
    return tuple(figure for pair in found for figure in pair if figure is not None)
