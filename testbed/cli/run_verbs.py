"""Verbs that run whole experiments and report on them: run, compare, report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, detached_run, reports, verb
from testbed.cli.on_host import Written
from testbed.cli.options import (
    AsJson,
    Detach,
    JobOptions,
    LabOptions,
    Overrides,
    RunArgument,
    StrategyOption,
    read_overrides,
)
from testbed.cli.verb import Result
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.report.document import Report

JUnitFile = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Also write the verdict as JUnit XML, for CI."),
    Written(),
]


@verb.verb(
    verb.RUNS,
    "testbed run metro-40km                     # cuts the first of two fibers halfway through",
    "testbed run metro-40km --steps 100         # a short run",
    "testbed run metro-40km --set links.north.km=80",
    "testbed run metro-40km --strategy diloco:every=50 --compute 80ms --model 1.3B",
    "testbed run my-experiment.yaml --json      # the report as JSON on stdout",
    "testbed run flapping-fiber --junit out.xml # also a JUnit verdict for CI",
)
def run(
    what: RunArgument,
    steps: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of training steps.")] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of the model, the data and the packet losses.")
    ] = None,
    strategy: StrategyOption = None,
    *,
    job: JobOptions,
    set_: Overrides = None,
    lab: LabOptions,
    junit: JUnitFile = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> Result | int:
    """Run a whole experiment: bring a lab up, certify it, train, inject faults, report, take it down.

    A bare topology runs the shipped experiment first-cut on it, or only-fiber if no path bypasses its first link.
    --strategy, --compute, --model and --noise stand in for what the experiment's workload says.
    Ctrl-C undoes everything and still writes the report of what was measured. Exit status 1: measured, and the
    expectations do not hold; 3: inconclusive.
    """
    from testbed.lab import api

    if detach and not detached_run.is_this():
        return detached_run.begin(lab.runs)
    overrides = read_overrides(set_)
    with reports.junit_file(junit, what, _junit) as verdict, console.progress() as progress:
        outcome = api.run(
            what,
            steps=steps,
            seed=seed,
            strategy=strategy,
            set=overrides,
            progress=progress,
            **vars(job),
            **vars(lab),
        )
        verdict.append(outcome.report)
    return reports.of_report(outcome.report, outcome.directory / "index.html", outcome.exit_code)


def _junit(report: Report) -> str:
    from testbed.core.report.junit import junit

    return junit(report)


@verb.verb(
    verb.RUNS,
    "testbed compare metro-40km --strategies ddp,hierarchical,diloco:every=50",
    "testbed compare longhaul-1000km --strategies ddp,diloco:every=50,outer.rate=0.7 --seeds 3",
    "testbed compare metro-40km --strategies ddp,diloco --inject 'cut north after=40% for=3s'",
    "testbed compare longhaul-1000km --strategies ddp,diloco --compute 80ms --model 1.3B",
)
def compare(
    what: RunArgument,
    strategies: Annotated[
        str,
        typer.Option(
            metavar="A,B:KEY=VALUE,...",
            help="Ways of training, each with its options; the others are compared with the first.",
            show_default=False,
        ),
    ],
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each way, with other seeds.")] = 1,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            help="A fault of every run: FAULT TARGET, then after=40% or at=30s, for=3s, its KEY=VALUE; repeatable.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of training steps.", show_default="300")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="The first seed.", show_default="0")] = None,
    evaluations: Annotated[
        int, typer.Option(metavar="N", min=0, help="How often each run evaluates its outer parameters; 0: never.")
    ] = 10,
    *,
    job: JobOptions,
    set_: Overrides = None,
    lab: LabOptions,
    as_json: AsJson = False,
) -> Result:
    """Run the same job by several ways of training, one after the other, and compare them in one report.

    One lab is brought up and certified for all runs; each run has a directory and a report of its own. Model, data,
    global batch, tokens, schedule and seeds are the same. Compared are the held-out loss of the outer parameters at
    equal tokens, time and bytes on the fiber (never the loss inside a site), compute utilization, goodput under the
    same faults, bytes per token against theory, and where the time of a step goes. Differences are paired by seed; from
    three seeds on they have a 95 % interval.

    Ctrl-C undoes everything and keeps the comparison of the runs so far. Exit status: 0 all runs passed, 1 one was
    measured and is bad, 3 one has no result.
    """
    from testbed.lab import api

    overrides = read_overrides(set_)
    with console.progress() as progress:
        outcome = api.compare(
            what,
            strategies,
            seeds=seeds,
            inject=inject or (),
            evaluations=evaluations,
            steps=steps,
            seed=seed,
            set=overrides,
            progress=progress,
            **vars(job),
            **vars(lab),
        )
    return reports.of_comparison(outcome.found, outcome.page, outcome.exit_code)


@verb.verb(
    verb.RUNS,
    "testbed report                             # the latest run",
    "testbed report metro-40km-20261121-054212 --open",
    "testbed report BEFORE AFTER                # two runs side by side",
)
def report(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN [RUN]]",
            help=f"Name of a run (see {invocation.command('ls', 'runs')}), or its directory; default: the latest. "
            "Two: compare them.",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.", show_default=False)] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Of two runs: where to write (default: comparisons/ in the folder of your runs).",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Rebuild the report of a run from its directory alone: index.html, report.json, report.md.

    The exit status is that of the verdict, as of the run itself: 0 pass, 1 fail, 3 unknown.

    Of two runs, write one page that has them side by side: first what differs in their inputs, then verdicts, key
    figures, plots, faults, certificates and bytes with differences and ratios, and whether a difference is more than
    the noise seen inside the runs. The runs are not changed. The exit status is 0 if they could be compared, whatever
    their verdicts.
    """
    if runs and len(runs) > 1:
        result, page = _two(runs, out)
    elif out is not None:
        raise UserError("--out is for the comparison of two runs; name two, or copy the run's own report")
    else:
        result, page = _one(runs[0] if runs else None)
    status = verb.show(result, as_json)
    if open_:
        console.open_page(page)
    return status


def _two(runs: list[Path], out: Path | None) -> tuple[Result, Path]:
    from testbed.lab import api

    if len(runs) > 2:
        raise UserError(f"expected one run or two, got {len(runs)}")
    pair, page = api.side_by_side(runs[0], runs[1], out)
    return reports.of_two(pair, page), page


def _one(run: Path | None) -> tuple[Result, Path]:
    from testbed.core.report.answers import EXIT_CODES
    from testbed.core.validation.verdict import exit_code
    from testbed.lab import api

    if (validated := api.validation_report(run)) is not None:
        validation, comparison, page = validated
        status = exit_code(validation.verdict, len(comparison.regressions) if comparison else 0)
        return reports.of_validation(validation, comparison, page, status, label="report"), page
    document, page = api.report(run)
    return reports.of_report(document, page, EXIT_CODES[document.verdict]), page
