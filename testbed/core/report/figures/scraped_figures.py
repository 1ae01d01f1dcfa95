"""The plots of the ranks' scraped metrics over time: throughput, exposed share, CPU, memory, and gaps in scraping.

Up to eight ranks have a line each. Of more ranks each site has one, the median, within the range of its ranks; where
there are more than eight sites, all ranks together have one. More lines cannot be told apart, and their legend would
fill the plot on a phone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.analysis.scraped_metrics import RankTrack
from testbed.core.report import formats
from testbed.core.report.document import Report
from testbed.core.report.figures.fault_marks import fault_marks, time_span
from testbed.core.report.figures.plotly_figure import (
    BLUE,
    CYCLE,
    DASHES,
    VERMILLION,
    Figure,
    Json,
    Span,
    axis,
    made,
    over_time,
    plain,
    told_apart,
    trace_mode,
)

__all__ = ["scraped_figures"]

MOST_LINES = 8
_MOST_OF_A_NAME = 30


@dataclass(frozen=True)
class _Quantity:
    id: str
    title: str
    summary: str
    unit: str
    of: Callable[[RankTrack], Sequence[float | None]]
    scale: float = 1.0
    digits: int = 1


_QUANTITIES = (
    _Quantity(
        "rank-tokens",
        "Throughput per rank",
        "Tokens per second that each rank trained on, between two scrapes.",
        "tokens/s",
        lambda it: it.tokens_per_s,
        digits=0,
    ),
    _Quantity(
        "rank-exposed",
        "Exposed share per rank",
        "Exposed communication as a share of compute plus exposed communication, of the steps between two scrapes.",
        "%",
        lambda it: it.exposed_share,
        scale=100.0,
    ),
    _Quantity(
        "rank-cpu",
        "CPU per rank",
        "Cores that each rank's process kept busy, between two scrapes.",
        "cores",
        lambda it: it.cpu_cores,
        digits=2,
    ),
    _Quantity(
        "rank-memory",
        "Memory per rank",
        "Resident memory of each rank's process, with the pages that ranks share.",
        "MB",
        lambda it: it.memory_bytes,
        scale=1e-6,
        digits=0,
    ),
)


def scraped_figures(report: Report) -> tuple[Figure, ...]:
    """Return every plot that there are scrapes for."""
    tracks = report.scraped.ranks
    span = time_span(report)
    known = [it for it in _QUANTITIES if any(value is not None for track in tracks for value in it.of(track))]
    return (*(_over_time(report, it, span) for it in known), _gaps(report, span)) if tracks else ()


def _over_time(report: Report, quantity: _Quantity, span: Span) -> Figure:
    tracks = report.scraped.ranks
    grouped = ""
    if len(tracks) <= MOST_LINES:
        lines = _lines_of_ranks(tracks, quantity)
    elif len(sites := dict.fromkeys(track.site for track in tracks)) <= MOST_LINES:
        grouped = " Per site: the median of its ranks, and their range."
        lines = _lines_of_groups({site: [it for it in tracks if it.site == site] for site in sites}, quantity)
    else:
        grouped = " The median of all ranks, and their range."
        lines = _lines_of_groups({"all ranks": tracks}, quantity)
    return made(
        quantity.id,
        quantity.title,
        f"{quantity.summary}{grouped}",
        lines,
        {
            **over_time(span),
            "yaxis": axis(quantity.unit, rangemode="tozero"),
            "showlegend": True,
            "legend": {"traceorder": "normal"},
        },
        fault_marks(report, span),
    )


def _lines_of_ranks(tracks: Iterable[RankTrack], quantity: _Quantity) -> list[Json]:
    return [
        {
            **_line(track.t_s, [None if it is None else it * quantity.scale for it in quantity.of(track)]),
            "name": f"rank {track.rank}",
            "line": {
                "color": CYCLE[number % len(CYCLE)],
                "dash": DASHES[number // len(CYCLE) % len(DASHES)],
                "width": 1.5,
            },
            "hovertemplate": f"%{{x:.1f}} s: %{{y:.{quantity.digits}f}} {quantity.unit}",
        }
        for number, track in enumerate(tracks)
    ]


def _lines_of_groups(groups: Mapping[str, Sequence[RankTrack]], quantity: _Quantity) -> list[Json]:
    lines: list[Json] = []
    names = told_apart(list(groups), _MOST_OF_A_NAME)
    for number, (name, tracks) in enumerate(zip(names, groups.values(), strict=True)):
        color = CYCLE[number % len(CYCLE)]
        found = _spread(tracks, quantity)
        times = list(found)
        bare: Json = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "connectgaps": False}
        lines.append({**_line(times, [low for low, _, _ in found.values()]), **bare})
        band: Json = {"fill": "tonexty", "fillcolor": _faint(color)}
        lines.append({**_line(times, [high for _, _, high in found.values()]), **bare, **band})
        lines.append(
            {
                **_line(times, [middle for _, middle, _ in found.values()]),
                "name": plain(name),
                "line": {"color": color, "dash": DASHES[number // len(CYCLE) % len(DASHES)], "width": 2},
                "hovertemplate": f"%{{x:.1f}} s: median %{{y:.{quantity.digits}f}} {quantity.unit}",
            }
        )
    return lines


def _spread(tracks: Iterable[RankTrack], quantity: _Quantity) -> Mapping[float, tuple[float, float, float]]:
    """Return time -> (least, median, greatest) of all ranks; scrapes of one second count as simultaneous."""
    values: dict[int, list[float]] = {}
    for track in tracks:
        for t_s, value in zip(track.t_s, quantity.of(track), strict=True):
            if value is not None:
                values.setdefault(round(t_s), []).append(value * quantity.scale)
    return {float(t_s): (min(each), statistics.median(each), max(each)) for t_s, each in sorted(values.items())}


def _line(t_s: Sequence[float], values: Sequence[float | None]) -> Json:
    return {"type": "scatter", "mode": trace_mode(values), "x": [round(it, 3) for it in t_s], "y": _rounded(values)}


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Six digits: a plot shows no more, and every report has all of them."""
    return [None if it is None else float(f"{it:.6g}") for it in values]


