"""Run an experiment from end to end.

1. Read the experiment. For a bare topology this is the shipped ``first-cut``, or ``only-fiber`` if no path bypasses its
   first link. Every mistake in files, and a run directory that cannot be written, is found now, before anything is
   built.
2. Bring the lab up and measure every fiber. A lab outside tolerance is refused, or marked on every page.
3. Start the job, of the lab's agents or a user's program, and the recorder: metrics every second, events at once.
4. Follow the job (``run/loop.py``): check the steady state, and schedule faults in the keeper
   (``run/fault_player.py``), which also ends them. If the steady state does not hold beforehand, no fault is injected.
5. When the job has ended, heal the remaining faults, judge the expectations and write the report.
6. Take the lab down, whatever happened: Ctrl-C at any time leads here too, and keeps what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from testbed.core.analysis.calibrated_step import StepPrediction
from testbed.core.analysis.predicted_run import expected_step
from testbed.core.analysis.volleys import why_not
from testbed.core.experiment import applicable, draw, fault_schedule, replay
from testbed.core.experiment.experiment_schema import Experiment
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.experiment.steady import Monitor
from testbed.core.physics import full_scale, validity
from testbed.core.report import answers
from testbed.core.report.document import Report
from testbed.core.report.measured import judged
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import validity_of
from testbed.core.units import format_duration, format_number
from testbed.core.workload import workload_layout, workload_words
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload, Workload
from testbed.errors import FileMistakes, Interrupted, JobFailed, LabError, StorageError, TestbedError, UserError
from testbed.host import fork_server as agent_host
from testbed.host import lab_folder
from testbed.host.files import catalog, runs_folder, store
from testbed.host.files.store import RunDirectory
from testbed.host.linux import invocation
from testbed.keeper import client, protocol
from testbed.lab import deploy, host_slot
from testbed.lab.interruption import defer_interrupts, interruptible
from testbed.lab.jobs import run_metadata
from testbed.lab.jobs.declared_notes import declared_notes
from testbed.lab.jobs.job import ABOUT_S
from testbed.lab.jobs.placement_notes import placement_notes
from testbed.lab.jobs.running_job import RunningJob
from testbed.lab.lab import Lab
from testbed.lab.progress import Progress, Silent, Unbreakable
from testbed.lab.run.fault_player import FaultPlayer
from testbed.lab.run.live_metrics import LiveMetrics
from testbed.lab.run.loop import Follower, teller

_POLL_S: Final = 0.1
"""Between two looks whether the ranks have timed their operations, which they do on the same cores."""
_SAY_BOUND_S: Final = 60.0
"""For so long the prediction is waited for; then the job is followed without it."""

FIRST_CUT, ONLY_FIBER = "first-cut", "only-fiber"

STALL_S: Final = 120.0
"""Default of a command's ``stall``, beyond the longest fault: so long may it report no step."""


@dataclass(frozen=True)
class RunOutcome:
    """``exit_code``: 0 all expectations hold, 1 measured and one does not, 3 inconclusive, 130 interrupted."""

    report: Report
    directory: Path
    exit_code: int


