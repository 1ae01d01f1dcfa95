"""The plots of the training: train_loss over steps, the time of each step, and tokens per second."""

from __future__ import annotations

import math
from collections.abc import Sequence

from testbed.core.analysis.recovery import BACK
from testbed.core.report import formats
from testbed.core.report.document import Report, StepSeries
from testbed.core.report.figures.fault_marks import fault_marks, shaded, violations, with_faults
from testbed.core.report.figures.plotly_figure import (
    BLUE,
    Figure,
    Json,
    Span,
    axis,
    level,
    made,
    over_time,
    trace_mode,
)

__all__ = ["step_time", "tokens_over_time", "train_loss"]

_FAR_FROM_THE_MEDIAN = 20
"""A step this many times as long as the median needs a logarithmic axis."""
_MOST_BINS = 150
_STEPS_IN_A_BIN = 4
"""Fewer would show how steps fall into bins rather than how fast they are."""


def train_loss(report: Report) -> Figure | None:
    steps = report.steps
    if report.asleep or not any(value is not None for value in steps.train_loss):
        return None

    def step_at(t_s: float) -> float:
        return next((step for step, t in zip(steps.step, steps.t_s, strict=True) if t >= t_s), steps.step[-1])

    during = tuple(fault for fault in report.faults if fault.began_s <= steps.t_s[-1])
    unit = "" if report.program else " (nats per byte)"
    line: Json = {
        "type": "scatter",
        "x": steps.step,
        "y": steps.train_loss,
        "mode": trace_mode(steps.train_loss),
        "name": "train_loss",
        "line": {"color": BLUE, "width": 2},
        "hovertemplate": "step %{x}: %{y:.3f}<extra></extra>",
    }
    return made(
        "train-loss",
        "train_loss",
        f"train_loss over steps, from {formats.loss(report.train_loss_first)}"
        f" to {formats.loss(report.train_loss_last)}.",
        [line],
        {"xaxis": axis("step"), "yaxis": axis(f"train_loss{unit}"), "showlegend": False},
        shaded(report, during, min(steps.step), max(steps.step), step_at),
    )


def step_time(report: Report, span: Span) -> Figure | None:
    """Plot the time between commits; what is called the pace is a series of its own, no annotation (see Marks)."""
    steps = report.steps
    median = report.training.median_step_s
    if not steps.step:
        return None
    lines: list[Json] = [
        {
            "type": "scatter",
            "x": steps.t_s,
            "y": [1e3 * value for value in steps.duration_s],
            "customdata": [
                [step, formats.duration(value)] for step, value in zip(steps.step, steps.duration_s, strict=True)
            ],
            "mode": "lines+markers",
            "name": "step time",
            "line": {"color": BLUE, "width": 1},
            "marker": {"size": 4},
            "hovertemplate": "step %{customdata[0]} at %{x:.1f} s: %{customdata[1]}<extra></extra>",
        }
    ]
    if median:
        lines.append(level(span, 1e3 * BACK * median, f"back at its pace: {BACK:g} × median"))
    of_several = ", divided by the steps between them" if any(count > 1 for count in steps.covers) else ""
    far = bool(median) and max(steps.duration_s) > _FAR_FROM_THE_MEDIAN * (median or 0.0)
    scale: Json = {"type": "log", "dtick": 1} if far else {"rangemode": "tozero"}
    return made(
        "step-time",
        "Step time",
        f"Time between commits{of_several}{with_faults(report)}; the fault-free median is {formats.duration(median)}."
        + (" The axis is logarithmic." if far else ""),
        lines,
        {
            **over_time(span),
            "yaxis": axis("step time (ms)", exponentformat="none", separatethousands=True, **scale),
            "showlegend": True,
        },
        fault_marks(report, span) + violations(report.steady),
    )


def tokens_over_time(report: Report, span: Span) -> Figure | None:
    """Plot how fast committed tokens were trained on; a step's tokens count evenly over the time it took."""
    steps = report.steps
    if not sum(steps.tokens):
        return None
    end_s = max(steps.t_s[-1], report.training.wall_s or 0.0)
    width, rates = _binned(steps, end_s)
    edges = [*(round(index * width, 6) for index in range(len(rates))), end_s]
    lines: list[Json] = [
        {
            "type": "scatter",
            "x": edges,
            "y": [float(f"{rate:.6g}") for rate in (*rates, rates[-1])],
            "mode": "lines",
            "name": "all ranks",
            "line": {"color": BLUE, "width": 2, "shape": "hv"},
            "fill": "tozeroy",
            "fillcolor": "rgba(0, 114, 178, 0.10)",
            "hovertemplate": "from %{x:.1f} s: %{y:,.0f} tokens/s<extra></extra>",
        }
    ]
    mean = report.training.tokens_per_s
    if mean:
        lines.append(level(span, mean, f"mean of the job: {formats.count(mean)}"))
    return made(
        "tokens-per-second",
        "Tokens per second",
        f"Committed tokens of all ranks, each step's spread over the time it took, in bins of"
        f" {formats.duration(width)}; the mean is {formats.count(mean)}.",
        lines,
        {**over_time(span), "yaxis": axis("tokens/s", rangemode="tozero"), "showlegend": True},
        fault_marks(report, span),
    )


def _binned(steps: StepSeries, end_s: float) -> tuple[float, Sequence[float]]:
    """Return the width of the bins in seconds and the tokens per second of each, from the beginning of the job.

    The last bin ends with the job, at ``end_s``.
    """
    usual_s = sorted(steps.interval_s)[len(steps.interval_s) // 2]
    width = min(_round_up(max(end_s / _MOST_BINS, _STEPS_IN_A_BIN * usual_s, 1e-3)), end_s)
    tokens = [0.0] * max(1, math.ceil(end_s / width))
    for t_s, duration_s, count in zip(steps.t_s, steps.interval_s, steps.tokens, strict=True):
        _spread(tokens, width, t_s - duration_s, t_s, count)
    last_s = end_s - (len(tokens) - 1) * width
    return width, [count / width for count in tokens[:-1]] + [tokens[-1] / (last_s or width)]


def _spread(tokens: list[float], width: float, begin_s: float, end_s: float, count: float) -> None:
    """Add ``count``, evenly from ``begin_s`` to ``end_s``, to the bins that this touches."""
    first, last = (min(len(tokens) - 1, max(0, int(t_s / width))) for t_s in (begin_s, end_s))
    for index in range(first, last + 1):
        inside = min(end_s, (index + 1) * width) - max(begin_s, index * width)
        tokens[index] += count if first == last else count * max(0.0, inside) / (end_s - begin_s)


def _round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * (1 - 1e-9))
