"""The faults over a plot: a shade from the beginning to the end of each, by its effect, with its name or number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from testbed.core.report.document import Report
from testbed.core.report.figures.fault_effects import effects
from testbed.core.report.figures.plotly_figure import PURPLE, Json, Marks, Span, plain, short
from testbed.core.report.sections.faults_section import Fault
from testbed.core.report.sections.steady_section import Steady

__all__ = ["fault_marks", "shaded", "time_span", "violations", "with_faults"]

_ROOM_OF_NUMBERS = 0.08
"""Of the width of a plot."""
_ROOM_OF_A_LETTER = 7 / 276
"""Seven pixels of a plot on a page of 400."""
_MARGIN = 0.01
"""Of the length of the time: what happens at its very ends is seen, too."""
_LONGEST_CONDITION = 36


def time_span(report: Report) -> Span:
    """Return the time from the beginning of the job to the last thing that is known of the run."""
    begins = [fault.began_s for fault in report.faults]
    ends = [fault.ended_s for fault in report.faults if fault.ended_s is not None]
    series = [report.steps.t_s, *(it.t_s for it in report.fibers), *(it.t_s for it in report.scraped.ranks)]
    ends += [t_s[-1] for t_s in series if t_s]
    ends += [gap.ended_s for it in report.scraped.ranks for gap in it.gaps]
    ends += [it.ended_s for check in report.steady for it in check.violations]
    first, last = min([0.0, *begins]), max([report.training.wall_s or 0.0, *begins, *ends])
    margin = _MARGIN * (last - first) or 0.5
    return Span(first - margin, last + margin)


def with_faults(report: Report) -> str:
    """Return the words of a summary about the shades of faults; empty if there were none."""
    return ", with the faults shaded" if report.faults else ""


def fault_marks(report: Report, span: Span) -> Marks:
    """Mark every fault of the run on a plot over time."""
    return shaded(report, report.faults, span.first_s, span.last_s, lambda t_s: t_s)


def shaded(
    report: Report, faults: Sequence[Fault], first: float, last: float, place: Callable[[float], float]
) -> Marks:
    """Mark each of ``faults`` from its beginning to its end, ``last`` if it has none.

    ``place`` is the position of a time on the axis, of which ``first`` to ``last`` is shown.
    """
    by = effects(report)
    lefts = [place(fault.began_s) for fault in faults]
    across: Json = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    shapes: list[Json] = []
    for fault, left in zip(faults, lefts, strict=True):
        right = last if fault.ended_s is None else place(fault.ended_s)
        it = by[fault.fault]
        bare: Json = {"fillcolor": it.fill, "line": {"width": 0}, "layer": "below"}
        shapes.append({"type": "rect", "x0": left, "x1": right, **across, **bare})
        # A fault of milliseconds would be too narrow to see.
        edge: Json = {"color": it.color, "width": 1.5, "dash": it.dash}
        shapes.append({"type": "line", "x0": left, "x1": left, **across, "line": edge})
    at: Json = {"xref": "x", "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 3}
    annotations = (
        {"text": plain(text), "x": left, **at, "showarrow": False}
        for left, text in _labels([fault.label for fault in faults], lefts, first, last)
    )
    return Marks(tuple(shapes), tuple(annotations))


def _labels(names: Sequence[str], lefts: Sequence[float], first: float, last: float) -> list[tuple[float, str]]:
    """Return (where, text) so that no label covers another or leaves the plot: names if there is room for all, else the
    faults' numbers, with one label for numbers that are close together."""
    width = last - first or 1.0
    named = sorted(zip(lefts, names, strict=True))
    if all(
        after - left >= _ROOM_OF_A_LETTER * len(name) * width
        for (left, name), (after, _) in pairwise([*named, (last, "")])
    ):
        return list(zip(lefts, names, strict=True))
    groups: list[tuple[float, list[int]]] = []
    for left, number in sorted((left, number) for number, left in enumerate(lefts, 1)):
        if groups and left - groups[-1][0] < _ROOM_OF_NUMBERS * width:
            groups[-1][1].append(number)
        else:
            groups.append((left, [number]))
    return [(left, _numbers(numbers)) for left, numbers in groups]


def _numbers(numbers: Sequence[int]) -> str:
    """``7``, ``7, 8``, ``7–9``."""
    first, last = min(numbers), max(numbers)
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}–{last}"
    return ", ".join(map(str, sorted(numbers))) if len(numbers) < 4 else f"{first} … {last}"


def violations(checks: tuple[Steady, ...]) -> Marks:
    """A bar at the foot of a plot for each interval in which the steady state was violated."""
    foot: Json = {"xref": "x", "yref": "paper", "y0": 0, "y1": 0.05, "fillcolor": PURPLE, "line": {"width": 0}}
    at: Json = {"xref": "x", "y": 0.05, "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False}
    return Marks(
        tuple(
            {"type": "rect", "x0": each.began_s, "x1": each.ended_s, **foot}
            for check in checks
            for each in check.violations
        ),
        # One label for all intervals of a condition: they may be close together.
        tuple(
            {"text": plain(short(f"not {check.text}", _LONGEST_CONDITION)), "x": check.violations[0].began_s, **at}
            for check in checks
            if check.violations
        ),
    )
