"""Options of ``predict``: groups that are one input each, and the axes of a table."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from testbed.cli.options import OptionGroup, default, quantity
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
    parse_probability,
    parse_rate_bps,
    parse_size_bytes,
    parse_step_s,
)
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.prediction.prediction import Failures, Power, Tcp
    from testbed.core.topology.model import Topology
    from testbed.core.workload.workload import AgentWorkload

__all__ = [
    "OVER",
    "EnergyOptions",
    "FailureOptions",
    "NetworkOptions",
    "TcpOptions",
    "at_value",
    "axis",
    "named",
    "similar_lab",
]

_POINTS: Final = 7
"""Values of ``--over K=A..B``, at equal ratios."""


# ---- groups


@dataclass(frozen=True)
class NetworkOptions(OptionGroup):
    """Sites and the fibers between them; the fields are arguments of ``testbed.predict``."""

    sites: Annotated[int | None, typer.Option(metavar="N", help="Without a topology: sites.", show_default="2")] = None
    ranks_per_site: Annotated[
        int | None, typer.Option(metavar="N", help="Without a topology: accelerators of a site.", show_default="1")
    ] = None
    rate_bps: Annotated[
        float | None,
        quantity(
            parse_rate_bps,
            "--rate",
            metavar="RATE",
            help="Payload rate of each fiber, as iperf3 gives it, each direction.",
            show_default="the topology's, or 100G",
        ),
    ] = None
    delay_s: Annotated[
        float | None,
        quantity(
            parse_delay_s,
            "--delay",
            metavar="TIME",
            help="One-way delay between two sites, 5 us per km.",
            show_default="the topology's, or 200us",
        ),
    ] = None


@dataclass(frozen=True)
class TcpOptions(OptionGroup):
    """What TCP allows the connections of an exchange."""

    connections: Annotated[int, typer.Option(metavar="N", help="TCP connections of an exchange.", min=1)] = 1
    window: Annotated[
        float | None, quantity(parse_size_bytes, metavar="SIZE", help="Largest TCP window: 6MB.", show_default="any")
    ] = None
    loss: Annotated[float, quantity(parse_probability, metavar="P", help="Random loss of packets: 1e-5, 0.01%.")] = (
        default("0")
    )
    cold_start: Annotated[
        bool,
        typer.Option(
            "--cold-start", help="Begin each exchange with slow start: its connections were idle.", show_default=False
        ),
    ] = False

    def tcp(self) -> Tcp:
        from testbed.core.prediction.prediction import Tcp

        window_bytes = math.inf if self.window is None else self.window
        return Tcp(self.connections, window_bytes, self.loss, self.cold_start)


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


@dataclass(frozen=True)
class FailureOptions(OptionGroup):
    """How often the job fails, and what a failure costs."""

    mtbf: Annotated[
        float | None,
        quantity(_mean_time_s, metavar="TIME", help="Mean time between failures of the job; adds goodput."),
    ] = None
    mtbf_rank: Annotated[
        float | None, quantity(_mean_time_s, metavar="TIME", help="The same of one accelerator: 5.78y.")
    ] = None
    mtbf_site: Annotated[float | None, quantity(_mean_time_s, metavar="TIME", help="The same of one site.")] = None
    cuts: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Cuts per year and 1000 km of duct; those without a bypass stop the job. Published: 2.13."
        ),
    ] = None
    repair: Annotated[float, quantity(_mean_time_s, metavar="TIME", help="With --cuts: time to repair one.")] = default(
        "12h"
    )
    checkpoint: Annotated[
        float, quantity(_mean_time_s, metavar="TIME", help="With failures: time of a checkpoint.")
    ] = default("30s")
    restart: Annotated[float, quantity(_mean_time_s, metavar="TIME", help="With failures: time of a restart.")] = (
        default("5min")
    )
    checkpoint_every: Annotated[
        float | None,
        quantity(
            _mean_time_s, metavar="TIME", help="With failures: work between checkpoints.", show_default="the best"
        ),
    ] = None

    def failures(self, topology: Topology | None) -> Failures | None:
        """Return the failures that any of the options asks for."""
        from testbed.core.prediction.duct_routes import duct_routes
        from testbed.core.prediction.prediction import Failures

        means = (self.mtbf, self.mtbf_rank, self.mtbf_site)
        if self.cuts is None and all(mean_s is None for mean_s in means):
            if self.checkpoint_every is not None:
                raise UserError("--checkpoint-every needs --mtbf")
            return None
        mtbf_s, rank_s, site_s = (math.inf if mean_s is None else mean_s for mean_s in means)
        return Failures(
            mtbf_s, self.checkpoint, self.restart, self.checkpoint_every, rank_s, site_s, self.cuts or 0.0,
            self.repair, None if topology is None else duct_routes(topology),
        )  # fmt: skip


@dataclass(frozen=True)
class EnergyOptions(OptionGroup):
    """What bits and waiting cost."""

    joules_per_bit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[CLASS=]J",
            help="Energy of a bit on the fiber, 50e-12; adds that of a step. By class of path if repeated: metro=50e-12"
            " (fabric, intra-metro, metro, regional, long-haul, continental, intercontinental).",
        ),
    ] = None
    idle_watts: Annotated[
        float | None, typer.Option(metavar="W", help="Power of an accelerator that waits; adds its energy in a step.")
    ] = None

    def power(self) -> Power | None:
        """Return what energy costs, if any of the options asks for it."""
        from testbed.core.prediction.prediction import Power

        if self.joules_per_bit is None and self.idle_watts is None:
            return None
        of_all, by_class = None, {}
        for text in self.joules_per_bit or ():
            path, _, number = text.rpartition("=")
            try:
                joules = float(number)
            except ValueError as error:
                raise UserError(f"--joules-per-bit: expected J or CLASS=J, got '{text}'; write metro=50e-12") from error
            if path:
                by_class[path] = joules
            else:
                of_all = joules
        return Power(of_all, self.idle_watts or 0.0, by_class)


def similar_lab(step_s: float, scale: float | None, topology: Topology | None) -> tuple[float, float, int]:
    """Return step, scale and cores of the lab that is printed beside a prediction; the scale is the topology's."""
    if scale is None:
        scale = 1000.0 if topology is None else topology.scale
    return step_s, scale, os.cpu_count() or 1