def _faint(color: str) -> str:
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.18)"


# ---- gaps


def _gaps(report: Report, span: Span) -> Figure:
    tracks = report.scraped.ranks
    worst = sorted(tracks, key=lambda it: (it.answered - it.asked, it.rank))[:MOST_LINES]
    shown = sorted(worst, key=lambda it: it.rank)
    names = [plain(f"{it.rank} · {it.node}") for it in shown]
    ends = [max([*it.t_s, *(gap.ended_s for gap in it.gaps)], default=0.0) for it in shown]
    missed = sum(it.asked - it.answered or sum(gap.missed for gap in it.gaps) for it in tracks)
    with_gaps = sum(bool(it.gaps) for it in tracks)
    bars: list[Json] = [
        {
            **_bar(names, [0.0] * len(shown), ends, "scraped", BLUE, 0.35),
            "hovertemplate": "%{y}: scraped until %{x:.1f} s<extra></extra>",
        }
    ]
    places = [(name, gap) for name, track in zip(names, shown, strict=True) for gap in track.gaps]
    if places:
        lengths = [gap.ended_s - gap.began_s for _, gap in places]
        bars.append(
            {
                **_bar(
                    [name for name, _ in places],
                    [gap.began_s for _, gap in places],
                    lengths,
                    "no answer",
                    VERMILLION,
                    1,
                ),
                "customdata": [plain(f"{formats.plural(gap.missed, 'scrape')} {gap.why}".strip()) for _, gap in places],
                "hovertemplate": "%{y}, from %{base:.1f} s: %{customdata} missed<extra></extra>",
            }
        )
    said = "Every scrape was answered."
    if with_gaps:
        said = f"{formats.plural(missed, 'scrape')} of {formats.plural(with_gaps, 'rank')} had no answer."
    if len(tracks) > len(shown):
        said += f" Shown are the {len(shown)} ranks with the most."
    return made(
        "scrape-gaps",
        "Gaps in scraping",
        f"When each rank answered its scrapes, and when it did not. {said}",
        bars,
        {
            "barmode": "overlay",
            **over_time(span),
            # The numbers alone: the plot's left edge is that of all plots over time.
            "yaxis": axis(
                "rank",
                type="category",
                tickvals=names,
                ticktext=[str(it.rank) for it in shown],
                autorange="reversed",
            ),
            "showlegend": True,
            "bargap": 0.5,
        },
    )


def _bar(
    names: Sequence[str], begins: Sequence[float], lengths: Sequence[float], name: str, color: str, opacity: float
) -> Json:
    return {
        "type": "bar",
        "orientation": "h",
        "y": list(names),
        "base": [round(it, 3) for it in begins],
        "x": [round(it, 3) for it in lengths],
        "name": name,
        "marker": {"color": color},
        "opacity": opacity,
    }
