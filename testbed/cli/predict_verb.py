"""The verb ``predict``: step time, utilization and traffic of a job, without a lab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import console, prediction_tables, verb
from testbed.cli import prediction_options as options
from testbed.cli.on_host import Sent, Written
from testbed.cli.prediction_progress import Counted
from testbed.cli.verb import AsJson, ComputeOption, ModelOption, Overrides, StrategyOption
from testbed.core.units import parse_delay_s, parse_duration_s, parse_probability, parse_rate_bps
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.prediction.prediction import Prediction


@verb.verb(
    verb.LOOK,
    "testbed predict metro-40km --strategy diloco:every=50 --compute 80ms --model 1.3B",
    "testbed predict --strategy diloco:every=100 --rate 5G --delay 5ms",
    "testbed predict --strategy streaming-diloco:every=100,fragments=16,overlap=1,bits=4 --target 0.9",
    "testbed predict --strategy ddp --over km=5..9000 --over rate=10G..1000G",
)
def predict(
    named: Annotated[
        str | None,
        typer.Argument(
            metavar="[TOPOLOGY|EXPERIMENT]",
            help="Take sites, ranks, rates and delays from this topology, and the workload from this experiment.",
            autocompletion=verb.completing(verb.topologies),
        ),
        Sent(),
    ] = None,
    strategy: StrategyOption = None,
    compute: ComputeOption = None,
    model: ModelOption = None,
    layers: Annotated[int | None, typer.Option(metavar="N", help="Layers of the model.", show_default="24")] = None,
    sites: Annotated[int | None, typer.Option(metavar="N", help="Without a topology: sites.", show_default="2")] = None,
    ranks_per_site: Annotated[
        int | None, typer.Option(metavar="N", help="Without a topology: accelerators of a site.", show_default="1")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="RATE",
            help="Payload rate of each fiber, as iperf3 gives it, each direction.",
            show_default="the topology's, or 100G",
        ),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="One-way delay between two sites, 5 us per km.",
            show_default="the topology's, or 200us",
        ),
    ] = None,
    library: Annotated[
        Path | None,
        typer.Option(
            metavar="VALIDATION",
            help="Take what operations cost from this validation of a collective library, in place of gloo's costs.",
        ),
        Sent(always=True),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Take the job, and what its operations cost, from this run of the agents."),
        Sent(always=True),
    ] = None,
    as_published: Annotated[
        bool,
        typer.Option("--as-published", help="Simulate as arXiv:2501.18512, Table 4 does.", show_default=False),
    ] = False,
    target: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Look for the least rate for this compute utilization: 0.9.")
    ] = None,
    merge_within: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="With --target: the median age of updates, where no site waits for them."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=A..B",
            help=f"Make a table over {', '.join(options.OVER)}, or an option of the strategy, at seven values. Twice: "
            "two axes.",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With two --over: also write a heat map, .svg or .html."),
        Written(),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the simulated exchanges as a Chrome trace (chrome://tracing), .json."),
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
        typer.Option(metavar="N", help="Without a topology: scale of the lab that is simulated.", show_default="1000"),
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
    """Predict compute utilization, exposed time by cause and bits per fiber of a job, without a lab.

    Words and defaults are those of run. What the agents do is simulated: their buckets, fragments and pushes, over
    gloo's rounds of messages (docs/prediction.md). Left out unless given: TCP's windows, loss and slow start. Model
    quality is not predicted: what others published about it is named as theirs.
    """
    from testbed.core.prediction import chrome_trace, heat_map
    from testbed.core.prediction.prediction import Tcp
    from testbed.host.files.store import save_text
    from testbed.lab import api

    topology, workload = options.named(named, verb.read_overrides(set_))
    if topology is None and set_:
        raise UserError("--set needs a TOPOLOGY")
    alone = {"--sites": sites, "--ranks-per-site": ranks_per_site, "--lab-scale": lab_scale}
    if given := [name for name, value in alone.items() if value is not None and topology]:
        raise UserError(f"{given[0]} cannot be combined with a topology, which defines it; remove {given[0]}")
    ran = None if measured is None else api.measured_job(measured)
    job: dict[str, Any] = {
        "compute": compute, "model": model, "layers": layers, "workload": workload,
        "rate_bps": options.read("--rate", rate, parse_rate_bps),
        "delay_s": options.read("--delay", delay, parse_delay_s),
        "sites": sites, "ranks_per_site": ranks_per_site, "scale": lab_scale,
        "library": None if library is None else api.measured_library(library),
        "measured": ran, "as_published": as_published, "target": target,
        "merge_within_s": options.read("--merge-within", merge_within, parse_duration_s),
        "tcp": Tcp(
            connections, options.size(window), options.read("--loss", loss, parse_probability) or 0.0, cold_start
        ),
        "failures": options.failures(
            {"--mtbf": mtbf, "--mtbf-rank": mtbf_rank, "--mtbf-site": mtbf_site, "--checkpoint": checkpoint,
             "--restart": restart, "--checkpoint-every": checkpoint_every, "--repair": repair}, cuts, topology
        ),
        "power": options.power(joules_per_bit, idle_watts),
        "lab": options.similar_lab(lab_step_time, lab_scale, topology),
    }  # fmt: skip
    job = {name: value for name, value in job.items() if value is not None}

    def at(**changes: Any) -> Prediction:
        return api.predict(strategy, topology, **{**job, **changes})

    axes = [options.axis(text) for text in over or ()]
    _check_axes(axes, target, picture, timeline)
    if not axes:
        one = at()
        if as_json:
            console.show_json(one.to_dict())
        else:
            prediction_tables.show(one)
            if ran is not None and ran.utilization is not None:
                console.show(f"the run measured {prediction_tables.percent(ran.utilization)}, faults included")
        if timeline is not None:
            save_text(timeline, chrome_trace.text(one.outcome.transfers))
            console.say(f"timeline: {timeline}")
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


def _check_axes(
    axes: list[prediction_tables.Axis], target: float | None, picture: Path | None, timeline: Path | None
) -> None:
    if len(axes) > 2:
        raise UserError(f"--over may be given twice, got {len(axes)} times")
    if len({it.field for it in axes}) < len(axes):
        raise UserError(f"--over {axes[0].name} and --over {axes[1].name} vary the same input; name another one")
    if target is not None and any(it.field == "rate_bps" for it in axes):
        raise UserError("--target looks for the rate; with it, --over varies another input: km, delay, every")
    if picture is not None and (len(axes) < 2 or picture.suffix not in (".svg", ".html")):
        raise UserError(f"--picture needs two --over and a name that ends in .svg or .html, got '{picture}'")
    if timeline is not None and (axes or timeline.suffix != ".json"):
        raise UserError(f"--timeline needs one prediction and a name that ends in .json, got '{timeline}'")
