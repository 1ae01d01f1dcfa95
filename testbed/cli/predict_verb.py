"""The verb ``predict``: what the numbers say of a way of training before any fiber does."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from testbed.cli import console, prediction_tables, verb
from testbed.cli.prediction_tables import Axis
from testbed.cli.verb import AsJson, Overrides
from testbed.core.units import (
    format_delay,
    format_duration,
    format_rate,
    parse_count,
    parse_delay_s,
    parse_duration_s,
    parse_length_m,
    parse_probability,
    parse_rate_bps,
    parse_size_bytes,
)
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.prediction.inputs import Tier
    from testbed.core.prediction.prediction import Failures, Prediction

_POINTS: Final = 7
"""Values of ``--over K=A..B``, at equal ratios."""

_DEFAULTS: Final = {"parameters": 10e9, "layers": 48, "step_s": 0.8, "rate_bps": 100e9, "delay_s": 200e-6}


def _read_km(text: str) -> float:
    """Parse a length of fiber into its one-way delay."""
    from testbed.core.physics.fiber import DEFAULT_FIBER, propagation_s

    return propagation_s(parse_length_m(text), DEFAULT_FIBER)


def _show_km(delay_s: float) -> str:
    from testbed.core.prediction.similarity import length_m

    return f"{length_m(delay_s) / 1e3:.4g} km"


_OVER: Final[dict[str, tuple[str, Callable[[str], float], Callable[[float], str]]]] = {
    "km": ("delay_s", _read_km, _show_km),
    "delay": ("delay_s", parse_delay_s, lambda it: format_delay(it, 3)),
    "rate": ("rate_bps", parse_rate_bps, lambda it: format_rate(it, 3)),
    "step-time": ("step_s", parse_duration_s, lambda it: format_duration(it, 3)),
    "parameters": ("parameters", parse_count, lambda it: f"{it:.3g}"),
    "every": ("every", float, lambda it: f"{it:.0f}"),
    "bits": ("bits", float, lambda it: f"{it:.3g}"),
}
"""What ``--over`` can vary: the field of ``Inputs``, its parser, how a value is printed."""


@verb.verb(
    verb.LOOK,
    "testbed predict metro-40km --strategy ddp --parameters 10B --layers 48 --step-time 800ms",
    "testbed predict --strategy diloco --every 100 --rate 5G --delay 5ms",
    "testbed predict --strategy streaming-diloco --every 100 --fragments 16 --overlap 1 --bits 4 --target 0.9",
    "testbed predict --strategy ddp --over km=5..9000 --over rate=10G..1000G",
)
def predict(
    topology: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPOLOGY]",
            help="Take sites, ranks, rate and delay from this topology, at full scale.",
            autocompletion=verb.completing(verb.topologies),
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ddp, hierarchical, hsdp, fsdp, local-sgd, diloco, streaming-diloco, sparse-loco, async-diloco, "
            "decoupled, tiers, pipeline, moe.",
        ),
    ] = "ddp",
    measured: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Take what this run or validation measured. May be repeated."),
    ] = None,
    parameters: Annotated[
        str | None, typer.Option(metavar="N", help="Parameters of the model: 150M, 10B.", show_default="10B")
    ] = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Layers of the model.", show_default="48")] = None,
    step_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Compute time of a step.", show_default="800ms")
    ] = None,
    every: Annotated[int | None, typer.Option(metavar="H", help="Steps between exchanges.", show_default="1")] = None,
    fragments: Annotated[
        int | None, typer.Option(metavar="P", help="Fragments of streaming-diloco.", show_default="1")
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(metavar="STEPS", help="Steps that an exchange may take beside compute.", show_default="0"),
    ] = None,
    accumulate: Annotated[
        int | None, typer.Option(metavar="A", help="Steps of gradient accumulation.", show_default="1")
    ] = None,
    staleness: Annotated[
        int | None, typer.Option(metavar="N", help="Versions that a site of async-diloco may lag.", show_default="1")
    ] = None,
    quorum: Annotated[
        int | None, typer.Option(metavar="K", help="Learners that a merge of decoupled waits for.", show_default="all")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long a merge waits for others after that.", show_default="0s"),
    ] = None,
    tier: Annotated[
        list[str] | None,
        typer.Option(metavar="H:RATE:DELAY", help="A tier of tiers, from near to far: 10:100G:1ms. May be repeated."),
    ] = None,
    slow: Annotated[
        str | None, typer.Option(metavar="F,F", help="Compute time of each site, relative to --step-time: 1,1.5.")
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(metavar="M", help="Micro-batches of a pipeline.", show_default="8")
    ] = None,
    stages: Annotated[int | None, typer.Option(metavar="N", help="Stages of a pipeline.", show_default="2")] = None,
    activation_bits: Annotated[
        float | None, typer.Option(metavar="N", help="Bits of a micro-batch between two stages.", show_default="0")
    ] = None,
    expert_layers: Annotated[
        int | None, typer.Option(metavar="N", help="Layers with experts of moe.", show_default="0")
    ] = None,
    token_bits: Annotated[
        float | None, typer.Option(metavar="N", help="Bits of tokens that a site sends per layer.", show_default="0")
    ] = None,
    bits: Annotated[
        float | None, typer.Option(metavar="N", help="Bits per exchanged value.", show_default="16")
    ] = None,
    sites: Annotated[int | None, typer.Option(metavar="N", help="Sites.", show_default="2")] = None,
    ranks_per_site: Annotated[
        int | None, typer.Option(metavar="N", help="Accelerators of each site.", show_default="1")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="Payload rate between two sites, as iperf3 reports it.", show_default="100G"),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="One-way delay: 5 us per km.", show_default="200us")
    ] = None,
    buckets: Annotated[
        int | None, typer.Option(metavar="K", help="Operations of one exchange.", show_default="one per layer")
    ] = None,
    in_flight: Annotated[
        int | None, typer.Option(metavar="Q", help="Operations that the library runs at once.", show_default="any")
    ] = None,
    operation: Annotated[
        str | None, typer.Option(metavar="TIME", help="Software time of an operation.", show_default="0s")
    ] = None,
    delays: Annotated[
        float | None,
        typer.Option(metavar="C", help="One-way delays in sequence, as validate measured.", show_default="pattern"),
    ] = None,
    wire_factor: Annotated[
        float | None,
        typer.Option(metavar="W", help="Bits sent per bit of payload, as validate measured.", show_default="pattern"),
    ] = None,
    payload_factor: Annotated[
        float, typer.Option(metavar="F", help="Payload sent per payload declared; for fits to publications.")
    ] = 1.0,
    overlap_last_backward: Annotated[
        bool,
        typer.Option(
            "--overlap-last-backward",
            help="Begin an exchange during the backward pass before it, layer by layer, as simulators of papers do.",
            show_default=False,
        ),
    ] = False,
    target: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Find the least rate for this compute utilization: 0.9.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="K=A..B", help=f"Print a table over {', '.join(_OVER)}. May be given twice."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With two --over: also write a heat map, .svg or .html.")
    ] = None,
    connections: Annotated[int, typer.Option(metavar="N", help="TCP connections of an exchange.", min=1)] = 1,
    window: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest TCP window: 6MB.", show_default="any")
    ] = None,
    loss: Annotated[str, typer.Option(metavar="P", help="Random loss of packets: 1e-5, 0.01%.")] = "0",
    mtbf: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean time between failures of the job; adds goodput.")
    ] = None,
    checkpoint: Annotated[str, typer.Option(metavar="TIME", help="With --mtbf: time of a checkpoint.")] = "30s",
    restart: Annotated[str, typer.Option(metavar="TIME", help="With --mtbf: time of a restart.")] = "5min",
    checkpoint_every: Annotated[
        str | None, typer.Option(metavar="TIME", help="With --mtbf: work between checkpoints.", show_default="the best")
    ] = None,
    lab_step_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Add the lab with this step time that is similar.")
    ] = None,
    lab_scale: Annotated[float, typer.Option(metavar="N", help="Scale of that lab.")] = 1000,
    joules_per_bit: Annotated[
        float | None, typer.Option(metavar="J", help="Energy of a bit on the fiber, 50e-12; adds that of a step.")
    ] = None,
    idle_watts: Annotated[
        float | None, typer.Option(metavar="W", help="Power of an accelerator that waits; adds its energy in a step.")
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Predict compute utilization, exposed time and bits per fiber of a way of training, without a lab.

    Times are those of closed forms and of an event model (docs/prediction.md). Rates and sizes are those of full scale.
    What is left out: TCP's windows and loss, the fabrics inside sites. Model quality is not predicted.
    """
    from testbed.core.prediction import heat_map
    from testbed.core.prediction.prediction import Power, Tcp
    from testbed.host.files.store import save_text
    from testbed.lab import api

    found: dict[str, Any] = {}
    if topology is not None:
        found = api.predicted_inputs(topology, verb.read_overrides(set_))
    elif set_:
        raise UserError("--set needs a TOPOLOGY")
    given: dict[str, Any] = {
        "every": every, "fragments": fragments, "overlap": overlap, "accumulate": accumulate, "staleness": staleness,
        "micro_batches": micro_batches, "stages": stages, "activation_bits": activation_bits,
        "expert_layers": expert_layers, "token_bits": token_bits,
        "quorum": quorum, "grace_s": _read("--grace", grace, parse_duration_s),
        "tiers": tuple(map(_tier, tier)) if tier else None,
        "slowdowns": None if slow is None else tuple(_read("--slow", it, _factor) or 0.0 for it in slow.split(",")),
        "sites": sites, "ranks_per_site": ranks_per_site, "buckets": buckets, "in_flight": in_flight,
        "delays": delays, "wire_factor": wire_factor,
        "rate_bps": _read("--rate", rate, parse_rate_bps), "delay_s": _read("--delay", delay, parse_delay_s),
        "overlap_last_backward": overlap_last_backward or None,
        "parameters": _read("--parameters", parameters, parse_count),
        "step_s": _read("--step-time", step_time, parse_duration_s),
        "operation_s": _read("--operation", operation, parse_delay_s),
        "layers": layers, "bits": bits, "payload_factor": payload_factor,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    utilization = None
    for path in measured or ():
        said, ran = api.measured_inputs(path)
        found, utilization = {**found, **said}, utilization if ran is None else ran
    values = {**_DEFAULTS, **found, **given}
    beside: dict[str, Any] = {
        "tcp": Tcp(connections, _size(window), _read("--loss", loss, parse_probability) or 0.0),
        "failures": _failures(mtbf, checkpoint, restart, checkpoint_every),
        "power": None
        if joules_per_bit is None and idle_watts is None
        else Power(joules_per_bit or 0.0, idle_watts or 0.0),
        "lab": None if lab_step_time is None else _lab(lab_step_time, lab_scale),
    }

    def at(**changes: Any) -> Prediction:
        return api.predict(strategy, target=target, given=(*given, *changes), **beside, **{**values, **changes})

    axes = [_axis(text) for text in over or ()]
    if len(axes) > 2:
        raise UserError(f"--over may be given twice, got {len(axes)} times")
    if len({it.field for it in axes}) < len(axes):
        raise UserError(f"--over {axes[0].name} and --over {axes[1].name} vary the same input; name another one")
    if target is not None and any(it.field == "rate_bps" for it in axes):
        raise UserError("--target looks for the rate; with it, --over varies another input: km, delay, every")
    if picture is not None and (len(axes) < 2 or picture.suffix not in (".svg", ".html")):
        raise UserError(f"--picture needs two --over and a name that ends in .svg or .html, got '{picture}'")
    if not axes:
        one = at()
        if as_json:
            console.show_json(one.to_dict() | {"measured_utilization": utilization})
        else:
            prediction_tables.show(one, utilization)
        return
    columns: list[dict[str, Any]] = [_at(axes[1], it) for it in axes[1].values] if len(axes) == 2 else [{}]
    rows = [[at(**_at(axes[0], one), **other) for other in columns] for one in axes[0].values]
    if as_json:
        console.show_json(
            [
                {"over": {**_at(axes[0], one), **other}} | it.to_dict()
                for one, row in zip(axes[0].values, rows, strict=True)
                for other, it in zip(columns, row, strict=True)
            ]
        )
    else:
        prediction_tables.show_table(axes, rows, target)
    if picture is not None:
        drawn = prediction_tables.heat_map(axes, rows, target)
        save_text(picture, heat_map.svg(drawn) if picture.suffix == ".svg" else heat_map.html_page(drawn))
        console.say(f"heat map: {picture}")


def _read(option: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from error


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"expected a number for each site, got '{text}'; write 1,1.5") from error


def _tier(text: str) -> Tier:
    from testbed.core.prediction.inputs import Tier

    parts = text.split(":")
    try:
        every, rate, delay = parts
        return Tier(int(every), parse_rate_bps(rate), parse_delay_s(delay))
    except ValueError as error:
        raise UserError(f"--tier: expected H:RATE:DELAY, got '{text}'; write 10:100G:1ms") from error


def _size(window: str | None) -> float:
    found = _read("--window", window, parse_size_bytes)
    return math.inf if found is None else found


def _failures(mtbf: str | None, checkpoint: str, restart: str, every: str | None) -> Failures | None:
    from testbed.core.prediction.prediction import Failures

    if mtbf is None:
        if every is not None:
            raise UserError("--checkpoint-every needs --mtbf")
        return None
    return Failures(
        _read("--mtbf", mtbf, parse_duration_s) or 0.0,
        _read("--checkpoint", checkpoint, parse_duration_s) or 0.0,
        _read("--restart", restart, parse_duration_s) or 0.0,
        _read("--checkpoint-every", every, parse_duration_s),
    )


def _lab(step_time: str, scale: float) -> tuple[float, float, int]:
    return _read("--lab-step-time", step_time, parse_duration_s) or 0.0, scale, os.cpu_count() or 1


def _axis(text: str) -> Axis:
    """Parse ``km=5..9000`` into seven values at equal ratios."""
    name, equals, span = text.partition("=")
    low, dots, high = span.partition("..")
    if not equals or not dots or name not in _OVER:
        raise UserError(f"--over: expected K=A..B with K one of {', '.join(_OVER)}, got '{text}'; write km=5..9000")
    field, parse, shown = _OVER[name]
    ends = [_read(f"--over {name}", it, parse) or 0.0 for it in (low, high)]
    if not 0 < ends[0] < ends[1] < math.inf:
        raise UserError(f"--over {name}: expected a range from a lower to a higher value above 0, got '{span}'")
    ratio = ends[1] / ends[0]
    values = [ends[0] * ratio ** (it / (_POINTS - 1)) for it in range(_POINTS)]
    if name == "every":
        values = sorted({float(round(it)) for it in values})
    return Axis(name, field, tuple(values), shown)


def _at(axis: Axis, value: float) -> dict[str, Any]:
    return {axis.field: int(value) if axis.name == "every" else value}
