"""The main job. Its whole story:

1. Read what is to be run: an experiment, or a topology: then the shipped experiment ``first-cut`` happens on it, or
   ``only-fiber`` where there is no way around its first link. Every mistake is found now, and a run directory that
   could not be written is found now, before anything is built.
2. Bring the lab up; every fiber is measured. A lab outside tolerance is refused, or marked on every page.
3. Begin the training job on the lab's agents, and begin to observe: each second metrics, at once events.
4. Follow it (``jobs/follow.py``): watch its steady state, and have the keeper inject what is due
   (``jobs/playing.py``). If what must hold before any fault does not, none is injected. The keeper ends timed ones.
5. When the job has ended, heal what still stands, look at what was expected, write the report.
6. Take the lab down. Always, whatever happened: Ctrl-C at any moment comes here too, and keeps what was measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.core.experiment import draw, expect, fault_schedule, replay
from testbed.core.experiment.experiment_schema import Experiment
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.experiment.steady import Monitor
from testbed.core.physics import validity
from testbed.core.report.document import Report
from testbed.core.report.measured import measured
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import validity_of
from testbed.errors import Interrupted, JobFailed, LabError, StorageError, TestbedError, UserError
from testbed.host import fork_server as agent_host
from testbed.host import lab_folder
from testbed.host.files import catalog, store
from testbed.host.files.store import RunDirectory
from testbed.keeper import client, protocol
from testbed.lab import deploy
from testbed.lab.interruption import defer_interrupts, interruptible
from testbed.lab.jobs import run_metadata
from testbed.lab.lab import Lab, runs_root
from testbed.lab.progress import Progress, Silent, Unbreakable
from testbed.lab.run.fault_player import FaultPlayer
from testbed.lab.run.live_metrics import LiveMetrics
from testbed.lab.run.loop import Follower, teller

FIRST_CUT, ONLY_FIBER = "first-cut", "only-fiber"
EXIT_CODES = {"pass": 0, "fail": 1, "unknown": 3}
"""By the verdict of the report: a page and a status that differ would both be worth nothing."""


@dataclass(frozen=True)
class RunOutcome:
    """``exit_code``: 0 everything asked was measured and is good, 1 it is not, 3 it cannot be told, 130 interrupted."""

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

    Raises what :func:`testbed.lab.deploy.up` raises, before there is anything to report; later troubles are in the
    outcome. Raises Interrupted after everything was undone and written.
    """
    progress = Unbreakable(progress or Silent())
    prepared = _prepare(what, set, steps, seed, data)
    topology, planned = prepared.topology, prepared.planned
    if why := agent_host.missing():
        raise LabError(f"a run trains, and there are no training agents: {why}")
    root = (runs or runs_root()).absolute()
    store.check_writable(root)
    first = topology.links[0].name
    if any(it.inject == "cut" and it.target == first for it in planned) and not _has_way_around(topology):
        progress.note(f"nothing leads around {first}: while it is cut the job stands still")
    for line in (*_of_chance(prepared), *validity.summary(validity_of(topology))):
        progress.note(line)
    with interruptible():
        lab = deploy.up(
            topology,
            name=name,
            driver=driver,
            emulator=emulator,
            allow_uncertified=allow_uncertified,
            progress=progress,
        )
        try:
            return _on(lab, prepared, root, progress)
        finally:
            with defer_interrupts():
                progress.phase("down", f"lab {lab.name}")
                _down(lab)


def _down(lab: Lab) -> None:
    """Take it down. What cannot be undone fails the run, whatever its report has said; it is written again."""
    try:
        lab.down()
    except TestbedError as error:
        if lab.run_directory is not None:
            with contextlib.suppress(StorageError):  # of the two troubles the lab's is the one to be told
                run_metadata.fail_ended(lab.run_directory, str(error))
                store.write_report(lab.run_directory)
        raise


@dataclass(frozen=True)
class _Prepared:
    """All that is known of a run before anything is built. ``workload``: what ``lab.jobs.job.Workload`` takes beyond
    steps; ``again``: an experiment file that does the same again."""

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
    experiment, topology = _read(what, overrides)
    total = experiment.steps if steps is None else steps
    if total < 1:
        raise UserError(f"a run has at least one step, not {total}")
    chosen = experiment.seed if seed is None else seed
    planned = fault_schedule.plan(experiment, topology, total, chosen)
    written = experiment.workload
    if data is None and written.data is not None:
        data = Path(written.data)
    if data is not None:
        data = data.absolute()  # ranks work elsewhere
        if not (data.is_file() or data.is_dir()):
            raise UserError(f"there is no file or folder {data} to train on")
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
        raise UserError(f"{what} has no links, so there is no fiber to train across; testbed up {what} brings it up")
    experiment = catalog.load_experiment(FIRST_CUT if _has_way_around(topology) else ONLY_FIBER)
    return dataclasses.replace(experiment, topology=what), topology


