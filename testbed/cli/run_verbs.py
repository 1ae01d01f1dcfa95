"""Verbs that run jobs or report on them: run, launch, report."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import comparison_verb, console, detached_run, tables, verb
from testbed.cli.browser import open_page
from testbed.cli.ci import junit_file
from testbed.cli.on_host import Written
from testbed.cli.run_options import RunOptions
from testbed.cli.verb import (
    AllowUncertified,
    AsJson,
    Detach,
    LabName,
    RunArgument,
    RunsFolder,
    StrategyOption,
    Strict,
)
from testbed.errors import Interrupted, UserError

if TYPE_CHECKING:
    from testbed.core.report.document import Report
    from testbed.core.validation.baseline import BaselineComparison
    from testbed.core.validation.result import Validation
    from testbed.lab.jobs.program_job import ProgramJob


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
    options: RunOptions,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write the verdict as JUnit XML, for CI."),
        Written(),
    ] = None,
    detach: Detach = False,
    as_json: AsJson = False,
) -> int:
    """Run a whole experiment: bring a lab up, certify it, train, inject faults, report, take it down.

    A bare topology runs the shipped experiment first-cut on it, or only-fiber if no path bypasses its first link.
    --strategy, --compute, --model and --noise stand in for what the experiment's workload says.
    Ctrl-C undoes everything and still writes the report of what was measured. Exit status 1: measured, and the
    expectations do not hold; 3: inconclusive.
    """
    from testbed.lab import api

    if detach and not detached_run.is_this():
        return detached_run.begin(options.runs, as_json)
    with junit_file(junit, what, _junit) as verdict, console.progress() as progress:
        outcome = api.run(
            what,
            steps=steps,
            seed=seed,
            strategy=strategy,
            progress=progress,
            **options.keywords(),
        )
        verdict.append(outcome.report)
    report = outcome.report
    if as_json:
        from testbed.core.report.document import to_json

        console.show_json(to_json(report))
        return outcome.exit_code
    console.show(tables.verdict(report.verdict).append(f": {report.headline}", style="bold default"))
    for line in tables.noise(report.noise):
        console.show_paragraph(line)
    if not console.quiet():
        console.show(tables.answers(report))
        if told := tables.rank_seconds(report):
            console.show(told)
        if told := tables.declared(report):
            console.show(told)
        if told := tables.prediction(report):
            console.show(told)
        if offered := tables.offer(report):
            console.show(offered)
    console.show(f"report: {outcome.directory / 'index.html'}")
    return outcome.exit_code


def _named(run: Path) -> str:
    """Return what `testbed report` finds a run by: its name, if it is where runs are looked for, else its path.

    Behind sudo it is the path: sudo removes variables that say where the caller's own shell looks for runs.
    """
    from testbed.errors import TestbedError
    from testbed.host.files import runs_folder
    from testbed.host.linux import program_user

    try:
        known = program_user.caller() is None and run.parent in runs_folder.searched()
    except TestbedError:
        known = False
    return run.name if known else str(run)


def _junit(report: Report) -> str:
    from testbed.core.report.junit import junit

    return junit(report)


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
    as_root: Annotated[
        bool,
        typer.Option(
            "--as-root", help="Run the program as root, which can change every file of this host.", show_default=False
        ),
    ] = False,
    read_only: Annotated[
        bool,
        typer.Option(
            "--read-only",
            help="The program writes nothing in the current folder: start it even if its user cannot.",
            show_default=False,
        ),
    ] = False,
    ranks_per_node: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=64, help="Ranks on each node, as torchrun's --nproc-per-node.", show_default=False
        ),
    ] = 1,
    progress: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="Where the program's steps are read: nanogpt, torchtitan, hf-trainer, lightning, a pattern of its "
            "output with (?P<step>…), or KEY=VALUE (csv=FILE, tensorboard=FOLDER, prometheus=PORT, step=NAME, "
            "train_loss=NAME, tokens=NUMBER); repeatable. Default: its calls of testbed_agents.step.",
            show_default=False,
        ),
    ] = None,
    mpi: Annotated[
        bool,
        typer.Option(
            "--mpi",
            help="Start the ranks by the program's own MPI, MPICH or Open MPI, over the fabric.",
            show_default=False,
        ),
    ] = False,
    mpiexec: Annotated[
        str,
        typer.Option(
            metavar="PROGRAM",
            help="The mpiexec that starts the ranks (default: that of the library the program is linked with).",
            show_default=False,
        ),
    ] = "",
    per_node: Annotated[
        bool,
        typer.Option(
            "--per-node",
            help="Run the program once on each node; it starts the ranks itself, as torchrun does.",
            show_default=False,
        ),
    ] = False,
    keep_scratch: Annotated[
        bool,
        typer.Option(
            "--keep-scratch",
            help="Keep each node's TESTBED_SCRATCH with the run, in scratch/NODE; else it goes with the lab.",
            show_default=False,
        ),
    ] = False,
    detach: Detach = False,
    strict: Strict = False,
    allow_uncertified: AllowUncertified = False,
) -> int:
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
    from testbed.core.physics import full_scale
    from testbed.core.workload import progress_schema
    from testbed.core.workload.progress_source import to_dict as progress_to_dict
    from testbed.lab.jobs.same_files import describe

    read = progress_schema.parse_words(progress or ())
    if per_node and (mpi or mpiexec):
        raise UserError("--per-node and --mpi exclude each other: mpiexec runs once, and starts the ranks of all nodes")
    target = verb.attach_to_change(lab)
    target.strict, target.allow_uncertified = strict, allow_uncertified
    if of_scale := full_scale.of_program(target.topology.scale):
        console.say(f"note: {of_scale}")
    # What a detached job's own process is told too: values that JSON has.
    options: dict[str, Any] = {
        "as_root": as_root,
        "read_only": read_only,
        "ranks_per_node": ranks_per_node,
        "keep_scratch": keep_scratch,
        "start": "mpi" if mpi or mpiexec else "per-node" if per_node else "direct",
        "mpiexec": mpiexec,
    }
    if detach:
        from testbed.cli.job_verbs import detached

        written = {"argv": command, "progress": None if read is None else progress_to_dict(read)}
        what = shlex.join(command)
        return detached(target, "launch", {**options, **written, "what": what}, runs, strict, allow_uncertified)
    told: list[str] = []

    def tell(where: str) -> None:
        told.append(where)
        console.say(where, style="dim")

    try:
        job = target.launch(
            command,
            directory=runs,
            echo=console.show_line,
            echo_error=console.show_error_line,
            tell=tell,
            progress=read,
            note=console.say,
            **options,
        )
        with _signals_passed_on(job) as passed_on:
            status = job.exit_status()
        if how := job.failure():
            console.error(how)
        if same := describe(job.same_files):
            console.say(f"note: {same}")
        if passed_on:
            raise KeyboardInterrupt
        if job.interrupted and not status:
            raise Interrupted(f"job {job.id} ended: {job.interrupted}")
        return status
    finally:
        if told and target.run_directory is not None:
            console.say(f"output and measurements: {target.run_directory.path}", style="dim")
            console.say(f"report: {invocation.command('report', _named(target.run_directory.path))}", style="dim")


@contextlib.contextmanager
def _signals_passed_on(job: ProgramJob) -> Iterator[list[int]]:
    """Pass Ctrl-C on to the ranks: as SIGINT, the next one as SIGTERM, then SIGKILL; SIGTERM and SIGHUP as SIGTERM.

    Yield the signals that came.
    """
    heard: list[int] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        sent = job.interrupt()
        more = {signal.SIGINT: "; Ctrl-C again sends SIGTERM", signal.SIGTERM: "; Ctrl-C again sends SIGKILL"}
        console.say(f"interrupted: {sent.name} to all ranks{more.get(sent, '')}", style="yellow")

    def terminated(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        job.terminate()

    wanted = {signal.SIGINT: interrupted, signal.SIGTERM: terminated, signal.SIGHUP: terminated}
    heeded = {it: handler for it, handler in wanted.items() if callable(signal.getsignal(it))}  # nohup(1) ignores one
    if threading.current_thread() is not threading.main_thread():
        heeded = {}
    before = {it: signal.signal(it, handler) for it, handler in heeded.items()}
    try:
        yield heard
    finally:
        for it, handler in before.items():
            signal.signal(it, handler)


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
        return comparison_verb.report_two(runs, out, as_json=as_json, open_page=open_page if open_ else None)
    if out is not None:
        raise UserError("--out is for the comparison of two runs; name two, or copy the run's own report")
    return _report_one(runs[0] if runs else None, open_=open_, as_json=as_json)


def _report_one(run: Path | None, *, open_: bool, as_json: bool) -> int:
    from testbed.core.report.answers import EXIT_CODES
    from testbed.lab import api

    if (validated := api.validation_report(run)) is not None:
        return _show_validation(*validated, as_json=as_json, open_=open_)
    document, page = api.report(run)
    if as_json:
        from testbed.core.report.document import to_json

        console.show_json(to_json(document))
    else:
        console.show(tables.verdict(document.verdict).append(f": {document.headline}", style="bold default"))
        for line in tables.noise(document.noise):
            console.show_paragraph(line)
        if not console.quiet():
            console.show(tables.answers(document))
            if told := tables.rank_seconds(document):
                console.show(told)
            if told := tables.declared(document):
                console.show(told)
            if told := tables.prediction(document):
                console.show(told)
            if offered := tables.offer(document):
                console.show(offered)
        console.show(f"report: {page}")
    if open_:
        open_page(page)
    return EXIT_CODES[document.verdict]


def _show_validation(
    validation: Validation, comparison: BaselineComparison | None, page: Path, *, as_json: bool, open_: bool
) -> int:
    from testbed.core.validation.verdict import exit_code

    if as_json:
        from testbed.core.validation.result_json import to_json

        console.show_json(to_json(validation))
    else:
        from testbed.cli.validate_verb import show

        show(validation, comparison)
        console.show(f"report: {page}")
    if open_:
        open_page(page)
    return exit_code(validation.verdict, len(comparison.regressions) if comparison else 0)
