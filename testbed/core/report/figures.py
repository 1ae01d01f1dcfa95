"""The plots of the report as JSON for plotly.js.

The figures set no color of text, grid or paper: the page gives them those of its theme. The colors of the series are
Okabe and Ito's (https://jfly.uni-koeln.de/color/), which color-blind readers can tell apart and which stand out on
light and on dark. The dash of a line also tells the direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.core.analysis.rank_seconds import RankSeconds
from testbed.core.analysis.recovery import BACK
from testbed.core.fields import json_values
from testbed.core.report import formats, rank_seconds_section
from testbed.core.report.document import Fault, Report
from testbed.core.report.hypothesis import Steady

__all__ = ["CYCLE", "Figure", "Json", "axis", "figures", "last_s", "made", "plain", "shaded"]

Json = dict[str, object]

BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
# page.js has a brighter form of each for dark paper.
CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, SKY, ORANGE)
GREY, YELLOW = "#888888", "#F0E442"
_COLOR_OF_CLASS = (GREEN, BLUE, YELLOW, PURPLE, SKY, VERMILLION, GREY, ORANGE)
"""Of the classes of rank-seconds, in their order: neighbors in a bar differ most."""
_SHOWN_ATTEMPTS = 12
_SHADE = "rgba(213, 94, 0, 0.16)"
_SHOWN_RANKS = 16
_ROOM_OF_A_NAME, _ROOM_OF_NUMBERS = 0.2, 0.08
"""Of the width of a plot."""
_ROOM_OF_A_SHARE = 8
"""Per cent: a narrower part of a bar has no room for its number."""


@dataclass(frozen=True)
class Figure:
    """``summary`` says what the plot shows, for those who cannot see it; ``spec`` is plotly's data and layout."""

    id: str
    title: str
    summary: str
    spec: Mapping[str, object]


@dataclass(frozen=True)
class Marks:
    """What is drawn over the series: plotly's shapes and annotations."""

    shapes: tuple[Json, ...] = ()
    annotations: tuple[Json, ...] = ()

    def __add__(self, more: Marks) -> Marks:
        return Marks(self.shapes + more.shapes, self.annotations + more.annotations)


def figures(report: Report) -> tuple[Figure, ...]:
    """Return every plot that there is data for, in the order of the page."""
    drawn = (
        _train_loss(report),
        _time_of_ranks(report),
        _rank_seconds(report),
        _step_time(report),
        _throughput(report),
        _lateness(report),
    )
    return tuple(figure for figure in drawn if figure is not None)


def made(id: str, title: str, summary: str, data: Sequence[Json], layout: Json, marks: Marks | None = None) -> Figure:
    """Return the figure with ``marks`` in its layout; JSON has no NaN, so numbers that are not finite become null."""
    over = marks or Marks()
    drawn: Json = {"shapes": over.shapes, "annotations": over.annotations}
    spec = json_values({"data": data, "layout": layout | {name: each for name, each in drawn.items() if each}})
    assert isinstance(spec, dict)
    return Figure(id, title, summary, spec)


def axis(title: str, **more: object) -> Json:
    return {"title": {"text": title}, **more}


