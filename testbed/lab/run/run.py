"""Run an experiment from end to end.

1. Read the experiment. For a bare topology this is the shipped ``first-cut``, or ``only-fiber`` if no path bypasses its
   first link. Every mistake in files, and a run directory that cannot be written, is found now, before anything is
   built.
2. Bring the lab up and measure every fiber. A lab outside tolerance is refused, or marked on every page.
3. Start the job, of the lab's agents or a user's program, and the recorder: metrics every second, events at once.
4. Follow the job (``run/run_loop.py``): check the steady state, and schedule faults in the keeper
   (``run/fault_player.py``), which also ends them. If the steady state does not hold beforehand, no fault is injected.
5. Heal the remaining faults, end the ranks that still run, judge the expectations and write the report.
6. Take the lab down, whatever happened: Ctrl-C at any time leads here too, and keeps what was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

from testbed.core.certification import admission
from testbed.core.experiment import draw
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.experiment.steady import Monitor
from testbed.core.physics import full_scale, validity
from testbed.core.report import answers
from testbed.core.report.document import Report
from testbed.core.report.measured import judged
from testbed.core.topology.survey import validity_of
from testbed.core.units import format_number
from testbed.core.workload.workload import Workload
from testbed.errors import Interrupted, LabError, TestbedError
from testbed.host import fork_server as agent_host
from testbed.host import lab_folder
from testbed.host.files import runs_folder, store
from testbed.host.files.store import RunDirectory
from testbed.host.linux import invocation
from testbed.keeper import client
from testbed.lab import deploy, program_rights
from testbed.lab.interruption import defer_interrupts
from testbed.lab.jobs import run_metadata
from testbed.lab.jobs.job_run import JobRun
from testbed.lab.jobs.running_job import BY_USER
from testbed.lab.lab import Lab
from testbed.lab.own_lab import LabOptions, own_lab
from testbed.lab.progress import Progress, Silent, Unbreakable
from testbed.lab.run.fault_player import FaultPlayer
from testbed.lab.run.live_metrics import LiveMetrics
from testbed.lab.run.predicted_before import say_prediction
from testbed.lab.run.prepared_run import JobOptions, Prepared, has_bypass, prepare
from testbed.lab.run.run_loop import Follower, teller

__all__ = ["RunOptions", "RunOutcome", "job_access", "run", "run_in", "split_options"]


@dataclass(frozen=True)
class RunOutcome:
    """``exit_code``: 0 all expectations hold, 1 measured and one does not, 3 inconclusive, 130 interrupted."""

    report: Report
    directory: Path
    exit_code: int


class RunOptions(LabOptions, JobOptions, total=False):
    """What is given beside the file of a run."""


def split_options(options: RunOptions) -> tuple[JobOptions, LabOptions]:
    """Return the options of the job, and all others."""
    job, lab = dict[str, object](), dict[str, object]()
    for key, value in options.items():
        (job if key in JobOptions.__annotations__ else lab)[key] = value
    return cast("JobOptions", job), cast("LabOptions", lab)


def run(
    what: str,
    *,
    runs: Path | None = None,
    wait: bool = False,
    progress: Progress | None = None,
    **options: Unpack[RunOptions],
) -> RunOutcome:
    """Run a topology or an experiment from end to end; see the module.

    Args:
        what: a topology or an experiment, by path or name.
        runs: folder of the run directory.
        wait: until no other measurement holds this host; otherwise HostBusy is raised.
        progress: receives progress.
        options: ``set`` overrides values of the topology. ``steps``, ``seed``, ``data``, ``strategy``, ``compute``,
            ``model`` and ``noise`` are as of :meth:`testbed.lab.lab.Lab.train`, in place of what the experiment says.
            ``name``, ``driver``, ``emulator``, ``strict`` and ``allow_uncertified`` are as of :func:`testbed.up`.

    Raises what :func:`testbed.lab.deploy.up` raises, before there is anything to report; later failures are part of the
    outcome. Raises Interrupted after every change was undone and the report was written.
    """
    progress = Unbreakable(progress or Silent())
    job_options, lab_options = split_options(options)
    prepared = prepare(what, job_options)
    topology, planned, workload = prepared.topology, prepared.planned, prepared.workload
    lab_options["strict"] = lab_options.get("strict", False) or prepared.experiment.strict
    admission.refuse_both(lab_options["strict"], lab_options.get("allow_uncertified", False))
    agents = workload.agents is not None
    if agents and (why := agent_host.missing()):
        raise LabError(f"a run needs training agents: {why}")
    root = runs_folder.ready(runs)
    first = topology.links[0].name
    if any(fault.inject == "cut" and fault.target == first for fault in planned) and not has_bypass(topology):
        progress.note(f"no path bypasses {first}: the job stalls while it is cut")
    scale_note = full_scale.of_program(topology.scale)
    of_scale = [scale_note] if scale_note else []
    valid = validity.summary(validity_of(topology), _show(prepared, options.get("set"))) if agents else of_scale
    for line in (*_random_faults(prepared), *valid, *prepared.notes):
        progress.note(line)
    access = job_access(workload, root)
    with own_lab(f"run {what}", topology, progress, access, agents=agents, wait=wait, **lab_options) as lab:
        run_directory = lab.open_run(root)
        progress.note(runs_folder.note(run_directory.path, runs))
        return run_in(lab, prepared.experiment.name, prepared, run_directory, progress)


def run_in(lab: Lab, what: str, prepared: Prepared, run_directory: RunDirectory, progress: Progress) -> RunOutcome:
    """Run a job in a running lab, which the lab's list of jobs has as ``what``."""
    with lab.claimed("run", what) as claim:
        outcome = train_in(lab, prepared, run_directory, progress)
        claim.release("failed" if outcome.exit_code else "finished", "", outcome.exit_code)
    return outcome


