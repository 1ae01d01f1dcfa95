"""Run an experiment from end to end.

1. Read the experiment. For a bare topology this is the shipped ``first-cut``, or ``only-fiber`` if no path bypasses its
   first link. Every mistake in files, and a run directory that cannot be written, is found now, before anything is
   built.
2. Bring the lab up and measure every fiber. A lab outside tolerance is refused, or marked on every page.
3. Start the training job on the lab's agents, and the recorder: metrics every second, events at once.
4. Follow the job (``run/loop.py``): check the steady state, and schedule faults in the keeper
   (``run/fault_player.py``), which also ends them. If the steady state does not hold beforehand, no fault is injected.
5. When the job has ended, heal the remaining faults, judge the expectations and write the report.
6. Take the lab down, whatever happened: Ctrl-C at any time leads here too, and keeps what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.core.experiment import draw, fault_schedule, replay
from testbed.core.experiment.experiment_schema import Experiment
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.experiment.steady import Monitor
from testbed.core.physics import validity
from testbed.core.report import answers
from testbed.core.report.document import Report
from testbed.core.report.measured import judged
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import validity_of
from testbed.core.units import format_number
from testbed.errors import FileMistakes, Interrupted, JobFailed, LabError, StorageError, TestbedError, UserError
from testbed.host import fork_server as agent_host
from testbed.host import lab_folder
from testbed.host.files import catalog, runs_folder, store
from testbed.host.files.store import RunDirectory
from testbed.host.linux import invocation
from testbed.keeper import client, protocol
from testbed.lab import deploy
from testbed.lab.interruption import defer_interrupts, interruptible
from testbed.lab.jobs import run_metadata
from testbed.lab.lab import Lab
from testbed.lab.progress import Progress, Silent, Unbreakable
from testbed.lab.run.fault_player import FaultPlayer
from testbed.lab.run.live_metrics import LiveMetrics
from testbed.lab.run.loop import Follower, teller

FIRST_CUT, ONLY_FIBER = "first-cut", "only-fiber"


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
    allow_uncertified: bool = False,
    driver: str = "auto",
    emulator: str = "auto",
    progress: Progress | None = None,
) -> RunOutcome:
    """Run a topology or an experiment from end to end; see the module.

    Raises what :func:`testbed.lab.deploy.up` raises, before there is anything to report; later failures are part of the
    outcome. Raises Interrupted after every change was undone and the report was written.
    """
    progress = Unbreakable(progress or Silent())
    prepared = _prepare(what, set, steps, seed, data)
    topology, planned = prepared.topology, prepared.planned
    if why := agent_host.missing():
        raise LabError(f"a run needs training agents: {why}")
    root = runs_folder.ready(runs)
    first = topology.links[0].name
    if any(it.inject == "cut" and it.target == first for it in planned) and not _has_bypass(topology):
        progress.note(f"no path bypasses {first}: the job stalls while it is cut")
    for line in (*_random_faults(prepared), *validity.summary(validity_of(topology), _show(prepared, set))):
        progress.note(line)
    with interruptible():
        lab = deploy.up(
            topology,
            name=name,
            driver=driver,
            emulator=emulator,
            allow_uncertified=allow_uncertified,
            progress=progress,
            job=deploy.Job(root, tuple(it for it in (prepared.workload.get("data"),) if it)),
        )
        try:
            run_directory = lab.open_run(root)
            progress.note(runs_folder.note(run_directory.path, runs))
            return _on(lab, prepared, run_directory, progress)
        finally:
            with defer_interrupts():
                progress.phase("down", f"lab {lab.name}")
                _down(lab)
                progress.ended("done")


def _show(prepared: _Prepared, overrides: Mapping[str, object] | None) -> str:
    """Return the command that shows the run's topology."""
    experiment = prepared.experiment
    assigned = {**experiment.set, **(overrides or {})}
    words = [word for key, value in assigned.items() for word in ("--set", f"{key}={value}")]
    return invocation.command("show", experiment.topology or prepared.topology.name, *words)


def _down(lab: Lab) -> None:
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
class _Prepared:
    """Everything known of a run before anything is built. ``workload`` holds arguments of ``lab.jobs.job.Workload``
    beyond steps; ``again`` is an experiment file that repeats the run."""

    experiment: Experiment
    topology: Topology
    planned: tuple[Planned, ...]
    steps: int
    seed: int
    workload: Mapping[str, Any]
    again: str


def _prepare(
    what: str, overrides: Mapping[str, object] | None, steps: int | None, seed: int | None, data: Path | None
) -> _Prepared:
    try:
        experiment, topology = _read(what, overrides)
        total = experiment.steps if steps is None else steps
        if total < 1:
            raise UserError(f"steps must be at least 1, got {total}")
        chosen = experiment.seed if seed is None else seed
        planned = fault_schedule.plan(experiment, topology, total, chosen)
    except FileMistakes:
        # That was the first step which failed: say what is wrong everywhere.
        if catalog.kind_of(what) == "experiment":
            raise FileMistakes(catalog.examine_experiment(what, overrides, steps, seed)) from None
        raise
    written = experiment.workload
    if data is None and written.data is not None:
        data = Path(written.data)
    if data is not None:
        data = data.absolute()  # ranks run in another directory
        if not (data.is_file() or data.is_dir()):
            raise UserError(f"no such file or folder to train on: {data}")
    workload: dict[str, Any] = {
        "seed": chosen,
        "data": data,
        "checkpoint_every": written.checkpoint,
        "restarts": written.restarts,
        "timeout_s": written.timeout_s,
    }
    again = replay.to_yaml(
        experiment,
        planned,
        topology=_found_anywhere(experiment.topology or what),
        overrides={**experiment.set, **(overrides or {})},
        steps=total,
        seed=chosen,
        data=None if data is None else str(data),
    )
    given = {key: value for key, value in workload.items() if value is not None}
    return _Prepared(experiment, topology, planned, total, chosen, given, again)


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


def _random_faults(prepared: _Prepared) -> list[str]:
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


def _on(lab: Lab, prepared: _Prepared, run_directory: RunDirectory, progress: Progress) -> RunOutcome:
    """Do steps 3 to 5 of the module's list, in a running lab."""
    experiment, topology = prepared.experiment, prepared.topology
    written = {key: value if isinstance(value, int | float) else str(value) for key, value in prepared.workload.items()}
    run_metadata.amend(
        run_directory,
        experiment={"name": experiment.name, "teaches": experiment.teaches, "text": experiment.text},
        workload={"steps": prepared.steps, **written},
    )
    run_directory.write_text("experiment.yaml", prepared.again)
    how = run_metadata.Ending()
    interrupted: BaseException | None = None
    monitor = Monitor(experiment.hypothesis, teller(run_directory, progress))
    live: LiveMetrics | None = None
    try:
        progress.phase("train", f"{prepared.steps} steps on {len(topology.node_names)} ranks")
        job = lab.train(prepared.steps, **prepared.workload)
        assert lab.recorder is not None
        folder = lab_folder.folder(lab.name)
        live = LiveMetrics(topology, job, lab.recorder)
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
    with defer_interrupts():
        report = _conclude(lab, prepared, monitor, live, run_directory, how, progress)
    if interrupted is not None:
        raise Interrupted(f"interrupted; the measurements are in {run_directory.path}") from interrupted
    return RunOutcome(report, run_directory.path, answers.EXIT_CODES[report.verdict])


def _conclude(
    lab: Lab,
    prepared: _Prepared,
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


__all__ = ["RunOutcome", "run"]