# ---- axes


def _read_km(text: str) -> float:
    """Parse a length of fiber into its one-way delay."""
    from testbed.core.physics.fiber import DEFAULT_FIBER, propagation_s

    return propagation_s(parse_length_m(text), DEFAULT_FIBER)


def _show_km(delay_s: float) -> str:
    from testbed.core.prediction.network import length_m

    return f"{length_m(delay_s) / 1e3:.4g} km"


OVER: Final[dict[str, tuple[str, Callable[[str], float], Callable[[float], str]]]] = {
    "km": ("delay_s", _read_km, _show_km),
    "delay": ("delay_s", parse_delay_s, lambda delay_s: format_delay(delay_s, 3)),
    "rate": ("rate_bps", parse_rate_bps, lambda bps: format_rate(bps, 3)),
    "compute": ("compute", parse_step_s, lambda step_s: format_duration(step_s, 3)),
    "model": ("model", parse_count, lambda count: f"{count:.3g}"),
}
"""What ``--over`` can vary: the argument of ``testbed.predict``, its parser, how a value is printed. Any other name is
that of an option of the strategy."""


def axis(text: str) -> Axis:
    """Parse ``km=5..9000`` into seven values at equal ratios; of an option of a strategy those that it may have."""
    name, equals, span = text.partition("=")
    low, dots, high = span.partition("..")
    of_strategies = [option for twin in BUILT.values() for option in twin.options if option.name == name]
    if not equals or not dots or not (name in OVER or of_strategies):
        raise UserError(
            f"--over: expected K=A..B with K one of {', '.join(OVER)}, or an option of the strategy such as every,"
            f" got '{text}'; write km=5..9000"
        )
    field, parse, shown = OVER.get(name, (name.replace(".", "_"), float, lambda value: f"{value:.0f}"))
    try:
        least, most = parse(low), parse(high)
    except ValueError as error:
        raise UserError(f"--over {name}: {error}") from error
    if not 0 < least < most < math.inf:
        raise UserError(f"--over {name}: expected a range from a lower to a higher value above 0, got '{span}'")
    values = [least * (most / least) ** (point / (_POINTS - 1)) for point in range(_POINTS)]
    if name not in OVER:
        numbers = sorted(set(map(round, values)))
        values = [
            float(number) for number in numbers if any(_is_value(number, option.parse) for option in of_strategies)
        ]
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
