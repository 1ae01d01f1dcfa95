"""The plots of the report, as plotly figures in its JSON form.

They carry no colours of text, grid or paper: the page gives them those of its theme. The series' colours are Okabe and
Ito's (https://jfly.uni-koeln.de/color/), which the colour-blind tell apart and which stand out on light and on dark; a
direction is told by its dash as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import plotly.graph_objects as go

from testbed.core.analysis.recovery import BACK
from testbed.core.report import formats
from testbed.core.report.document import Fault, Report
from testbed.core.report.hypothesis import Steady

__all__ = ["CYCLE", "Figure", "figures", "made", "plain"]

BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
# page.js knows a brighter form of each for dark paper.
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE)
_SHADE = "rgba(213, 94, 0, 0.16)"
_SHOWN_RANKS = 16
_ROOM_OF_A_NAME, _ROOM_OF_NUMBERS = 0.2, 0.08
"""Of the width of a plot."""


@dataclass(frozen=True)
class Figure:
    """``summary`` says what the plot shows, for those who cannot see it; ``spec`` is plotly's data and layout."""

    id: str
    title: str
    summary: str
    spec: Mapping[str, object]


def figures(report: Report) -> tuple[Figure, ...]:
    """Every plot that there is data for, in the order of the page."""
    drawn = (_train_loss(report), _time_of_ranks(report), _step_time(report), _throughput(report), _lateness(report))
    return tuple(figure for figure in drawn if figure is not None)


def made(id: str, title: str, summary: str, figure: go.Figure) -> Figure:
    """``figure`` in its JSON form."""
    # Without this, plotly adds its own theme of 7 kB to every figure.
    figure.layout.template = None
    return Figure(id, title, summary, json.loads(figure.to_json()))


def _shade(figure: go.Figure, faults: tuple[Fault, ...], last_s: float, place: Callable[[float], float]) -> None:
    """Mark each fault from its beginning to its end, ``last_s`` if it has none."""
    lefts = [place(fault.began_s) for fault in faults]
    for fault, left in zip(faults, lefts, strict=True):
        figure.add_shape(
            type="rect",
            xref="x",
            yref="paper",
            x0=left,
            x1=place(last_s if fault.ended_s is None else fault.ended_s),
            y0=0,
            y1=1,
            fillcolor=_SHADE,
            line_width=0,
            layer="below",
        )
        # A fault of milliseconds would be too narrow to see.
        figure.add_shape(
            type="line", xref="x", yref="paper", x0=left, x1=left, y0=0, y1=1, line={"color": VERMILLION, "width": 1}
        )
    for left, text in _labels([fault.label for fault in faults], lefts, place(last_s)):
        figure.add_annotation(
            text=plain(text),
            x=left,
            xref="x",
            y=1,
            yref="paper",
            xanchor="left",
            yanchor="top",
            xshift=3,
            showarrow=False,
        )


def _labels(names: Sequence[str], lefts: Sequence[float], last: float) -> list[tuple[float, str]]:
    """(where, text), so that none lies over another: names where there is room for all, else the faults' numbers, and
    one label for numbers that lie close together."""
    first = min([0.0, *lefts])
    span = max([last, *lefts]) - first or 1.0
    places = sorted((left, number) for number, left in enumerate(lefts, 1))
    if all(after - left >= _ROOM_OF_A_NAME * span for (left, _), (after, _) in pairwise(places)):
        return list(zip(lefts, names, strict=True))
    groups: list[tuple[float, list[int]]] = []
    for left, number in places:
        if groups and left - groups[-1][0] < _ROOM_OF_NUMBERS * span:
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


def _mark_violations(figure: go.Figure, checks: tuple[Steady, ...]) -> None:
    """A bar at the foot of a plot over time for each time in which the steady state did not hold."""
    for check in checks:
        for each in check.violations:
            figure.add_shape(
                type="rect",
                xref="x",
                yref="paper",
                x0=each.began_s,
                x1=each.ended_s,
                y0=0,
                y1=0.05,
                fillcolor=PURPLE,
                line_width=0,
            )
        for each in check.violations[:1]:  # one name for all of them: they may lie close together
            figure.add_annotation(
                text=plain(f"not {check.text}"),
                x=each.began_s,
                xref="x",
                y=0.05,
                yref="paper",
                xanchor="left",
                yanchor="bottom",
                showarrow=False,
            )