def run(
    what: str,
    *,
    set: Mapping[str, object] | None = None,
    name: str | None = None,
    runs: Path | None = None,
    steps: int | None = None,
    seed: int | None = None,
    data: Path | None = None,
    strategy: str | None = None,
    compute: object = None,
    model: object = None,
    noise: object = None,
    allow_uncertified: bool = False,
    driver: str = "auto",
    emulator: str = "auto",
    wait: bool = False,
    progress: Progress | None = None,
) -> RunOutcome:
    """Run a topology or an experiment from end to end; see the module.

    ``strategy``, ``compute``, ``model`` and ``noise`` are as of :meth:`testbed.lab.lab.Lab.train`, in place of what the
    experiment says.

    ``wait``: until no other measurement holds this host; otherwise HostBusy is raised.

    Raises what :func:`testbed.lab.deploy.up` raises, before there is anything to report; later failures are part of the
    outcome. Raises Interrupted after every change was undone and the report was written.
    """
    progress = Unbreakable(progress or Silent())
    said = {"strategy": strategy, "compute": compute, "model": model, "noise": noise}
    prepared = prepare(what, set, steps, seed, data, {key: it for key, it in said.items() if it is not None})
    topology, planned, workload = prepared.topology, prepared.planned, prepared.workload
    agents = isinstance(workload, AgentWorkload)
    if agents and (why := agent_host.missing()):
        raise LabError(f"a run needs training agents: {why}")
    root = runs_folder.ready(runs)
    first = topology.links[0].name
    if any(it.inject == "cut" and it.target == first for it in planned) and not _has_bypass(topology):
        progress.note(f"no path bypasses {first}: the job stalls while it is cut")
    of_scale = [it] if (it := full_scale.of_program(topology.scale)) else []
    valid = validity.summary(validity_of(topology), _show(prepared, set)) if agents else of_scale
    for line in (*_random_faults(prepared), *valid, *prepared.notes):
        progress.note(line)
    slot = host_slot.held(f"run {what}", name or topology.name, progress, wait=wait)
    with interruptible(), slot:
        lab = deploy.up(
            topology,
            name=name,
            agents=agents,
            driver=driver,
            emulator=emulator,
            allow_uncertified=allow_uncertified,
            progress=progress,
            job=job_files(workload, root),
        )
        try:
            run_directory = lab.open_run(root)
            progress.note(runs_folder.note(run_directory.path, runs))
            with lab.claimed("run", prepared.experiment.name) as claim:
                outcome = train_in(lab, prepared, run_directory, progress)
                claim.release("failed" if outcome.exit_code else "finished", "", outcome.exit_code)
            return outcome
        finally:
            with defer_interrupts():
                progress.phase("down", f"lab {lab.name}")
                take_down(lab)
                progress.ended("done")


def job_files(workload: Workload, root: Path) -> deploy.Job:
    if isinstance(workload, AgentWorkload):
        return deploy.Job(root, (Path(workload.data),) if workload.data else ())
    assert workload.folder is not None
    path = workload.environment.get("PATH")
    return deploy.Job(root, program=workload.command, working=Path(workload.folder), search=path)


def _show(prepared: Prepared, overrides: Mapping[str, object] | None) -> str:
    """Return the command that shows the run's topology."""
    experiment = prepared.experiment
    assigned = {**experiment.set, **(overrides or {})}
    words = [word for key, value in assigned.items() for word in ("--set", f"{key}={value}")]
    return invocation.command("show", experiment.topology or prepared.topology.name, *words)


def take_down(lab: Lab) -> None:
    """Take the lab down. A failed undo fails the run whatever its verdict was, and the report is rewritten."""
    try:
        lab.down()
    except TestbedError as error:
        if lab.run_directory is not None:
            with contextlib.suppress(StorageError):  # the lab's failure is the one to report
                run_metadata.fail_ended(lab.run_directory, str(error))
                store.write_report(lab.run_directory)
        raise


@dataclass(frozen=True)
class Prepared:
    """Everything known of a run before anything is built. ``workload`` is the experiment's, with what the caller
    changed and absolute paths; ``again`` is an experiment file that repeats the run; ``notes`` say what is worth
    knowing of its compute before it begins."""

    experiment: Experiment
    topology: Topology
    planned: tuple[Planned, ...]
    workload: Workload
    again: str
    notes: tuple[str, ...] = ()


def prepare(
    what: str,
    overrides: Mapping[str, object] | None,
    steps: int | None,
    seed: int | None,
    data: Path | None,
    said: Mapping[str, Any],
    found: tuple[Experiment, Topology] | None = None,
    faults: tuple[Planned, ...] | None = None,
) -> Prepared:
    """Return a run of ``what``, with everything that is wrong with it found. Raises FileMistakes, UserError.

    ``said``: what of the agents' workload is given beside the experiment. ``found``: experiment and topology, instead
    of those that ``what`` names. ``faults``: those of another run of the same, instead of drawing them.
    """
    try:
        experiment, topology = found or _read(what, overrides)
        if isinstance(experiment.workload, ProgramWorkload):
            _refuse_options(experiment, steps, seed, data, said)
        planned = fault_schedule.plan(experiment, topology, steps, seed) if faults is None else faults
    except FileMistakes:
        # That was the first step which failed: say what is wrong everywhere.
        if catalog.kind_of(what) == "experiment":
            raise FileMistakes(catalog.examine_experiment(what, overrides, steps, seed)) from None
        raise
    workload: Workload
    notes: tuple[str, ...] = ()
    if isinstance(experiment.workload, ProgramWorkload):
        workload = _program(experiment.workload, experiment.source, planned)
    else:
        workload = _agents(experiment.workload, steps, seed, data, said)
        notes = _of_compute(said, experiment, workload, topology)
        experiment, unjudged = _judgeable(experiment, workload)
        notes += unjudged
    again = replay.to_yaml(
        experiment,
        planned,
        topology=_found_anywhere(experiment.topology or what),
        overrides={**experiment.set, **(overrides or {})},
        workload=workload,
    )
    return Prepared(experiment, topology, planned, workload, again, notes)


