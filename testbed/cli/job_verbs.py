"""Verbs for jobs on a lab that is up: train, jobs, attach, stop."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, lab_tables, reports, tables, verb
from testbed.cli.console import Note
from testbed.cli.options import (
    AllowUncertified,
    AsJson,
    ComputeOption,
    DataOption,
    Detach,
    LabName,
    ModelOption,
    NoiseOption,
    RunsFolder,
    StrategyOption,
    Strict,
    completing,
)
from testbed.cli.verb import Result
from testbed.errors import Interrupted, StorageError, UserError

if TYPE_CHECKING:
    from testbed.core.workload.workload import AgentWorkload
    from testbed.lab.job_status import JobStatus
    from testbed.lab.jobs.attached_job import AttachedJob
    from testbed.lab.jobs.job import Job
    from testbed.lab.lab import Lab
    from testbed.lab.progress import LiveState

__all__ = ["attached", "detached"]

TICK_S = 0.25
SHOWN_LINES = 10
"""Lines of a program's output from before it was attached to that are shown."""


def _known_jobs(lab: str | None) -> Sequence[str]:
    return [job.id for job in verb.attach(lab).jobs()]


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="Id of a job, as in j1: `jobs` lists them.", autocompletion=completing(_known_jobs)
    ),
]


@verb.verb(
    verb.RUNS,
    "testbed train",
    "testbed train --steps 200 --seed 3",
    "testbed train --strategy diloco:every=50,outer.rate=0.7 --compute 80ms --model 1.3B",
    "testbed train --detach                     # then jobs, attach, stop",
)
def train(
    strategy: StrategyOption = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Number of training steps.")] = 500,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the model and the data.")] = 0,
    data: DataOption = None,
    checkpoint: Annotated[int, typer.Option(metavar="N", min=0, help="Steps between checkpoints; 0: none.")] = 50,
    restarts: Annotated[int, typer.Option(metavar="N", min=0, help="Restarts after a failure.")] = 3,
    compute: ComputeOption = None,
    model: ModelOption = None,
    noise: NoiseOption = None,
    detach: Detach = False,
    lab: LabName = None,
    runs: RunsFolder = None,
    strict: Strict = False,
    allow_uncertified: AllowUncertified = False,
    as_json: AsJson = False,
) -> Result | int:
    """Train with the testbed's own agents in a lab that is up, and write the report.

    The lab stays up. Inject faults meanwhile with cut and inject. Ctrl-C ends the job and still writes the report of
    what was measured. One job of any kind runs at a time in a lab: a second one is refused with exit status 2 and the
    first one's id. Exit status 0 to 3: the report's, as of run.
    """
    from testbed.core.workload import workload_words
    from testbed.core.workload.workload import AgentWorkload
    from testbed.host import strategy_packages

    strategy_packages.register()
    stated = {"strategy": strategy, "compute": compute, "model": model, "noise": noise}
    workload = workload_words.changed(AgentWorkload(steps, seed), strategy, compute, model, noise)
    if data is not None and not (data.is_file() or data.is_dir()):
        raise UserError(f"no such file or folder to train on: {data.absolute()}")
    target = verb.attach_to_change(lab)
    request: dict[str, object] = {
        "steps": steps,
        "seed": seed,
        "data": None if data is None else str(data.absolute()),
        "checkpoint_every": checkpoint,
        "restarts": restarts,
        **{key: text for key, text in stated.items() if text is not None},
    }
    _say_notes(workload, target)
    what = f"{workload.strategy}, {steps} steps"
    if detach:
        return detached(target, "train", {**request, "what": what}, runs, strict, allow_uncertified)
    target.strict, target.allow_uncertified = strict, allow_uncertified
    return _train(target, what, request, runs)


def _say_notes(workload: AgentWorkload, target: Lab) -> None:
    from testbed.core.workload import workload_layout
    from testbed.lab.jobs.workload_notes import declared_notes, placement_notes

    for line in (
        *workload_layout.refuse_mistakes(workload, target.topology),
        *declared_notes(workload, target.topology),
        *placement_notes(workload, target.topology),
    ):
        console.say(f"note: {line}")


def _train(target: Lab, what: str, request: dict[str, object], runs: Path | None) -> Result:
    """Train in the foreground: follow the job, write the report."""
    from testbed.core.report.answers import EXIT_CODES
    from testbed.lab.interruption import defer_interrupts

    with console.progress() as progress, target.claimed("train", what) as claim:
        if runs is not None:
            target.open_run(runs)
        job = target.train(**request)  # type: ignore[arg-type]
        directory = target.run_directory
        assert directory is not None
        progress.note(f"run directory: {directory.path}")
        progress.phase("train", f"job {job.id}: {what} on {len(target.topology.node_names)} ranks")
        try:
            while not job.over():
                progress.tick(_live_state(target, job))
                time.sleep(TICK_S)
        except BaseException:
            with defer_interrupts():
                target.interrupt("interrupted by the user")
                progress.ended("interrupted")
                target.report()
                console.say(f"run directory: {directory.path}", style="dim")
            raise
        progress.ended("interrupted" if claim.stop_why else "failed" if job.failure() else "done")
        try:
            report = target.report()
        except StorageError as error:
            if not job.failure():
                raise
            # The cause is what a rank could not write, and the report follows from it.
            raise StorageError(f"{job.failure()}; no report was written: {error}") from error
        status = EXIT_CODES[report.verdict]
        if claim.stop_why:
            claim.release("stopped", claim.stop_why, Interrupted.exit_code)
            raise Interrupted(f"job {job.id} ended: {claim.stop_why}; the measurements are in {directory.path}")
        claim.release("failed" if job.failure() else "finished", job.failure(), status)
    return reports.of_report(report, directory.path / "index.html", status)


