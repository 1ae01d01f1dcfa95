"""Parse the options of ``predict``: units, failures, energy, the axes of a table."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from testbed.cli.prediction_tables import Axis
from testbed.core.training.strategies_built import BUILT
from testbed.core.units import (
    Unreadable,
    format_delay,
    format_duration,
    format_rate,
    parse_count,
    parse_delay_s,
    parse_length_m,
    parse_rate_bps,
    parse_size_bytes,
    parse_step_s,
)
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.prediction.prediction import Failures, Power
    from testbed.core.topology.model import Topology
    from testbed.core.workload.workload import AgentWorkload

__all__ = ["OVER", "at_value", "axis", "failures", "named", "power", "read", "similar_lab", "size"]

_POINTS: Final = 7
"""Values of ``--over K=A..B``, at equal ratios."""


def _read_km(text: str) -> float:
    """Parse a length of fiber into its one-way delay."""
    from testbed.core.physics.fiber import DEFAULT_FIBER, propagation_s

    return propagation_s(parse_length_m(text), DEFAULT_FIBER)


def _show_km(delay_s: float) -> str:
    from testbed.core.prediction.network import length_m

    return f"{length_m(delay_s) / 1e3:.4g} km"


OVER: Final[dict[str, tuple[str, Callable[[str], float], Callable[[float], str]]]] = {
    "km": ("delay_s", _read_km, _show_km),
    "delay": ("delay_s", parse_delay_s, lambda it: format_delay(it, 3)),
    "rate": ("rate_bps", parse_rate_bps, lambda it: format_rate(it, 3)),
    "compute": ("compute", parse_step_s, lambda it: format_duration(it, 3)),
    "model": ("model", parse_count, lambda it: f"{it:.3g}"),
}
"""What ``--over`` can vary: the argument of ``testbed.predict``, its parser, how a value is printed. Any other name is
that of an option of the strategy."""


def read(option: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    """Parse the text of an option; None stays None. Raises UserError with the option's name."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error


def size(window: str | None) -> float:
    """Parse ``--window``; infinite without one."""
    found = read("--window", window, parse_size_bytes)
    return math.inf if found is None else found


def failures(given: dict[str, str | None], cuts: float | None, topology: Topology | None) -> Failures | None:
    """Return the failures that any of the options asks for."""
    from testbed.core.prediction.duct_routes import duct_routes
    from testbed.core.prediction.prediction import Failures

    seconds = {option: read(option, text, _mean_time_s) for option, text in given.items()}
    means = ("--mtbf", "--mtbf-rank", "--mtbf-site")
    if cuts is None and all(seconds[it] is None for it in means):
        if seconds["--checkpoint-every"] is not None:
            raise UserError("--checkpoint-every needs --mtbf")
        return None
    mtbf_s, rank_s, site_s = (math.inf if seconds[it] is None else seconds[it] or 0.0 for it in means)
    return Failures(
        mtbf_s, seconds["--checkpoint"] or 0.0, seconds["--restart"] or 0.0, seconds["--checkpoint-every"],
        rank_s, site_s, cuts or 0.0, seconds["--repair"] or 0.0, None if topology is None else duct_routes(topology),
    )  # fmt: skip


_MEAN_TIMES: Final = {
    "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0, "y": 365.25 * 86_400,
}  # fmt: skip


def _mean_time_s(text: str) -> float:
    """Parse a time that may be years: ``5.78y``, ``30d``, ``3.1h``."""
    number, unit = text.rstrip("smindhy"), text.strip("0123456789.eE+- ")
    try:
        return float(number) * _MEAN_TIMES[unit]
    except (KeyError, ValueError) as error:
        units = ", ".join(_MEAN_TIMES)
        raise ValueError(f"expected a number and one of {units}, got '{text}'; write 3.1h or 5.78y") from error


def power(joules_per_bit: list[str] | None, idle_watts: float | None) -> Power | None:
    """Return what energy costs, if any of the options asks for it."""
    from testbed.core.prediction.prediction import Power

    if joules_per_bit is None and idle_watts is None:
        return None
    of_all, by_class = None, {}
    for text in joules_per_bit or ():
        path, _, number = text.rpartition("=")
        try:
            joules = float(number)
        except ValueError as error:
            raise UserError(f"--joules-per-bit: expected J or CLASS=J, got '{text}'; write metro=50e-12") from error
        if path:
            by_class[path] = joules
        else:
            of_all = joules
    return Power(of_all, idle_watts or 0.0, by_class)


def similar_lab(step_time: str, scale: float | None, topology: Topology | None) -> tuple[float, float, int]:
    """Return step, scale and cores of the lab that is printed beside a prediction; the scale is the topology's."""
    if scale is None:
        scale = 1000.0 if topology is None else topology.scale
    return read("--lab-step-time", step_time, parse_step_s) or 0.0, scale, os.cpu_count() or 1


def axis(text: str) -> Axis:
    """Parse ``km=5..9000`` into seven values at equal ratios; of an option of a strategy those that it may have."""
    name, equals, span = text.partition("=")
    low, dots, high = span.partition("..")
    known = [option for twin in BUILT.values() for option in twin.options if option.name == name]
    if not equals or not dots or not (name in OVER or known):
        raise UserError(
            f"--over: expected K=A..B with K one of {', '.join(OVER)}, or an option of the strategy such as every,"
            f" got '{text}'; write km=5..9000"
        )
    field, parse, shown = OVER.get(name, (name.replace(".", "_"), float, lambda it: f"{it:.0f}"))
    ends = [read(f"--over {name}", it, parse) or 0.0 for it in (low, high)]
    if not 0 < ends[0] < ends[1] < math.inf:
        raise UserError(f"--over {name}: expected a range from a lower to a higher value above 0, got '{span}'")
    ratio = ends[1] / ends[0]
    values = [ends[0] * ratio ** (it / (_POINTS - 1)) for it in range(_POINTS)]
    if name not in OVER:
        whole = sorted({round(it) for it in values})
        values = [float(it) for it in whole if any(_is_value(it, option.parse) for option in known)]
        if not values:
            raise UserError(f"--over {name}: expected a range of whole numbers that {name} can be, got '{span}'")
    return Axis(name, field, tuple(values), shown)


def _is_value(value: int, parse: Callable[[object], Any]) -> bool:
    try:
        parse(value)
    except Unreadable:
        return False
    return True


def at_value(over: Axis, value: float) -> dict[str, Any]:
    """Return the argument of ``testbed.predict`` that ``axis`` sets to ``value``."""
    if over.name not in OVER:
        return {over.field: int(value)}
    return {over.field: f"{value:.12g}s" if over.name == "compute" else value}


def named(name: str | None, overrides: Mapping[str, object] | None) -> tuple[Topology | None, AgentWorkload | None]:
    """Return the topology, and the workload of an experiment, that a command names.

    Raises:
        UserError: it names neither, or an experiment with a program of the user's, of which nothing is known.
    """
    from testbed.core.workload.workload import AgentWorkload
    from testbed.host.files import catalog

    if name is None:
        return None, None
    if catalog.kind_of(name) == "topology":
        return catalog.load_topology(name, overrides), None
    experiment = catalog.load_experiment(name)
    if not isinstance(experiment.workload, AgentWorkload):
        raise UserError(f"{name} runs a program, of which no exchange is known; predict by --strategy and a topology")
    return catalog.load_topology_of(experiment, overrides), experiment.workload
