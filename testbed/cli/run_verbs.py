"""Verbs that run experiments and programs, and report on them: run, compare, launch, report."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, detached_run, reports, verb
from testbed.cli.job_verbs import detached
from testbed.cli.on_host import Written
from testbed.cli.options import (
    AllowUncertified,
    AsJson,
    Detach,
    JobOptions,
    LabName,
    LabOptions,
    Overrides,
    RunArgument,
    RunsFolder,
    StrategyOption,
    Strict,
    read_overrides,
)
from testbed.cli.verb import Result
from testbed.errors import Interrupted, TestbedError, UserError
from testbed.host.linux.signals import ENDING, handled

if TYPE_CHECKING:
    from testbed.core.report.document import Report
    from testbed.core.workload.progress_source import Progress
    from testbed.lab.jobs.program_job import ProgramJob
    from testbed.lab.lab import Lab

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


AsRoot = Annotated[
    bool,
    typer.Option(
        "--as-root", help="Run the program as root, which can change every file of this host.", show_default=False
    ),
]
ReadOnly = Annotated[
    bool,
    typer.Option(
        "--read-only",
        help="The program writes nothing in the current folder: start it even if its user cannot.",
        show_default=False,
    ),
]
RanksPerNode = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, max=64, help="Ranks on each node, as torchrun's --nproc-per-node.", show_default=False
    ),
]
ProgressSpecs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help="Where the program's steps are read: nanogpt, torchtitan, hf-trainer, lightning, a pattern of its "
        "output with (?P<step>…), or KEY=VALUE (csv=FILE, tensorboard=FOLDER, prometheus=PORT, step=NAME, "
        "train_loss=NAME, tokens=NUMBER); repeatable. Default: its calls of testbed_agents.step.",
        show_default=False,
    ),
]
Mpi = Annotated[
    bool,
    typer.Option(
        "--mpi",
        help="Start the ranks by the program's own MPI, MPICH or Open MPI, over the fabric.",
        show_default=False,
    ),
]
Mpiexec = Annotated[
    str,
    typer.Option(
        metavar="PROGRAM",
        help="The mpiexec that starts the ranks (default: that of the library the program is linked with).",
        show_default=False,
    ),
]
PerNode = Annotated[
    bool,
    typer.Option(
        "--per-node",
        help="Run the program once on each node; it starts the ranks itself, as torchrun does.",
        show_default=False,
    ),
]
KeepScratch = Annotated[
    bool,
    typer.Option(
        "--keep-scratch",
        help="Keep each node's TESTBED_SCRATCH with the run, in scratch/NODE; else it goes with the lab.",
        show_default=False,
    ),
]


@verb.verb(
    verb.RUNS,
    "testbed launch -- .venv/bin/python train.py --epochs 3",
    "testbed launch -l metro-40km -- ./a.out",
    "testbed launch --ranks-per-node 2 -- python train.py",
    "testbed launch --progress nanogpt -- python train.py",
    "testbed launch --per-node -- torchrun --nproc-per-node 2 train.py",
    "testbed launch --mpi -- ./osu_allreduce",
    "testbed launch --detach -- python train.py # then jobs, attach, logs --job, stop",
    own_status=125,
    passes_on_arguments=True,
)
def launch(
    command: Annotated[
        list[str], typer.Argument(metavar="[--] COMMAND...", help="Program and arguments, run unchanged once per rank.")
    ],
    lab: LabName = None,
    runs: RunsFolder = None,
    as_root: AsRoot = False,
    read_only: ReadOnly = False,
    ranks_per_node: RanksPerNode = 1,
    progress: ProgressSpecs = None,
    mpi: Mpi = False,
    mpiexec: Mpiexec = "",
    per_node: PerNode = False,
    keep_scratch: KeepScratch = False,
    detach: Detach = False,
    strict: Strict = False,
    allow_uncertified: AllowUncertified = False,
) -> Result | int:
    """Run your own program once per rank, inside the rank's node, with torchrun's environment.

    It runs without privileges: as the user who called sudo, else the owner of the working directory, else uid 60700
    (in containers 1000). In containers this user must be able to write in the working directory, unless --read-only.

    Sets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and the rest),
    GLOO_SOCKET_IFNAME, TESTBED_SITE, TESTBED_FOLDER (files of the rank), HOME and USER. Each node has a folder of its
    own on disk, TESTBED_SCRATCH, with TMPDIR inside, and its own /tmp if nothing of the program lies in /tmp.

    Output lines are prefixed with the rank and kept; those of stderr go to stderr. The exit status is that of the worst
    rank; 125 is an error of the testbed itself, 126 a command that cannot be executed, 127 one that is not found, 2 a
    lab where another job is running. Ctrl-C reaches the program as SIGINT, the second as SIGTERM, the third as SIGKILL.

    With --mpi, the program's mpiexec starts the ranks, restricted to TCP over the fabric; its daemons are reached
    without ssh and without a fiber. With --per-node, torchrun needs no address, port or number of nodes: PET_NNODES,
    PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT are set, from which it takes them; other launchers find
    TESTBED_NODES, TESTBED_NODE_RANK, MASTER_ADDR and MASTER_PORT. Programs start others in other nodes by
    $TESTBED_RSH NODE COMMAND, which takes the place of ssh.
    """
    from testbed.core.workload import progress_schema

    source = progress_schema.parse_words(progress or ())
    if per_node and (mpi or mpiexec):
        raise UserError("--per-node and --mpi exclude each other: mpiexec runs once, and starts the ranks of all nodes")
    target = verb.attach_to_change(lab)
    target.strict, target.allow_uncertified = strict, allow_uncertified
    request = {  # values that JSON has, for the process of a detached job
        "as_root": as_root,
        "read_only": read_only,
        "ranks_per_node": ranks_per_node,
        "keep_scratch": keep_scratch,
        "start": "mpi" if mpi or mpiexec else "per-node" if per_node else "direct",
        "mpiexec": mpiexec,
    }
    return _launch(target, command, source, request, runs, detach)


def _launch(
    target: Lab,
    command: list[str],
    source: Progress | None,
    request: dict[str, Any],
    runs: Path | None,
    detach: bool,
) -> Result | int:
    """Start a program in its own process, or here and follow it."""
    from testbed.core.physics import full_scale
    from testbed.core.workload.progress_source import to_dict

    if of_scale := full_scale.of_program(target.topology.scale):
        console.say(f"note: {of_scale}")
    if detach:
        source_fields = None if source is None else to_dict(source)
        what = shlex.join(command)
        request = {**request, "argv": command, "progress": source_fields, "what": what}
        return detached(target, "launch", request, runs, target.strict, target.allow_uncertified)
    has_begun = False

    def begun(where: str) -> None:
        nonlocal has_begun
        has_begun = True
        console.say(where, style="dim")

    try:
        job = target.launch(
            command,
            directory=runs,
            echo=console.show_line,
            echo_error=console.show_error_line,
            tell=begun,
            progress=source,
            note=console.say,
            **request,
        )
        return _follow_program(job)
    finally:
        if has_begun and target.run_directory is not None:
            path = target.run_directory.path
            console.say(f"output and measurements: {path}", style="dim")
            console.say(f"report: {invocation.command('report', _report_name(path))}", style="dim")


def _follow_program(job: ProgramJob) -> int:
    """Wait for the end of a program, passing signals on to its ranks; return its exit status."""
    from testbed.lab.jobs.same_files import describe

    signals: list[int] = []

    def interrupt(number: int) -> None:
        signals.append(number)
        sent = job.interrupt()
        following = {signal.SIGINT: "; Ctrl-C again sends SIGTERM", signal.SIGTERM: "; Ctrl-C again sends SIGKILL"}
        console.say(f"interrupted: {sent.name} to all ranks{following.get(sent, '')}", style="yellow")

    def terminate(number: int) -> None:
        signals.append(number)
        job.terminate()

    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate, signal.SIGHUP: terminate}
    with handled(handlers, unless_ignored=ENDING):
        status = job.exit_status()
    if failure := job.failure():
        console.error(failure)
    if same_files := describe(job.same_files):
        console.say(f"note: {same_files}")
    if signals:
        raise KeyboardInterrupt
    if job.interrupted and not status:
        raise Interrupted(f"job {job.id} ended: {job.interrupted}")
    return status


def _report_name(run: Path) -> str:
    """Return what `testbed report` finds a run by: its name, if it is where runs are looked for, else its path.

    Behind sudo it is the path: sudo removes variables that say where the caller's own shell looks for runs.
    """
    from testbed.host.files import runs_folder
    from testbed.host.linux import program_user

    try:
        is_found = program_user.caller() is None and run.parent in runs_folder.searched()
    except TestbedError:
        is_found = False
    return run.name if is_found else str(run)


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