def plain(text: str) -> str:
    """Plotly reads some HTML in its texts; a user's text is to be shown as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _last_s(report: Report) -> float:
    ends = [report.steps.t_s[-1]] if report.steps.t_s else []
    ends += [series.t_s[-1] for series in report.fibers if series.t_s]
    return max(ends, default=0.0)


def _train_loss(report: Report) -> Figure | None:
    steps = report.steps
    if not any(value is not None for value in steps.train_loss):
        return None
    figure = go.Figure(
        go.Scatter(
            x=list(steps.step),
            y=list(steps.train_loss),
            mode="lines",
            name="train_loss",
            line={"color": BLUE, "width": 2},
            hovertemplate="step %{x}: %{y:.3f}<extra></extra>",
        )
    )

    def step_at(t_s: float) -> float:
        return next((step for step, t in zip(steps.step, steps.t_s, strict=True) if t >= t_s), steps.step[-1])

    during = tuple(fault for fault in report.faults if fault.began_s <= steps.t_s[-1])
    _shade(figure, during, steps.t_s[-1], step_at)
    figure.update_layout(xaxis_title="step", yaxis_title="train_loss (nats per byte)", showlegend=False)
    return made(
        "train-loss",
        "train_loss",
        f"train_loss over steps, from {formats.loss(report.train_loss_first)}"
        f" to {formats.loss(report.train_loss_last)}.",
        figure,
    )


def _step_time(report: Report) -> Figure | None:
    steps = report.steps
    median = report.training.median_step_s
    if not steps.step:
        return None
    figure = go.Figure(
        go.Scatter(
            x=list(steps.t_s),
            y=[1e3 * value for value in steps.duration_s],
            customdata=list(steps.step),
            mode="lines+markers",
            name="step time",
            line={"color": BLUE, "width": 1},
            marker={"size": 4},
            hovertemplate="step %{customdata} at %{x:.1f} s: %{y:.0f} ms<extra></extra>",
        )
    )
    if median:
        figure.add_shape(
            type="line",
            xref="paper",
            x0=0,
            x1=1,
            y0=1e3 * BACK * median,
            y1=1e3 * BACK * median,
            line={"color": GREEN, "width": 1.5, "dash": "dash"},
        )
        figure.add_annotation(
            text=f"{BACK:g} × median",
            x=1,
            xref="paper",
            y=1e3 * BACK * median,
            xanchor="right",
            yanchor="bottom",
            showarrow=False,
        )
        if max(steps.duration_s) > 20 * median:
            figure.update_yaxes(type="log")
    _shade(figure, report.faults, _last_s(report), lambda t_s: t_s)
    _mark_violations(figure, report.steady)
    figure.update_layout(xaxis_title="time since the job began (s)", yaxis_title="step time (ms)", showlegend=False)
    figure.update_yaxes(rangemode="tozero")
    return made(
        "step-time",
        "Step time",
        f"Time between commits, with the faults shaded; the fault-free median is {formats.duration(median)}.",
        figure,
    )


def _throughput(report: Report) -> Figure | None:
    shown = [series for series in report.fibers if series.t_s]
    if not shown:
        return None
    figure = go.Figure()
    links = list(dict.fromkeys(series.direction.partition(":")[0] for series in shown))
    seen: set[str] = set()
    for series in shown:
        link = series.direction.partition(":")[0]
        figure.add_scatter(
            x=list(series.t_s),
            y=[value / 1e6 for value in series.bps],
            mode="lines",
            name=plain(series.direction),
            line={
                "color": CYCLE[links.index(link) % len(CYCLE)],
                "dash": "dot" if link in seen else "solid",
                "width": 2,
            },
            hovertemplate="%{x:.1f} s: %{y:.1f} Mb/s",
        )
        seen.add(link)
    _shade(figure, report.faults, _last_s(report), lambda t_s: t_s)
    figure.update_layout(xaxis_title="time since the job began (s)", yaxis_title="throughput (Mb/s)", showlegend=True)
    figure.update_yaxes(rangemode="tozero")
    return made(
        "throughput",
        "Throughput per fiber",
        "Megabits per second of each fiber and direction, from the emulator's counters, with the faults shaded.",
        figure,
    )


def _time_of_ranks(report: Report) -> Figure | None:
    if not report.ranks:
        return None
    if len(report.ranks) <= _SHOWN_RANKS:
        groups = {f"{each.rank} · {each.node}": [each] for each in report.ranks}
        axis = "rank"
    else:
        groups = {
            site: [each for each in report.ranks if each.site == site] for site in {r.site: 0 for r in report.ranks}
        }
        axis = "site (all of its ranks)"
    figure = go.Figure()
    parts = (("compute", "compute_s", BLUE), ("peer wait", "peer_wait_s", PURPLE), ("network", "network_s", VERMILLION))
    for name, field, colour in parts:
        figure.add_bar(
            x=[sum(getattr(each, field) for each in ranks) for ranks in groups.values()],
            y=[plain(group) for group in groups],
            name=name,
            orientation="h",
            marker={"color": colour},
            hovertemplate="%{y}: %{x:.1f} s",
        )
    figure.update_layout(
        barmode="stack",
        legend_traceorder="normal",
        xaxis_title="rank-seconds",
        yaxis_title=axis,
        showlegend=True,
        bargap=0.35,
    )
    figure.update_yaxes(type="category", autorange="reversed")
    return made(
        "time-of-ranks",
        "Compute and exposed communication",
        "Seconds that each rank computed, waited for a peer, and waited for the network.",
        figure,
    )


def _lateness(report: Report) -> Figure | None:
    shown = [each for each in report.fidelity if sum(each.counts) > 0]
    if not shown or any(each.bounds_s != shown[0].bounds_s for each in shown):
        return None
    used = 1 + max(index for each in shown for index, count in enumerate(each.counts) if count > 0)
    bounds = shown[0].bounds_s
    labels = [f"≤ {formats.duration(bound)}" for bound in bounds] + ["later"]
    figure = go.Figure()
    links = list(dict.fromkeys(each.direction.partition(":")[0] for each in shown))
    seen: set[str] = set()
    for each in shown:
        link = each.direction.partition(":")[0]
        figure.add_bar(
            x=labels[:used],
            y=[100.0 * count / sum(each.counts) for count in each.counts[:used]],
            name=plain(each.direction),
            marker={
                "color": CYCLE[links.index(link) % len(CYCLE)],
                "pattern": {"shape": "/" if link in seen else "", "fillmode": "overlay", "fgopacity": 0.6},
            },
            hovertemplate="%{x}: %{y:.2f} %",
        )
        seen.add(link)
    figure.update_layout(
        barmode="group", xaxis_title="lateness (sent − due)", yaxis_title="share of packets (%)", showlegend=True
    )
    figure.update_xaxes(type="category")
    return made(
        "lateness",
        "Lateness under load",
        "How late the emulator sent packets while the job ran, as shares of all packets per direction.",
        figure,
    )
