"""Time against size for each operation, all libraries in one plot, with the physical bound below them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from testbed.core.report.figures.plotly_figure import CYCLE, Figure, Json, axis, made, plain
from testbed.core.report.validation.validation_matrix import anchor
from testbed.core.validation.result import LibraryResult, Speed, Validation

__all__ = ["figures"]

_SIGNS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_GREY = "#8a8f98"


def figures(validation: Validation) -> tuple[Figure, ...]:
    """A plot for each operation that was measured at two sizes or more."""
    operations = dict.fromkeys(speed.operation for library in validation.libraries for speed in library.speeds)
    drawn = (_of(operation, validation.libraries) for operation in operations)
    return tuple(figure for figure in drawn if figure is not None)


def _of(operation: str, libraries: Sequence[LibraryResult]) -> Figure | None:
    by = {library.name: _shown(library.speeds, operation) for library in libraries}
    sizes = {speed.size for speeds in by.values() for speed in speeds}
    if len(sizes) < 2:
        return None
    # Physics knows of no library: the same size has the same bound.
    bounds = {speed.size: speed.bound_s for speeds in by.values() for speed in speeds if _drawable(speed.bound_s)}
    bound: Json = {
        "type": "scatter",
        "x": sorted(bounds),
        "y": [bounds[size] for size in sorted(bounds)],
        "name": "physical bound",
        "mode": "lines",
        "line": {"color": _GREY, "dash": "dash", "width": 2},
        "hovertemplate": "bound: %{y:.3s}s",
    }
    lines = [_line(index, name, speeds) for index, (name, speeds) in enumerate(by.items()) if speeds]
    # Only powers of ten: plotly would label every digit between two of them.
    decades: Json = {"type": "log", "tickformat": "~s", "dtick": 1}
    return made(
        anchor("time-of", operation),
        operation,
        f"Median time of {operation} against size, with its 95 % interval; the dashed line is the physical bound.",
        [bound, *lines],
        {
            "hovermode": "x",
            "showlegend": True,
            "xaxis": axis("size", ticksuffix="B", **decades),
            "yaxis": axis("time", ticksuffix="s", **decades),
        },
    )


def _line(index: int, name: str, speeds: Sequence[Speed]) -> Json:
    return {
        "type": "scatter",
        "x": [speed.size for speed in speeds],
        "y": [speed.median_s for speed in speeds],
        "name": plain(name),
        "mode": "lines+markers",
        "line": {"color": CYCLE[index % len(CYCLE)], "width": 2},
        "marker": {"symbol": _SIGNS[index % len(_SIGNS)], "size": 9},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, speed.high_s - speed.median_s) for speed in speeds],
            "arrayminus": [max(0.0, speed.median_s - speed.low_s) for speed in speeds],
        },
        "hovertemplate": f"{plain(name)}: %{{y:.3s}}s",
    }


def _shown(speeds: Iterable[Speed], operation: str) -> list[Speed]:
    of = (each for each in speeds if each.operation == operation and each.size > 0 and _drawable(each.median_s))
    return sorted(of, key=lambda each: each.size)


def _drawable(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0