def plain(text: str) -> str:
    """Escape ``text``: plotly reads some HTML in its texts, and a user's text must be shown as it is."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shaded(faults: tuple[Fault, ...], last_s: float, place: Callable[[float], float]) -> Marks:
    """Mark each fault from its beginning to its end, ``last_s`` if it has none."""
    lefts = [place(fault.began_s) for fault in faults]
    across: Json = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    shapes: list[Json] = []
    for fault, left in zip(faults, lefts, strict=True):
        right = place(last_s if fault.ended_s is None else fault.ended_s)
        bare: Json = {"fillcolor": _SHADE, "line": {"width": 0}, "layer": "below"}
        shapes.append({"type": "rect", "x0": left, "x1": right, **across, **bare})
        # A fault of milliseconds would be too narrow to see.
        shapes.append({"type": "line", "x0": left, "x1": left, **across, "line": {"color": VERMILLION, "width": 1}})
    at: Json = {"xref": "x", "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "top", "xshift": 3}
    annotations = (
        {"text": plain(text), "x": left, **at, "showarrow": False}
        for left, text in _labels([fault.label for fault in faults], lefts, place(last_s))
    )
    return Marks(tuple(shapes), tuple(annotations))


def _labels(names: Sequence[str], lefts: Sequence[float], last: float) -> list[tuple[float, str]]:
    """Return (where, text) so that no label covers another: names if there is room for all, else the faults' numbers,
    with one label for numbers that are close together."""
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


def _violations(checks: tuple[Steady, ...]) -> Marks:
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
            {"text": plain(f"not {check.text}"), "x": check.violations[0].began_s, **at}
            for check in checks
            if check.violations
        ),
    )


def last_s(report: Report) -> float:
    ends = [report.steps.t_s[-1]] if report.steps.t_s else []
    ends += [series.t_s[-1] for series in report.fibers if series.t_s]
    return max(ends, default=0.0)


def _train_loss(report: Report) -> Figure | None:
    steps = report.steps
    if not any(value is not None for value in steps.train_loss):
        return None

    def step_at(t_s: float) -> float:
        return next((step for step, t in zip(steps.step, steps.t_s, strict=True) if t >= t_s), steps.step[-1])

    during = tuple(fault for fault in report.faults if fault.began_s <= steps.t_s[-1])
    line: Json = {
        "type": "scatter",
        "x": steps.step,
        "y": steps.train_loss,
        "mode": "lines",
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
        {"xaxis": axis("step"), "yaxis": axis("train_loss (nats per byte)"), "showlegend": False},
        shaded(during, steps.t_s[-1], step_at),
    )


def _step_time(report: Report) -> Figure | None:
    steps = report.steps
    median = report.training.median_step_s
    if not steps.step:
        return None
    line: Json = {
        "type": "scatter",
        "x": steps.t_s,
        "y": [1e3 * value for value in steps.duration_s],
        "customdata": steps.step,
        "mode": "lines+markers",
        "name": "step time",
        "line": {"color": BLUE, "width": 1},
        "marker": {"size": 4},
        "hovertemplate": "step %{customdata} at %{x:.1f} s: %{y:.0f} ms<extra></extra>",
    }
    marks = _back(median) if median else Marks()
    marks += shaded(report.faults, last_s(report), lambda t_s: t_s) + _violations(report.steady)
    scale: Json = {"type": "log"} if median and max(steps.duration_s) > 20 * median else {}
    return made(
        "step-time",
        "Step time",
        f"Time between commits, with the faults shaded; the fault-free median is {formats.duration(median)}.",
        [line],
        {
            "xaxis": axis("time since the job began (s)"),
            "yaxis": axis("step time (ms)", rangemode="tozero", **scale),
            "showlegend": False,
        },
        marks,
    )


def _back(median_s: float) -> Marks:
    """The line below which training is back at its pace."""
    height = 1e3 * BACK * median_s
    line: Json = {"color": GREEN, "width": 1.5, "dash": "dash"}
    at: Json = {"x": 1, "xref": "paper", "y": height, "xanchor": "right", "yanchor": "bottom", "showarrow": False}
    return Marks(
        ({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line},),
        ({"text": f"{BACK:g} × median", **at},),
    )


def _links(directions: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Return each direction with its link's color, and whether it is not the first of its link."""
    links = [direction.partition(":")[0] for direction in directions]
    order = list(dict.fromkeys(links))
    return [
        (direction, CYCLE[order.index(link) % len(CYCLE)], link in links[:index])
        for index, (direction, link) in enumerate(zip(directions, links, strict=True))
    ]


def _throughput(report: Report) -> Figure | None:
    shown = [series for series in report.fibers if series.t_s]
    if not shown:
        return None
    lines: list[Json] = [
        {
            "type": "scatter",
            "x": series.t_s,
            "y": [value / 1e6 for value in series.bps],
            "mode": "lines",
            "name": plain(direction),
            "line": {"color": color, "dash": "dot" if second else "solid", "width": 2},
            "hovertemplate": "%{x:.1f} s: %{y:.1f} Mb/s",
        }
        for series, (direction, color, second) in zip(shown, _links([each.direction for each in shown]), strict=True)
    ]
    return made(
        "throughput",
        "Throughput per fiber",
        "Megabits per second of each fiber and direction, from the emulator's counters, with the faults shaded.",
        lines,
        {
            "xaxis": axis("time since the job began (s)"),
            "yaxis": axis("throughput (Mb/s)", rangemode="tozero"),
            "showlegend": True,
        },
        shaded(report.faults, last_s(report), lambda t_s: t_s),
    )