def _judgeable(experiment: Experiment, workload: AgentWorkload) -> tuple[Experiment, tuple[str, ...]]:
    """Return the experiment without expectations that the caller's declared compute has made meaningless, and notes.

    Raises UserError for a fault or a steady state that needs what is not known.
    """
    for condition in (*(it.trigger.when for it in experiment.schedule), *(it.check for it in experiment.hypothesis)):
        if condition is not None and (refused := applicable.metric_refused(condition.metric, workload)):
            raise UserError(f"{experiment.source}: {condition.text}: {'; '.join(refused)}")
    lost = {it.text: why for it in experiment.expectations if (why := applicable.metric_refused(it.metric, workload))}
    kept = tuple(it for it in experiment.expectations if it.text not in lost)
    notes = tuple(f"{text} is not judged: {why[0]}" for text, why in lost.items())
    return dataclasses.replace(experiment, expectations=kept), notes


def _of_compute(
    said: Mapping[str, Any], experiment: Experiment, workload: AgentWorkload, topology: Topology
) -> tuple[str, ...]:
    """Return warnings on the workload and what its declared compute means. Raises FileMistakes."""
    place = ("--strategy", {}) if said else (experiment.source, experiment.workload_lines)
    found = workload_layout.findings(workload, topology, *place)
    if wrong := [it for it in found if not it.warning]:
        raise FileMistakes(wrong)
    return (*map(str, found), *declared_notes(workload, topology), *placement_notes(workload, topology))


def _agents(
    written: AgentWorkload, steps: int | None, seed: int | None, data: Path | None, said: Mapping[str, Any]
) -> AgentWorkload:
    if data is None and written.data is not None:
        data = Path(written.data)
    if data is not None:
        data = data.absolute()  # ranks run in another directory
        if not (data.is_file() or data.is_dir()):
            raise UserError(f"no such file or folder to train on: {data}")
    return dataclasses.replace(
        workload_words.changed(written, **said),
        steps=written.steps if steps is None else steps,
        seed=written.seed if seed is None else seed,
        data=None if data is None else str(data),
        calibrate=True,
    )


def _program(written: ProgramWorkload, source: str, planned: tuple[Planned, ...]) -> ProgramWorkload:
    """Return the command with its absolute folder, seen from the experiment's file, and its limits."""
    folder = (Path(source).absolute().parent / (written.folder or ".")).resolve()
    if not folder.is_dir():
        raise UserError(f"{source}: no such folder to run the command in: {folder}; correct folder: of the workload")
    stall_s = written.stall_s
    if stall_s is None and written.progress is not None and written.for_s is None:
        stall_s = STALL_S + max((it.lasts_s or 0.0 for it in planned), default=0.0)
    return dataclasses.replace(written, folder=str(folder), stall_s=stall_s)


def _refuse_options(
    experiment: Experiment, steps: int | None, seed: int | None, data: Path | None, said: Mapping[str, Any]
) -> None:
    """Raise UserError for options that say what the agents train: a program is told by its own arguments."""
    drawn = experiment.outages is not None and experiment.outages.seed is None
    given = {"steps": steps, "data": data, **said, **({} if drawn else {"seed": seed})}
    if names := [name for name, value in given.items() if value is not None]:
        options = " and ".join(f"--{name}" for name in names)
        raise UserError(
            f"{experiment.source} runs a command, which {options} cannot change; write the program's own options"
            " into command:"
        )


def _found_anywhere(name_or_path: str) -> str:
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    return str(Path(name_or_path).absolute()) if is_path else name_or_path