def _live_state(target: Lab, job: Job) -> LiveState:
    from testbed.lab.progress import LiveState

    recorder = target.recorder
    return LiveState(
        job.step,
        job.workload.steps,
        job.last.get("train_loss"),
        0.0 if recorder is None else recorder.tokens_per_s,
        {} if recorder is None else recorder.throughput_bps,
        scale=target.topology.scale,
    )


def detached(
    target: Lab,
    kind: str,
    arguments: dict[str, object],
    runs: Path | None,
    strict: bool,
    allow_uncertified: bool,
) -> Result:
    """Start a job in a process of its own; return how to follow and to stop it."""
    from testbed.host import lab_folder, lab_owner
    from testbed.lab import job_runner

    if runs is not None:
        arguments = {**arguments, "runs": str(runs.absolute())}
    begun = job_runner.start(
        lab_folder.folder(target.name), kind, arguments, strict=strict, allow_uncertified=allow_uncertified
    )
    on = lab_owner.flag(target.name)
    follow_ups = [invocation.command(name, *on, begun.job) for name in ("attach", "stop")]
    return Result(
        data=lambda: {"job": begun.job, "run": str(begun.run)},
        tables=[
            *(Note(note, "") for note in begun.notes),
            begun.job,
            Note(f"run directory: {begun.run}"),
            *(Note(f"  {line}", "cyan") for line in follow_ups),
        ],
    )


@verb.verb(verb.RUNS, "testbed jobs", "testbed jobs --json")
def jobs(lab: LabName = None, as_json: AsJson = False) -> Result:
    """List the jobs of a lab since it came up: the one that runs, and those that have ended.

    Columns: *kind*: train, launch, run or validate; *what*: what is trained, or the command; *since* when; the *step*
    that every rank has completed; *state*: running, stopping, finished, failed, stopped, or lost, where the process
    that ran the job ended before it and the keeper ended its ranks; and the *run directory*. JSON also has tokens per
    second, train_loss, exit status and the reason of an end.
    """
    target = verb.attach(lab)
    statuses = target.jobs()
    start = invocation.command("train", "-l", target.name, "--detach")
    none = Note(f"no job has run in lab {target.name} yet; start one with: {start}", "")
    return Result(data=lambda: tables.plain(statuses), tables=[lab_tables.jobs(statuses) if statuses else none])


@verb.verb(verb.RUNS, "testbed stop j1", "testbed stop -l metro-40km j2")
def stop(job: JobArgument, lab: LabName = None, as_json: AsJson = False) -> Result:
    """End a job of any process or user; return when it has ended.

    Ranks end after their current step, programs get signals, and the report of what was measured is written. A job
    that has not ended after 25 s is ended by force. Exit status 0, also for a job that had ended before.
    """
    target = verb.attach_to_change(lab)
    stopped = attached(target, job)
    had_ended = stopped.over()
    if not had_ended:
        stopped.stop()
    now = stopped.status
    state = lab_tables.job_state(now)
    return Result(
        data=lambda: tables.plain(now),
        tables=[f"{job} had ended: {state.partition(': ')[2]}" if had_ended else state, *_run_directory(now)],
    )


def _run_directory(status: JobStatus) -> list[Note]:
    return [Note(f"run directory: {status.run}")] if status.run else []


@verb.verb(verb.RUNS, "testbed attach j1")
def attach(job: JobArgument, lab: LabName = None) -> int:
    """Follow a job until it ends; the exit status is the job's.

    Shows the output of a program, from its last 10 lines on; of a job of the agents its progress. Ctrl-C detaches
    and does not stop the job: exit status 130. A job that was stopped has 130 too, one that has ended before its own.
    """
    from testbed.host import lab_owner

    target = verb.attach(lab)
    followed = attached(target, job)
    now = followed.status
    try:
        if now.kind == "launch":
            _show_output(followed)
        else:
            _show_progress(followed)
        status = followed.exit_status()
    except KeyboardInterrupt:
        if not followed.over():
            stopping = invocation.command("stop", *lab_owner.flag(target.name), job)
            console.say(f"detached; job {job} continues. Stop it with: {stopping}")
        raise
    now = followed.status
    for note in (Note(lab_tables.job_state(now), ""), *_run_directory(now)):
        console.show(note)
    return status


def attached(target: Lab, job: str) -> AttachedJob:
    """Return a job of a lab, whichever process runs it. Raises UnknownName."""
    from testbed.host import lab_folder
    from testbed.lab.jobs.attached_job import AttachedJob

    return AttachedJob(lab_folder.folder(target.name), job)


def _show_output(job: AttachedJob) -> None:
    from collections import deque

    from testbed.lab.job_output import JobOutput

    if (run := job.run) is None:
        return
    output = JobOutput(run)
    for line in deque(output.read(), SHOWN_LINES):
        console.show_line(line)
    over = False
    while not over:
        over = job.over()  # before the last look, so that no line is missed
        for line in output.read(torn=over):
            console.show_line(line)
        if not over:
            time.sleep(TICK_S)


def _show_progress(job: AttachedJob) -> None:
    from testbed.lab.progress import LiveState

    with console.progress() as progress:
        now = job.status
        progress.phase(now.kind, f"job {now.id}: {now.what}")
        while not now.ended:
            progress.tick(LiveState(now.step or 0, now.steps or 0, now.train_loss, now.tokens_per_s or 0.0))
            time.sleep(TICK_S)
            now = job.status
        progress.ended({"finished": "done", "stopped": "interrupted"}.get(now.state, "failed"))  # type: ignore[arg-type]
