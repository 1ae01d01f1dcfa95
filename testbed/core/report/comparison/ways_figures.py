"""The plots of several ways of training: held-out loss over steps, time and bytes; the step of each way by part.

Only the held-out loss of the outer parameters is plotted. A loss at this size is no statement about large models, so
each title says "toy scale".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed.core.analysis.critical_path import PARTS
from testbed.core.report import formats
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared
from testbed.core.report.figures.critical_path_figure import COLOR_OF_PART
from testbed.core.report.figures.plotly_figure import (
    CYCLE,
    DASHES,
    Figure,
    Json,
    axis,
    categories,
    made,
    plain,
    short,
    trace_mode,
)

__all__ = ["FEW", "TOY", "ways_figures"]

TOY = "(toy scale)"
FEW = 4
"""Ways whose names have room beside each other in half of the page's width."""


def ways_figures(found: WaysCompared) -> tuple[Figure, ...]:
    """Return every plot that there is data for."""
    drawn = (
        _losses(found, "steps", "step", lambda it: it.heldout.step),
        _losses(found, "time", "time of training (s)", lambda it: it.heldout.t_s),
        _losses(found, "bytes", "payload on all fibers (MB)", _megabytes),
        _paths(found),
    )
    return tuple(it for it in drawn if it is not None)


def _megabytes(run: WayRun) -> Sequence[float | None]:
    return [None if it is None else it / 1e6 for it in run.heldout.fiber_bytes]


def _losses(
    found: WaysCompared, over: str, title: str, across: Callable[[WayRun], Sequence[float | None]]
) -> Figure | None:
    lines: list[Json] = []
    for number, way in enumerate(found.ways):
        color, dash = CYCLE[number % len(CYCLE)], DASHES[number // len(CYCLE) % len(DASHES)]
        runs = [it for it in found.of(way) if it.heldout.loss and any(x is not None for x in across(it))]
        for index, run in enumerate(runs):
            lines.append(
                {
                    "type": "scatter",
                    "x": across(run),
                    "y": run.heldout.loss,
                    "customdata": [
                        [step, version] for step, version in zip(run.heldout.step, run.heldout.version, strict=True)
                    ],
                    "mode": trace_mode(run.heldout.loss),
                    "name": plain(short(way, 28)),
                    "legendgroup": way,
                    "showlegend": index == 0,
                    "line": {"color": color, "width": 2, "dash": dash},
                    "marker": {"size": 4},
                    "opacity": 1.0 if len(runs) == 1 else 0.65,
                    "hovertemplate": f"seed {run.seed}, step %{{customdata[0]}}: %{{y:.4f}}"
                    " (outer version %{customdata[1]})",
                }
            )
    if not lines:
        return None
    last = ", ".join(
        f"{way} {formats.loss(loss)}" for way in found.ways if (loss := found.mean(way, "heldout_loss")) is not None
    )
    seeds = "; a line for each seed" if len(found.seeds) > 1 else ""
    at_end = f"; at the end {last or 'unknown'}" if len(found.ways) <= FEW else ""
    return made(
        f"heldout-over-{over}",
        f"Held-out loss over {over} {TOY}",
        f"Held-out loss of the outer parameters over {over}{seeds}{at_end}.",
        lines,
        {
            "xaxis": axis(title, rangemode="tozero"),
            "yaxis": axis("held-out loss (nats per byte)"),
            "showlegend": True,
        },
    )


def _paths(found: WaysCompared) -> Figure | None:
    paths = {way: path for way in found.ways if (path := found.mean_path(way)) is not None}
    if not paths:
        return None
    bars: list[Json] = [
        {
            "type": "bar",
            "x": [1e3 * getattr(path, name) for path in paths.values()],
            "y": [plain(way) for way in paths],
            "customdata": [formats.duration(getattr(path, name)) for path in paths.values()],
            "name": called,
            "orientation": "h",
            "marker": {"color": COLOR_OF_PART[name]},
            "hovertemplate": "%{y}: %{customdata}",
        }
        for name, called in PARTS.items()
        if any(getattr(path, name) > 0 for path in paths.values())
    ]
    return made(
        "paths",
        "Critical path of a mean step",
        "Where the time of a step goes, by way of training; exchanges are spread over the steps between them.",
        bars,
        {
            "barmode": "stack",
            "legend": {"traceorder": "normal"},
            "xaxis": axis("time of a step (ms)", rangemode="tozero"),
            "yaxis": axis("", **categories(list(paths), 28), autorange="reversed"),
            "showlegend": True,
            "bargap": 0.35,
        },
    )
