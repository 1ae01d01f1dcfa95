"""The plots of the fibers: the throughput of each direction beside its link's rate, and the emulator's lateness."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from testbed.core.physics.full_scale import at_full_scale, full_rate_bps, stands_for
from testbed.core.report import formats
from testbed.core.report.document import FiberSeries, Report
from testbed.core.report.figures.fault_marks import fault_marks, with_faults
from testbed.core.report.figures.plotly_figure import (
    CYCLE,
    GREY,
    Figure,
    Json,
    TimeSpan,
    axis,
    made,
    over_time,
    plain,
    told_apart,
    trace_mode,
)
from testbed.core.topology.direction import link_of
from testbed.core.units import parse_rate_bps

__all__ = ["lateness", "throughput"]

_MOST_LINKS = 6
"""As many as there are colors; more lines cannot be told apart, and their legend would fill the plot."""
_MOST_OF_A_NAME = 26
_TICKS = 4


def throughput(report: Report, span: TimeSpan) -> Figure | None:
    shown = [series for series in report.fibers if series.t_s]
    if not shown:
        return None
    scale = report.topology.scale if report.topology else 1.0
    links, left_out = _chosen(report, shown)
    shown = [series for series in shown if link_of(series.direction) in links]
    lines: list[Json] = [
        {
            "type": "scatter",
            "x": series.t_s,
            "y": [value / 1e6 for value in series.bps],
            "customdata": [_full(value, scale) for value in series.bps],
            "mode": trace_mode(series.t_s),
            "name": plain(name),
            "line": {"color": color, "dash": "dot" if second else "solid", "width": 2},
            "marker": {"size": 4},
            "hovertemplate": "%{x:.1f} s: %{y:.1f} Mb/s%{customdata}",
        }
        for series, (name, color, second) in zip(
            shown, _links([direction.direction for direction in shown]), strict=True
        )
    ]
    rates = list(_rates(report, links, span, scale))
    most = max([0.0, *(value for series in shown for value in series.bps), *_own_rates(report, links).values()])
    return made(
        "throughput",
        "Throughput per fiber",
        f"Megabits per second of each fiber and direction, from the emulator's counters{with_faults(report)}"
        + ("; dashed, the rate of its link" if rates else "")
        + ("" if scale == 1 else f". Scale {scale:g}: below each rate stands what it means at full scale")
        + "."
        + (
            f" Shown are {len(links)} links of {len(links) + left_out}, those with faults and the busiest."
            if left_out
            else ""
        ),
        lines + rates,
        {
            **over_time(span),
            "yaxis": axis("throughput", **_rate_axis(most / 1e6, scale)),
            "showlegend": True,
        },
        fault_marks(report, span),
    )


def _chosen(report: Report, shown: Sequence[FiberSeries]) -> tuple[frozenset[str], int]:
    """Return the names of the links to draw, and how many are left out."""
    moved: dict[str, float] = {}
    for series in shown:
        moved[link_of(series.direction)] = moved.get(link_of(series.direction), 0.0) + sum(series.bps)
    touched = {name for fault in report.faults for name in fault.links}
    order = sorted(moved, key=lambda name: (name not in touched, -moved[name]))
    return frozenset(order[:_MOST_LINKS]), len(order[_MOST_LINKS:])


def _full(bps: float, scale: float) -> str:
    """Return the words that follow a rate: ``, for 612 Gb/s at full scale``."""
    return "" if scale == 1 else f", for {formats.bits_per_s(full_rate_bps(bps, scale))} at full scale"


def _rate_axis(most: float, scale: float) -> Json:
    """Return an axis in Mb/s up to ``most``, each tick with what it stands for at full scale below it.

    Two axes would each need room of its own, which a phone has not and which would shift the time.
    """
    step = _nice((most or 1.0) / _TICKS)
    ticks = [index * step for index in range(math.ceil((most or 1.0) / step) + 1)]
    texts = [_tick(value * 1e6, scale) for value in ticks]
    top = max(ticks[-1], 1.06 * most)
    return {"range": [0, top], "tickvals": ticks, "ticktext": texts, "tickfont": {"size": 11}, "fixedrange": True}


def _tick(bps: float, scale: float) -> str:
    if not bps:
        return "0"
    full = at_full_scale(bps, scale, 3)
    return formats.bits_per_s(bps) + (f"<br><i>{full}</i>" if full else "")


def _nice(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9))


def _rates(report: Report, links: frozenset[str], span: TimeSpan, scale: float) -> Iterator[Json]:
    """Yield the line of each rate that the shown links have, and that of a direction in which a fault changed it."""
    own = _own_rates(report, links)
    names = dict(zip(own, told_apart(list(own), _MOST_OF_A_NAME), strict=True))
    for rate_bps in dict.fromkeys(own.values()):
        named = [names[link] for link, direction in own.items() if direction == rate_bps]
        of = ", ".join(named)
        if len(named) > 3 or (len(named) > 1 and len(of) > _MOST_OF_A_NAME):
            of = f"{len(named)} links"
        yield _rate_line(
            [span.first_s, span.last_s], [rate_bps], f"rate of {plain(of)}:<br>{stands_for(rate_bps, scale, 3)}", "dash"
        )
    for link, steps in _changed_rates(report, own).items():
        times = [span.first_s, *(t_s for t_s, _ in steps), span.last_s]
        values = [own[link], *(bps for _, bps in steps)]
        yield _rate_line(times, values, f"rate of {plain(names[link])},<br>with faults", "dashdot")


def _own_rates(report: Report, links: frozenset[str]) -> Mapping[str, float]:
    """Return the rate in b/s of each of ``links`` that has one, as the topology says."""
    listed = report.topology.links if report.topology else ()
    return {link.name: link.rate_bps for link in listed if link.name in links and link.rate_bps}


def _rate_line(times: Sequence[float], values: Sequence[float], name: str, dash: str) -> Json:
    """A line of steps: each of ``values`` holds from its time to the next of ``times``."""
    return {
        "type": "scatter",
        "x": times,
        "y": [value / 1e6 for value in (*values, values[-1])],
        "mode": "lines",
        "name": name,
        "line": {"color": GREY, "width": 1.5, "dash": dash, "shape": "hv"},
        "hoverinfo": "skip",
    }


def _changed_rates(report: Report, own: Mapping[str, float]) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Return link -> (time, b/s from then on) where faults changed the rate; of its directions the first one told."""
    windows: dict[str, list[tuple[float, float]]] = {}
    texts: dict[str, str] = {}
    for stretch in report.in_force:
        link = link_of(stretch.direction)
        rates = [value.last for value in stretch.values if value.key == "rate"]
        if not rates or link not in own or texts.setdefault(link, stretch.direction) != stretch.direction:
            continue
        try:
            bps = parse_rate_bps(rates[0])
        except ValueError:
            continue  # "unlimited"
        track = windows.setdefault(link, [])
        if track and track[-1][0] >= stretch.began_s:
            track.pop()  # the next stretch begins where the last one ended
        track.append((stretch.began_s, bps))
        if stretch.ended_s is not None:
            track.append((stretch.ended_s, own[link]))
    return windows


