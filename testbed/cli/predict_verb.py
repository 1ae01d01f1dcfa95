"""The verb ``predict``: step time, utilization and traffic of a job, without a lab."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import console, prediction_tables, verb
from testbed.cli import prediction_options as options
from testbed.cli.on_host import Sent, Written
from testbed.cli.options import (
    AsJson,
    ComputeOption,
    ModelOption,
    Overrides,
    StrategyOption,
    completing,
    default,
    quantity,
    read_overrides,
    topologies,
)
from testbed.cli.prediction_options import EnergyOptions, FailureOptions, NetworkOptions, TcpOptions
from testbed.cli.prediction_tables import Axis
from testbed.cli.verb import Result
from testbed.core.units import parse_duration_s, parse_step_s
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.analysis.measured_workload import MeasuredJob
    from testbed.core.prediction.prediction import Prediction


Named = Annotated[
    str | None,
    typer.Argument(
        metavar="[TOPOLOGY|EXPERIMENT]",
        help="Take sites, ranks, rates and delays from this topology, and the workload from this experiment.",
        autocompletion=completing(topologies),
    ),
    Sent(),
]
Layers = Annotated[int | None, typer.Option(metavar="N", help="Layers of the model.", show_default="24")]
LibraryCosts = Annotated[
    Path | None,
    typer.Option(
        metavar="VALIDATION",
        help="Take what operations cost from this validation of a collective library, in place of gloo's costs.",
    ),
    Sent(always=True),
]
MeasuredRun = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Take the job, and what its operations cost, from this run of the agents."),
    Sent(always=True),
]
AsPublished = Annotated[
    bool,
    typer.Option("--as-published", help="Simulate as arXiv:2501.18512, Table 4 does.", show_default=False),
]
Target = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Look for the least rate for this compute utilization: 0.9.")
]
MergeWithin = Annotated[
    float | None,
    quantity(
        parse_duration_s,
        metavar="TIME",
        help="With --target: the median age of updates, where no site waits for them.",
    ),
]
Over = Annotated[
    list[str] | None,
    typer.Option(
        metavar="K=A..B",
        help=f"Make a table over {', '.join(options.OVER)}, or an option of the strategy, at seven values. Twice: "
        "two axes.",
    ),
]
Picture = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With two --over: also write a heat map, .svg or .html."),
    Written(),
]
Timeline = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the simulated exchanges as a Chrome trace (chrome://tracing), .json."),
    Written(),
]
LabScale = Annotated[
    float | None,
    typer.Option(metavar="N", help="Without a topology: scale of the lab that is simulated.", show_default="1000"),
]


@verb.verb(
    verb.LOOK,
    "testbed predict metro-40km --strategy diloco:every=50 --compute 80ms --model 1.3B",
    "testbed predict --strategy diloco:every=100 --rate 5G --delay 5ms",
    "testbed predict --strategy streaming-diloco:every=100,fragments=16,overlap=1,bits=4 --target 0.9",
    "testbed predict --strategy ddp --over km=5..9000 --over rate=10G..1000G",
)
def predict(
    named: Named = None,
    strategy: StrategyOption = None,
    compute: ComputeOption = None,
    model: ModelOption = None,
    layers: Layers = None,
    *,
    network: NetworkOptions,
    library: LibraryCosts = None,
    measured: MeasuredRun = None,
    as_published: AsPublished = False,
    target: Target = None,
    merge_within: MergeWithin = None,
    over: Over = None,
    picture: Picture = None,
    timeline: Timeline = None,
    tcp: TcpOptions,
    failure: FailureOptions,
    lab_step_time: Annotated[
        float,
        quantity(parse_step_s, metavar="TIME", help="Step of the similar lab that is printed beside a prediction."),
    ] = default("50ms"),
    lab_scale: LabScale = None,
    energy: EnergyOptions,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> Result:
    """Predict compute utilization, exposed time by cause and bits per fiber of a job, without a lab.

    Words and defaults are those of run. What the agents do is simulated: their buckets, fragments and pushes, over
    gloo's rounds of messages (docs/prediction.md). Left out unless given: TCP's windows, loss and slow start. Model
    quality is not predicted: what others published about it is named as theirs.
    """
    from testbed.lab import api

    topology, workload = options.named(named, read_overrides(set_))
    if topology is None and set_:
        raise UserError("--set needs a TOPOLOGY")
    without = {"--sites": network.sites, "--ranks-per-site": network.ranks_per_site, "--lab-scale": lab_scale}
    if topology and (excess := [option for option, number in without.items() if number is not None]):
        raise UserError(f"{excess[0]} cannot be combined with a topology, which defines it; remove {excess[0]}")
    run = None if measured is None else api.measured_job(measured)
    inputs: dict[str, Any] = {
        **vars(network),
        "compute": compute, "model": model, "layers": layers, "workload": workload, "scale": lab_scale,
        "library": None if library is None else api.measured_library(library),
        "measured": run, "as_published": as_published, "target": target, "merge_within_s": merge_within,
        "tcp": tcp.tcp(), "failures": failure.failures(topology), "power": energy.power(),
        "lab": options.similar_lab(lab_step_time, lab_scale, topology),
    }  # fmt: skip
    inputs = {name: value for name, value in inputs.items() if value is not None}
    axes = [options.axis(text) for text in over or ()]
    _check_axes(axes, target, picture, timeline)

    def at(**changes: Any) -> Prediction:
        return api.predict(strategy, topology, **{**inputs, **changes})

    if axes:
        return _over(at, axes, target, picture)
    return _one(at(), run, timeline)


def _one(prediction: Prediction, run: MeasuredJob | None, timeline: Path | None) -> Result:
    from testbed.core.prediction import chrome_trace
    from testbed.host.files.store import save_text

    notes = []
    if run is not None and run.utilization is not None:
        notes = [f"the run measured {prediction_tables.percent(run.utilization)}, faults included"]
    if timeline is not None:
        save_text(timeline, chrome_trace.text(prediction.outcome.transfers))
        console.say(f"timeline: {timeline}")
    return Result(data=prediction.to_dict, tables=[*prediction_tables.of_one(prediction), *notes])


def _over(at: Callable[..., Prediction], axes: list[Axis], target: float | None, picture: Path | None) -> Result:
    """Predict at each value of one or two axes."""
    from testbed.core.prediction import heat_map
    from testbed.host.files.store import save_text

    changes = [[options.at_value(axis, value) for value in axis.values] for axis in axes]
    columns: list[dict[str, Any]] = changes[1] if len(axes) == 2 else [{}]
    cells = [[{**row, **column} for column in columns] for row in changes[0]]
    with console.Counter("predictions", len(cells) * len(columns)) as counted:
        rows = [[counted(at(**cell)) for cell in row] for row in cells]
    if picture is not None:
        drawn = prediction_tables.heat_map(axes, rows, target)
        save_text(picture, heat_map.svg(drawn) if picture.suffix == ".svg" else heat_map.html_page(drawn))
        console.say(f"heat map: {picture}")
    return Result(
        data=lambda: [
            {"over": cell} | prediction.to_dict()
            for row, predictions in zip(cells, rows, strict=True)
            for cell, prediction in zip(row, predictions, strict=True)
        ],
        tables=prediction_tables.over(axes, rows, target),
    )


def _check_axes(axes: list[Axis], target: float | None, picture: Path | None, timeline: Path | None) -> None:
    if len(axes) > 2:
        raise UserError(f"--over may be given twice, got {len(axes)} times")
    if len({axis.field for axis in axes}) < len(axes):
        raise UserError(f"--over {axes[0].name} and --over {axes[1].name} vary the same input; name another one")
    if target is not None and any(axis.field == "rate_bps" for axis in axes):
        raise UserError("--target looks for the rate; with it, --over varies another input: km, delay, every")
    if picture is not None and (len(axes) < 2 or picture.suffix not in (".svg", ".html")):
        raise UserError(f"--picture needs two --over and a name that ends in .svg or .html, got '{picture}'")
    if timeline is not None and (axes or timeline.suffix != ".json"):
        raise UserError(f"--timeline needs one prediction and a name that ends in .json, got '{timeline}'")
