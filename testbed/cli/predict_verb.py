"""The verb ``predict``: what the numbers say of a way of training before any fiber does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import console, prediction_tables, verb
from testbed.cli import prediction_options as options
from testbed.cli.on_host import Sent, Written
from testbed.cli.prediction_progress import Counted
from testbed.cli.verb import AsJson, Overrides
from testbed.core.units import (
    parse_count,
    parse_delay_s,
    parse_duration_s,
    parse_probability,
    parse_rate_bps,
    parse_step_s,
)
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.prediction.prediction import Prediction


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
        Sent(),
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
        Sent(always=True),
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
    outer_step: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Outer optimizer step of the whole model after an exchange.", show_default="0s"
        ),
    ] = None,
    staleness: Annotated[
        int | None,
        typer.Option(metavar="N", help="Rounds of async-diloco that may be on their way.", show_default="1"),
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
        typer.Option(metavar="K=A..B", help=f"Print a table over {', '.join(options.OVER)}. May be given twice."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With two --over: also write a heat map, .svg or .html."),
        Written(),
    ] = None,
    connections: Annotated[int, typer.Option(metavar="N", help="TCP connections of an exchange.", min=1)] = 1,
    window: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Largest TCP window: 6MB.", show_default="any")
    ] = None,
    loss: Annotated[str, typer.Option(metavar="P", help="Random loss of packets: 1e-5, 0.01%.")] = "0",
    cold_start: Annotated[
        bool,
        typer.Option(
            "--cold-start", help="Begin each exchange with slow start: its connections were idle.", show_default=False
        ),
    ] = False,
    mtbf: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean time between failures of the job; adds goodput.")
    ] = None,
    mtbf_rank: Annotated[str | None, typer.Option(metavar="TIME", help="The same of one accelerator: 5.78y.")] = None,
    mtbf_site: Annotated[str | None, typer.Option(metavar="TIME", help="The same of one site.")] = None,
    cuts: Annotated[
        float | None,
        typer.Option(
            metavar="N", help="Cuts per year and 1000 km of duct; those without a bypass stop the job. Published: 2.13."
        ),
    ] = None,
    repair: Annotated[str, typer.Option(metavar="TIME", help="With --cuts: time to repair one.")] = "12h",
    checkpoint: Annotated[str, typer.Option(metavar="TIME", help="With failures: time of a checkpoint.")] = "30s",
    restart: Annotated[str, typer.Option(metavar="TIME", help="With failures: time of a restart.")] = "5min",
    checkpoint_every: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With failures: work between checkpoints.", show_default="the best"),
    ] = None,
    lab_step_time: Annotated[
        str, typer.Option(metavar="TIME", help="Step of the similar lab that is printed beside a prediction.")
    ] = "50ms",
    lab_scale: Annotated[
        float | None,
        typer.Option(metavar="N", help="Scale of that lab.", show_default="the topology's, or 1000"),
    ] = None,
    joules_per_bit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[CLASS=]J",
            help="Energy of a bit on the fiber, 50e-12; adds that of a step. By class of path if repeated: metro=50e-12"
            " (fabric, intra-metro, metro, regional, long-haul, continental, intercontinental).",
        ),
    ] = None,
    idle_watts: Annotated[
        float | None, typer.Option(metavar="W", help="Power of an accelerator that waits; adds its energy in a step.")
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Predict compute utilization, exposed time and bits per fiber of a way of training, without a lab.

    Times are those of closed forms and of an event model (docs/prediction.md). Rates and sizes are those of full scale.
    Left out unless given: TCP's windows, loss and slow start; always: the fabrics inside sites. Model quality is not
    predicted: what others published about it is named as theirs.
    """
    from testbed.core.prediction import heat_map
    from testbed.core.prediction.prediction import Tcp
    from testbed.host.files.store import save_text
    from testbed.lab import api

    found: dict[str, Any] = {}
    named = None
    if topology is not None:
        named = api.load(topology, verb.read_overrides(set_))
        found = api.predicted_inputs(named)
    elif set_:
        raise UserError("--set needs a TOPOLOGY")
    given: dict[str, Any] = {
        "every": every, "fragments": fragments, "overlap": overlap, "accumulate": accumulate, "staleness": staleness,
        "micro_batches": micro_batches, "stages": stages, "activation_bits": activation_bits,
        "expert_layers": expert_layers, "token_bits": token_bits,
        "quorum": quorum, "grace_s": options.read("--grace", grace, parse_duration_s),
        "tiers": tuple(map(options.tier, tier)) if tier else None,
        "slowdowns": options.slowdowns(slow),
        "sites": sites, "ranks_per_site": ranks_per_site, "buckets": buckets, "in_flight": in_flight,
        "delays": delays, "wire_factor": wire_factor,
        "rate_bps": options.read("--rate", rate, parse_rate_bps),
        "delay_s": options.read("--delay", delay, parse_delay_s),
        "overlap_last_backward": overlap_last_backward or None,
        "parameters": options.read("--parameters", parameters, parse_count),
        "step_s": options.read("--step-time", step_time, parse_step_s),
        "operation_s": options.read("--operation", operation, parse_delay_s),
        "outer_step_s": options.read("--outer-step", outer_step, parse_step_s),
        "layers": layers, "bits": bits, "payload_factor": payload_factor,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    utilization = None
    for path in measured or ():
        said, ran = api.measured_inputs(path)
        found, utilization = {**found, **said}, utilization if ran is None else ran
    values = {**found, **given}
    if measured or delay is not None or sites is not None:
        values.pop("fibers_m", None)  # the topology's fibers are others
    beside: dict[str, Any] = {
        "tcp": Tcp(
            connections, options.size(window), options.read("--loss", loss, parse_probability) or 0.0, cold_start
        ),
        "failures": options.failures(
            {"--mtbf": mtbf, "--mtbf-rank": mtbf_rank, "--mtbf-site": mtbf_site, "--checkpoint": checkpoint,
             "--restart": restart, "--checkpoint-every": checkpoint_every, "--repair": repair}, cuts, named
        ),
        "power": options.power(joules_per_bit, idle_watts),
        "lab": options.similar_lab(lab_step_time, lab_scale, named),
    }  # fmt: skip

    def at(**changes: Any) -> Prediction:
        inputs = {**values, **changes}
        if "delay_s" in changes:
            inputs.pop("fibers_m", None)
        return api.predict(strategy, target=target, given=(*given, *changes), **beside, **inputs)

    axes = [options.axis(text) for text in over or ()]
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
    columns: list[dict[str, Any]] = [options.at_value(axes[1], it) for it in axes[1].values] if len(axes) == 2 else [{}]
    with Counted("predictions", len(axes[0].values) * len(columns)) as counted:
        rows = [[counted(at(**options.at_value(axes[0], one), **other)) for other in columns] for one in axes[0].values]
    if as_json:
        console.show_json(
            [
                {"over": {**options.at_value(axes[0], one), **other}} | it.to_dict()
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