def _read(what: str, overrides: Mapping[str, object] | None) -> tuple[Experiment, Topology]:
    if catalog.kind_of(what) == "experiment":
        experiment = catalog.load_experiment(what)
        return experiment, catalog.load_topology_of(experiment, overrides)
    topology = catalog.load_topology(what, overrides)
    if not topology.links:
        raise UserError(f"{what} has no links to train across; bring it up with: {invocation.command('up', what)}")
    experiment = catalog.load_experiment(FIRST_CUT if _has_bypass(topology) else ONLY_FIBER)
    return dataclasses.replace(experiment, topology=what), topology


def _random_faults(prepared: Prepared) -> list[str]:
    """Describe the randomly drawn faults in one line, if there are any."""
    outages, compression = prepared.experiment.outages, prepared.experiment.compression
    if outages is None:
        return []
    mean = draw.expected(outages, prepared.topology, compression)
    count = len(prepared.planned) - len(prepared.experiment.schedule)
    return [f"{count} random faults drawn ({format_number(mean, 2)} expected for this fiber length and time)"]


def _has_bypass(topology: Topology) -> bool:
    """Whether the sites of the first link stay connected without it."""
    first, *others = topology.links
    reached, grown = {first.between[0]}, True
    while grown:
        more = {site for link in others if reached & {*link.between} for site in link.between}
        grown = not more <= reached
        reached |= more
    return first.between[1] in reached


def train_in(lab: Lab, prepared: Prepared, run_directory: RunDirectory, progress: Progress) -> RunOutcome:
    """Do steps 3 to 5 of the module's list, in a running lab."""
    experiment, topology = prepared.experiment, prepared.topology
    run_metadata.amend(
        run_directory,
        experiment={"name": experiment.name, "teaches": experiment.teaches, "text": experiment.text},
        workload=prepared.workload.to_dict(),
    )
    run_directory.write_text("experiment.yaml", prepared.again)
    how = run_metadata.Ending()
    interrupted: BaseException | None = None
    monitor = Monitor(experiment.hypothesis, teller(run_directory, progress))
    live: LiveMetrics | None = None
    job: RunningJob | None = None
    try:
        progress.phase(*_phase(prepared.workload, len(topology.node_names)))
        job = lab.start(prepared.workload, own_run=False, read_only=True, note=progress.note)
        assert lab.recorder is not None
        folder = lab_folder.folder(lab.name)
        live = LiveMetrics(topology, job, lab.recorder)
        _say_before(prepared, lab, job, run_directory, progress)
        with FaultPlayer(folder, prepared.planned) as player:
            Follower(job, live, lab.recorder, player, monitor, progress).follow()
    except (KeyboardInterrupt, Interrupted) as error:
        how, interrupted = run_metadata.Ending("interrupted", "interrupted by the user"), error
        progress.ended("interrupted")
    except TestbedError as error:
        # A failed job was measured and is bad; a failed lab or host tells nothing about the job.
        how.fail(str(error), tells_nothing=not isinstance(error, JobFailed))
        progress.ended("failed")
        progress.note(str(error))
    if why := lab.stop_requested:  # by another process: the job's failure is its effect
        how, interrupted = run_metadata.Ending("interrupted", why), interrupted or Interrupted(why)
    with defer_interrupts():
        report = _conclude(lab, prepared, job, monitor, live, run_directory, how, progress)
    if interrupted is not None:
        raise Interrupted(f"interrupted; the measurements are in {run_directory.path}") from interrupted
    return RunOutcome(report, run_directory.path, answers.EXIT_CODES[report.verdict])


def _phase(workload: Workload, nodes: int) -> tuple[str, str]:
    if isinstance(workload, AgentWorkload):
        by = "" if workload.strategy == AgentWorkload.strategy else f"{workload.strategy}, "
        return "train", f"{by}{workload.steps} steps on {nodes} ranks"
    bound = workload.for_s or workload.timeout_s
    until = "" if bound is None else f", {'for' if workload.for_s else 'at most'} {format_duration(bound)}"
    return "program", f"{shlex.join(workload.command)} on {nodes * workload.ranks_per_node} ranks{until}"