def _time_of_ranks(report: Report) -> Figure | None:
    if not report.ranks:
        return None
    if len(report.ranks) <= _SHOWN_RANKS:
        groups = {f"{each.rank} · {each.node}": [each] for each in report.ranks}
        name = "rank"
    else:
        sites = dict.fromkeys(each.site for each in report.ranks)
        groups = {site: [each for each in report.ranks if each.site == site] for site in sites}
        name = "site (all of its ranks)"
    parts = (("compute", "compute_s", BLUE), ("peer wait", "peer_wait_s", PURPLE), ("network", "network_s", VERMILLION))
    bars: list[Json] = [
        {
            "type": "bar",
            "x": [sum(getattr(each, field) for each in ranks) for ranks in groups.values()],
            "y": [plain(group) for group in groups],
            "name": part,
            "orientation": "h",
            "marker": {"color": color},
            "hovertemplate": "%{y}: %{x:.1f} s",
        }
        for part, field, color in parts
    ]
    return made(
        "time-of-ranks",
        "Compute and exposed communication",
        "Seconds that each rank computed, waited for a peer, and waited for the network.",
        bars,
        {
            "barmode": "stack",
            "legend": {"traceorder": "normal"},
            "xaxis": axis("rank-seconds"),
            "yaxis": axis(name, type="category", autorange="reversed"),
            "showlegend": True,
            "bargap": 0.35,
        },
    )


def _rank_seconds(report: Report) -> Figure | None:
    shares = report.rank_seconds
    if shares is None or shares.total.total_s <= 0:
        return None
    spans = [each for each in shares.spans if not each.restart and each.seconds.total_s > 0]
    rows: dict[str, RankSeconds] = {"over all": shares.total}
    if 1 < len(spans) <= _SHOWN_ATTEMPTS:
        rows |= {each.label: each.seconds for each in spans}
    classes = rank_seconds_section.shown_classes(shares)
    colors = dict(zip(rank_seconds_section.CLASSES, _COLOR_OF_CLASS, strict=True))
    bars: list[Json] = []
    for key, name in classes.items():
        if not shares.total.by_class()[key]:
            continue
        seconds = [each.by_class()[key] for each in rows.values()]
        percent = [100.0 * part / each.total_s for part, each in zip(seconds, rows.values(), strict=True)]
        bars.append(
            {
                "type": "bar",
                "x": percent,
                "y": list(rows),
                "customdata": [formats.duration(part) for part in seconds],
                "text": [f"{value:.0f} %" if value >= _ROOM_OF_A_SHARE else "" for value in percent],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "name": name,
                "orientation": "h",
                "marker": {"color": colors[key]},
                "hovertemplate": "%{y}: %{x:.1f} %, %{customdata}",
            }
        )
    left_out = len(spans) > _SHOWN_ATTEMPTS
    return made(
        "rank-seconds",
        "Rank-seconds by class",
        "Share of each class in world size × wall time"
        + (", over all and per attempt" if len(rows) > 1 else "")
        + ("; the table has the attempts" if left_out else "")
        + f": {rank_seconds_section.sentence(shares)}.",
        bars,
        {
            "barmode": "stack",
            "legend": {"traceorder": "normal", "yref": "container", "y": 0, "yanchor": "bottom"},
            "xaxis": axis("share of rank-seconds (%)", range=[0, 100]),
            "yaxis": axis("job" if len(rows) == 1 else "attempt", type="category", autorange="reversed"),
            "showlegend": True,
            "bargap": 0.35,
        },
    )


def _lateness(report: Report) -> Figure | None:
    shown = [each for each in report.fidelity if sum(each.counts) > 0]
    if not shown or any(each.bounds_s != shown[0].bounds_s for each in shown):
        return None
    used = 1 + max(index for each in shown for index, count in enumerate(each.counts) if count > 0)
    labels = [f"≤ {formats.duration(bound)}" for bound in shown[0].bounds_s] + ["later"]
    bars: list[Json] = [
        {
            "type": "bar",
            "x": labels[:used],
            "y": [100.0 * count / sum(each.counts) for count in each.counts[:used]],
            "name": plain(direction),
            "marker": {
                "color": color,
                "pattern": {"shape": "/" if second else "", "fillmode": "overlay", "fgopacity": 0.6},
            },
            "hovertemplate": "%{x}: %{y:.2f} %",
        }
        for each, (direction, color, second) in zip(shown, _links([each.direction for each in shown]), strict=True)
    ]
    return made(
        "lateness",
        "Lateness under load",
        "How late the emulator sent packets while the job ran, as shares of all packets per direction.",
        bars,
        {
            "barmode": "group",
            "xaxis": axis("lateness (sent − due)", type="category"),
            "yaxis": axis("share of packets (%)"),
            "showlegend": True,
        },
    )