def _links(directions: Sequence[str]) -> list[tuple[str, str, bool]]:
    """Return the name of each direction, its link's color, and whether it is not the first of its link."""
    links = [link_of(direction) for direction in directions]
    order = list(dict.fromkeys(links))
    return [
        (name, CYCLE[order.index(link) % len(CYCLE)], link in links[:index])
        for index, (name, link) in enumerate(zip(told_apart(directions, _MOST_OF_A_NAME), links, strict=True))
    ]


def lateness(report: Report) -> Figure | None:
    measured = [direction for direction in report.fidelity if sum(direction.counts) > 0]
    if not measured or any(load.bounds_s != measured[0].bounds_s for load in measured):
        return None
    busiest_first = sorted(measured, key=lambda load: -sum(load.counts))
    links = list(dict.fromkeys(link_of(load.direction) for load in busiest_first))
    shown = [load for load in measured if link_of(load.direction) in links[:_MOST_LINKS]]
    used = 1 + max(index for load in shown for index, count in enumerate(load.counts) if count > 0)
    labels = [f"≤ {formats.duration(bound)}" for bound in shown[0].bounds_s] + ["later"]
    bars: list[Json] = [
        {
            "type": "bar",
            "x": labels[:used],
            "y": [100.0 * count / sum(load.counts) for count in load.counts[:used]],
            "name": plain(name),
            "marker": {
                "color": color,
                "pattern": {"shape": "/" if second else "", "fillmode": "overlay", "fgopacity": 0.6},
            },
            "hovertemplate": "%{x}: %{y:.2f} %",
        }
        for load, (name, color, second) in zip(shown, _links([load.direction for load in shown]), strict=True)
    ]
    return made(
        "lateness",
        "Lateness under load",
        "How late the emulator sent packets while the job ran, as shares of all packets per direction."
        + (f" Shown are the {_MOST_LINKS} busiest links of {len(links)}." if len(links) > _MOST_LINKS else ""),
        bars,
        {
            "barmode": "group",
            "xaxis": axis("lateness (sent − due)", type="category"),
            "yaxis": axis("share of packets (%)", rangemode="tozero"),
            "showlegend": True,
        },
    )