def _of_chance(prepared: _Prepared) -> list[str]:
    """What was drawn, in a line."""
    outages, compression = prepared.experiment.outages, prepared.experiment.compression
    if outages is None:
        return []
    mean = draw.expected(outages, prepared.topology, compression)
    count = len(prepared.planned) - len(prepared.experiment.schedule)
    return [f"{count} faults were drawn, where {mean:.2g} are expected in so much fiber and time"]


def _has_way_around(topology: Topology) -> bool:
    """Whether the sites of the first link stay connected without it."""
    first, *others = topology.links
    reached, grown = {first.between[0]}, True
    while grown:
        more = {site for link in others if reached & {*link.between} for site in link.between}
        grown = not more <= reached
        reached |= more
    return first.between[1] in reached


def _on(lab: Lab, prepared: _Prepared, root: Path, progress: Progress) -> RunOutcome:
    """Steps 3 to 5 of the story, on a lab that is up."""
    run_directory = lab.open_run(root)
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
        live = LiveMetrics(folder, topology, job, lab.recorder)
        with FaultPlayer(folder, prepared.planned) as player:
            Follower(job, live, lab.recorder, player, monitor, progress).follow()
    except (KeyboardInterrupt, Interrupted) as error:
        how, interrupted = run_metadata.Ending("interrupted", "interrupted by the user"), error
    except TestbedError as error:
        # A job that failed was measured, and is bad; a lab or a machine that failed tells nothing.
        how.fail(str(error), tells_nothing=not isinstance(error, JobFailed))
        progress.note(str(error))
    with defer_interrupts():
        report = _conclude(lab, prepared, monitor, live, run_directory, how, progress)
    if interrupted is not None:
        raise Interrupted(f"interrupted; what was measured is in {run_directory.path}") from interrupted
    return RunOutcome(report, run_directory.path, EXIT_CODES[report.verdict])


def _conclude(
    lab: Lab,
    prepared: _Prepared,
    monitor: Monitor,
    live: LiveMetrics | None,
    run_directory: RunDirectory,
    how: run_metadata.Ending,
    progress: Progress,
) -> Report:
    """Heal, stop observing, judge, write. What cannot be had any more is left out, never made up."""
    progress.phase("report", str(run_directory.path))
    try:
        client.ask(lab_folder.folder(lab.name), protocol.Hello())
    except TestbedError as error:
        # Whether that or its effects are heard of first is chance: without its keeper no job can go on.
        how.fail(str(error), tells_nothing=True)
    try:
        lab.heal()
    except TestbedError as error:  # a fault that cannot be undone is no end of a good run
        how.fail(str(error), tells_nothing=True)
    if lab.recorder is not None:
        lab.recorder.stop()
        how.fail(lab.recorder.lab_failure, tells_nothing=True)
        lab.recorder = None
    if live is not None:
        live.hear()
    began = live.began if live is not None else {}
    # What was asked goes into the same write as the end: should the disk be full from here on, it is unknown, not gone.
    run_metadata.end(
        run_directory,
        how,
        hypothesis=[it.to_dict() for it in monitor.verdicts()],
        schedule=[{**_line(it), "began": began.get(number, 0)} for number, it in enumerate(prepared.planned)],
        expectations=[{"text": it.text, "holds": None, "measured": None} for it in prepared.experiment.expectations],
    )
    found = measured(store.build_report(run_directory))
    run_metadata.amend(
        run_directory,
        expectations=[
            {"text": it.text, "holds": expect.judge(it, found), "measured": found.get(it.metric)}
            for it in prepared.experiment.expectations
        ],
    )
    return store.write_report(run_directory)


def _line(planned: Planned) -> dict[str, Any]:
    """A fault of the schedule, as run.json has it."""
    return {
        "inject": planned.inject,
        "target": planned.target,
        "at_s": planned.at_s,
        "after_step": planned.after_step,
        "when": None if planned.when is None else planned.when.text,
        "repeat": planned.repeat,
    }


__all__ = ["RunOutcome", "run"]