def job_access(workload: Workload, root: Path) -> deploy.Access:
    """Return what the programs of a job read and write; ``root``: the folder of its run directory."""
    if (program := workload.program) is not None:
        path = program.environment.get("PATH")
        return deploy.Access(root, program=program.command, working=Path(program.program_folder), search=path)
    assert workload.agents is not None
    return deploy.Access(root, program_rights.agent_files(workload.agents))


def _show(prepared: Prepared, overrides: Mapping[str, object] | None) -> str:
    """Return the command that shows the run's topology."""
    experiment = prepared.experiment
    assigned = {**experiment.set, **(overrides or {})}
    set_options = [word for key, value in assigned.items() for word in ("--set", f"{key}={value}")]
    return invocation.command("show", experiment.topology or prepared.topology.name, *set_options)


def _random_faults(prepared: Prepared) -> list[str]:
    """Describe the randomly drawn faults in one line, if there are any."""
    outages, compression = prepared.experiment.outages, prepared.experiment.compression
    if outages is None:
        return []
    mean = draw.expected(outages, prepared.topology, compression)
    count = len(prepared.planned) - len(prepared.experiment.schedule)
    return [f"{count} random faults drawn ({format_number(mean, 2)} expected for this fiber length and time)"]


def train_in(lab: Lab, prepared: Prepared, run_directory: RunDirectory, progress: Progress) -> RunOutcome:
    """Do steps 3 to 5 of the module's list, in a running lab."""
    experiment, topology = prepared.experiment, prepared.topology
    run_metadata.amend(
        run_directory,
        experiment={"name": experiment.name, "teaches": experiment.teaches, "text": experiment.text},
        workload=prepared.workload.to_dict(),
    )
    run_directory.write_text("experiment.yaml", prepared.again)
    this_run = lab.current_run
    assert this_run is not None
    interrupted: BaseException | None = None
    monitor = Monitor(experiment.hypothesis, teller(run_directory, progress))
    live: LiveMetrics | None = None
    try:
        progress.phase(*prepared.workload.phase(len(topology.node_names)))
        job = lab.start(prepared.workload, own_run=False, read_only=True, note=progress.note)
        assert lab.recorder is not None
        folder = lab_folder.folder(lab.name)
        live = LiveMetrics(topology, job, lab.recorder)
        if (agents := prepared.workload.agents) is not None:
            say_prediction(agents, topology, lab, job, run_directory, progress)
        with FaultPlayer(folder, prepared.planned) as player:
            Follower(job, live, lab.recorder, player, monitor, progress).follow()
    except (KeyboardInterrupt, Interrupted) as error:
        this_run.interrupt(BY_USER)
        interrupted = error
        progress.ended("interrupted")
    except TestbedError as error:
        this_run.fail(error)
        progress.ended("failed")
        progress.note(str(error))
    if why := lab.stop_requested:  # by another process: the job's failure is its effect
        this_run.interrupt(why)
        interrupted = interrupted or Interrupted(why)
    with defer_interrupts():
        report = _conclude(lab, this_run, prepared, monitor, live, progress)
    if interrupted is not None:
        raise Interrupted(f"interrupted; the measurements are in {run_directory.path}") from interrupted
    return RunOutcome(report, run_directory.path, answers.EXIT_CODES[report.verdict])


def _conclude(
    lab: Lab, this_run: JobRun, prepared: Prepared, monitor: Monitor, live: LiveMetrics | None, progress: Progress
) -> Report:
    """Heal, end the ranks, stop recording, judge, write the report. Unavailable data is left out, never made up.

    The order matters: a paused rank ends only after the fault is healed, and what ranks record after the report was
    made would be in the next report of the same directory.
    """
    run_directory = this_run.directory
    progress.phase("report", str(run_directory.path))
    try:
        client.keeper(lab_folder.folder(lab.name)).hello()
    except TestbedError as error:
        # This may be noticed after its effects: without its keeper no job can continue.
        this_run.fail(error)
    try:
        lab.heal()
    except TestbedError as error:  # a fault that cannot be undone fails the run
        this_run.fail(error)
    if this_run.job is not None:
        this_run.job.close(interrupted=this_run.ending.status == "interrupted")
    this_run.stop_recording()
    if live is not None:
        live.hear()
    began = live.began if live is not None else {}
    # Expectations go into the same write as the end: if the disk is full from here on they are unknown, not missing.
    this_run.record_end(
        hypothesis=[verdict.to_dict() for verdict in monitor.verdicts()],
        schedule=[{**_line(planned), "began": began.get(number, 0)} for number, planned in enumerate(prepared.planned)],
        expectations=[
            {"text": expected.text, "holds": None, "measured": None} for expected in prepared.experiment.expectations
        ],
    )
    judgements = judged(prepared.experiment.expectations, store.build_report(run_directory))
    run_metadata.amend(run_directory, expectations=[dataclasses.asdict(judgement) for judgement in judgements])
    return store.write_report(run_directory)


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