def _conclude(
    lab: Lab,
    prepared: Prepared,
    job: RunningJob | None,
    monitor: Monitor,
    live: LiveMetrics | None,
    run_directory: RunDirectory,
    how: run_metadata.Ending,
    progress: Progress,
) -> Report:
    """Heal, stop recording, judge, write the report. Unavailable data is left out, never made up."""
    progress.phase("report", str(run_directory.path))
    try:
        client.ask(lab_folder.folder(lab.name), protocol.Hello())
    except TestbedError as error:
        # This may be noticed after its effects: without its keeper no job can continue.
        how.fail(str(error), tells_nothing=True)
    try:
        lab.heal()
    except TestbedError as error:  # a fault that cannot be undone fails the run
        how.fail(str(error), tells_nothing=True)
    if job is not None:
        job.close(interrupted=how.status == "interrupted")
    if lab.recorder is not None:
        lab.recorder.stop()
        how.fail(lab.recorder.lab_failure, tells_nothing=True)
        lab.recorder = None
    if live is not None:
        live.hear()
    began = live.began if live is not None else {}
    # Expectations go into the same write as the end: if the disk is full from here on they are unknown, not missing.
    run_metadata.end(
        run_directory,
        how,
        hypothesis=[it.to_dict() for it in monitor.verdicts()],
        schedule=[{**_line(it), "began": began.get(number, 0)} for number, it in enumerate(prepared.planned)],
        expectations=[{"text": it.text, "holds": None, "measured": None} for it in prepared.experiment.expectations],
    )
    found = judged(prepared.experiment.expectations, store.build_report(run_directory))
    run_metadata.amend(run_directory, expectations=[dataclasses.asdict(it) for it in found])
    return store.write_report(run_directory)


def _say_before(prepared: Prepared, lab: Lab, job: RunningJob, run_directory: RunDirectory, progress: Progress) -> None:
    """Say what a step is predicted to take, once the ranks have timed their operations, before they train."""
    workload, topology = prepared.workload, prepared.topology
    if not isinstance(workload, AgentWorkload):
        return
    twin = workload_layout.twin_of(workload, topology)
    if why := why_not(twin):
        progress.note(f"no prediction for {workload.strategy}: {why}")
        return
    ranks, until = len(topology.node_names), time.monotonic() + _SAY_BOUND_S
    waits = True
    while waits:
        # Asked before the records are read: of a short first step, too, the prediction is said.
        waits = not (job.over() or job.step > 0 or _lab_failure(lab) or time.monotonic() > until)
        logs = run_directory.rank_logs()
        if sum(bool(log.calibrations) for log in logs) == ranks:
            expected = expected_step(twin, lab.certificate, logs, workload.step_s or ABOUT_S, topology)
            if expected is not None:
                progress.note(_said_before(expected, workload.strategy))
            return
        if waits:
            time.sleep(_POLL_S)


def _lab_failure(lab: Lab) -> str:
    return "" if lab.recorder is None else lab.recorder.lab_failure


def _said_before(expected: StepPrediction, strategy: str) -> str:
    """Return the prediction of a job in a line, before its first step."""
    parts = expected.exposed
    return (
        f"predicted for {strategy}: a step of {format_duration(expected.step_s, 3)}, compute utilization"
        f" {expected.utilization:.1%}, {expected.bytes_per_direction / 1e3:.4g} kB per step and direction; exposed"
        f" {format_duration(parts.total_s, 3)} ({format_duration(parts.propagation_s, 3)} propagation,"
        f" {format_duration(parts.serialization_s, 3)} serialization, {format_duration(parts.software_s, 3)} software"
        f" and site, {format_duration(parts.waiting_s, 3)} waiting), from its operations timed alone"
    )


def _line(planned: Planned) -> dict[str, Any]:
    """Return a fault of the schedule in the format of run.json."""
    return {
        "inject": planned.inject,
        "target": planned.target,
        "parameters": dict(planned.parameters),
        "lasts_s": planned.lasts_s,
        "at_s": planned.at_s,
        "after_step": planned.after_step,
        "when": None if planned.when is None else planned.when.text,
        "repeat": planned.repeat,
        "every_s": planned.every_s,
    }


__all__ = ["Prepared", "RunOutcome", "job_files", "prepare", "run", "take_down", "train_in"]
