"""The main job. Its whole story:

1. Read what is to be run: an experiment, or a topology: then the shipped experiment ``first-cut`` happens on it, or
   ``only-fiber`` where there is no way around its first link. Every mistake is found now, and a run directory that
   could not be written is found now, before anything is built.
2. Bring the lab up; every fiber is measured. A lab outside tolerance is refused, or marked on every page.
3. Begin the training job on the lab's agents, and begin to observe: each second metrics, at once events.
4. As steps are committed, inject the faults that are due. The keeper ends timed ones.
5. When the job has ended, heal what still stands, look at what was expected, write the report.
6. Take the lab down. Always, whatever happened: Ctrl-C at any moment comes here too, and keeps what was measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.core.experiment import expect, schedule
from testbed.core.experiment.schedule import Planned
from testbed.core.experiment.schema import Experiment
from testbed.core.physics import validity
from testbed.core.report.document import Report
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import validity_of
from testbed.errors import Interrupted, JobFailed, LabError, TestbedError, UserError
from testbed.host import agents as agent_host
from testbed.host import catalog, store
from testbed.host.store import RunDirectory
from testbed.lab import deploy, record
from testbed.lab.deploy import Progress, Silent, Unbreakable
from testbed.lab.interruption import interruptible, unhurried
from testbed.lab.job import Job
from testbed.lab.lab import Lab, runs_root
from testbed.lab.observe import LiveState, Observer

FIRST_CUT, ONLY_FIBER = "first-cut", "only-fiber"
STALL_BOUND_S = 120.0
"""A job that commits no step for so long, beyond the longest fault, will not end by itself."""
TICK_S = 0.25
POLL_S = 0.02


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
    experiment, topology = _read(what, set)
    total = experiment.steps if steps is None else steps
    if total < 1:
        raise UserError(f"a run has at least one step, not {total}")
    planned = schedule.plan(experiment, topology, total)
    if data is not None:
        data = data.absolute()  # ranks work elsewhere
        if not (data.is_file() or data.is_dir()):
            raise UserError(f"--data {data}: there is no such file or folder")
    if why := agent_host.missing():
        raise LabError(f"a run trains, and there are no training agents: {why}")
    root = (runs or runs_root()).absolute()
    store.check_writable(root)
    for fault in planned:
        if fault.inject == "cut" and fault.target == topology.links[0].name and not _has_way_around(topology):
            progress.note(f"nothing leads around {fault.target}: while it is cut the job stands still")
    for line in validity.summary(validity_of(topology)):
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
            return _on(lab, experiment, planned, total, seed, data, root, progress)
        finally:
            with unhurried():
                progress.phase("down", f"lab {lab.name}")
                lab.down()


def _read(what: str, overrides: Mapping[str, object] | None) -> tuple[Experiment, Topology]:
    if catalog.kind_of(what) == "experiment":
        experiment = catalog.load_experiment(what)
        if experiment.topology is None:
            raise UserError(f"{what} names no topology; write 'topology: metro-40km' into it")
        return experiment, catalog.load_topology(experiment.topology, overrides)
    topology = catalog.load_topology(what, overrides)
    if not topology.links:
        raise UserError(f"{what} has no links, so there is no fiber to train across; testbed up {what} brings it up")
    return catalog.load_experiment(FIRST_CUT if _has_way_around(topology) else ONLY_FIBER), topology


def _has_way_around(topology: Topology) -> bool:
    """Whether the sites of the first link stay connected without it."""
    first, *others = topology.links
    reached, grown = {first.between[0]}, True
    while grown:
        more = {site for link in others if reached & {*link.between} for site in link.between}
        grown = not more <= reached
        reached |= more
    return first.between[1] in reached


def _on(
    lab: Lab,
    experiment: Experiment,
    planned: tuple[Planned, ...],
    total: int,
    seed: int | None,
    data: Path | None,
    root: Path,
    progress: Progress,
) -> RunOutcome:
    """Steps 3 to 5 of the story, on a lab that is up."""
    run_directory = lab.open_run(root)
    settings: dict[str, Any] = {"seed": experiment.seed if seed is None else seed, "data": data}
    record.amend(
        run_directory,
        experiment={"name": experiment.name, "teaches": experiment.teaches, "text": experiment.text},
        workload={"steps": total, **{key: str(value) for key, value in settings.items() if value is not None}},
    )
    status, reason, untold = "finished", "", False
    interrupted: BaseException | None = None
    try:
        progress.phase("train", f"{total} steps on {len(lab.topology.node_names)} ranks")
        job = lab.train(total, **settings)
        assert lab.observer is not None
        _follow(lab, job, lab.observer, planned, total, progress)
    except (KeyboardInterrupt, Interrupted) as error:
        status, reason, interrupted = "interrupted", "interrupted by the user", error
    except TestbedError as error:
        # A job that failed was measured, and is bad; a lab or a machine that failed tells nothing.
        status, reason, untold = "failed", str(error), not isinstance(error, JobFailed)
        progress.note(reason)
    with unhurried():
        report = _conclude(lab, experiment, run_directory, status, reason, progress)
    if interrupted is not None:
        raise Interrupted(f"interrupted; what was measured is in {run_directory.path}") from interrupted
    codes = {"pass": 0, "fail": 1}
    return RunOutcome(report, run_directory.path, 3 if untold else codes.get(report.verdict, 3))


def _follow(
    lab: Lab, job: Job, observer: Observer, planned: tuple[Planned, ...], total: int, progress: Progress
) -> None:
    """Inject what is due and show what happens, until the job has ended. Raises JobFailed or LabError."""
    due = list(planned)
    longest = max((it.lasts_s or 0.0 for it in planned), default=0.0)
    began: float | None = None
    moved, seen = time.monotonic(), 0
    ticked = checked = 0.0
    while True:
        step, now = job.step, time.monotonic()
        if step > seen:
            moved, seen = now, step
            began = began or now
        for fault in [it for it in due if _is_due(it, step, began, now)]:
            due.remove(fault)
            written: dict[str, Any] = dict(fault.parameters)
            lab.inject(fault.inject, fault.target, for_s=fault.for_s, **written)
        if now - ticked >= TICK_S:
            ticked = now
            _tell(observer, job, step, total, progress)
        if now - checked >= 0.5:
            checked = now
            if observer.trouble:
                raise LabError(observer.trouble)
            if any(event["event"] == "emulator-died" for event in list(observer.heard)):
                raise LabError("the emulator died, so all fibers are dark")
            if reason := job.failure():
                raise JobFailed(reason)
            if step >= total or job.over():
                break
            if now - moved > STALL_BOUND_S + longest:
                raise LabError(f"no step was committed for {now - moved:.0f} s; the job stands at step {step}")
        time.sleep(POLL_S)
    job.wait(timeout=30.0)
    _tell(observer, job, total, total, progress)


def _is_due(fault: Planned, step: int, began: float | None, now: float) -> bool:
    if fault.after_step is not None:
        return step >= fault.after_step and began is not None
    return began is not None and fault.at_s is not None and now - began >= fault.at_s


def _tell(observer: Observer, job: Job, step: int, total: int, progress: Progress) -> None:
    standing: dict[str, str] = {}
    for event in list(observer.heard):
        if event["event"] == "fault-began":
            standing[event["fault"]] = f"{event['type']} {event['target']}"
        elif event["event"] == "fault-ended":
            standing.pop(event["fault"], None)
    while observer.told < len(observer.heard):
        event = observer.heard[observer.told]
        observer.told += 1
        if text := _words(event):
            progress.event(text)
    progress.tick(
        LiveState(
            step,
            total,
            job.last.get("train_loss"),
            observer.tokens_per_s,
            observer.throughput_bps,
            tuple(standing.values()),
        )
    )


def _words(event: Mapping[str, Any]) -> str:
    kind = event["event"]
    if kind == "fault-began":
        return f"{event['type']} {event['target']}: began ({event['fault']})"
    if kind == "fault-ended":
        return f"{event['type']} {event['target']}: ended ({event['fault']})"
    if kind == "carrier":
        return f"{event['site']} {'sees light again' if event['up'] else 'lost the carrier'} on {event['link']}"
    if kind == "emulator-died":
        return "the emulator died: all fibers are dark"
    return ""


def _conclude(
    lab: Lab, experiment: Experiment, run_directory: RunDirectory, status: str, reason: str, progress: Progress
) -> Report:
    """Heal, stop observing, judge, write. What cannot be had any more is left out, never made up."""
    progress.phase("report", str(run_directory.path))
    with contextlib.suppress(LabError):
        lab.heal()
    if lab.observer is not None:
        lab.observer.stop()
        if lab.observer.trouble and status == "finished":
            status, reason = "failed", lab.observer.trouble
        lab.observer = None
    record.end(run_directory, status, reason)
    measured = _measured(store.build_report(run_directory))
    record.amend(
        run_directory,
        expectations=[
            {"text": it.text, "holds": expect.judge(it, measured), "measured": measured.get(it.metric)}
            for it in experiment.expectations
        ],
    )
    return store.write_report(run_directory)


def _measured(report: Report) -> dict[str, float | None]:
    """What expectations are judged by, in SI units."""
    training = report.training
    first, last = training.train_loss_first, training.train_loss_last
    return {
        "goodput": training.goodput,
        "recovery": training.recovery_s,
        "compute_utilization": training.compute_utilization,
        "train_loss_drop": None if first is None or last is None else first - last,
        "steps_lost": float(training.steps_lost) if training.steps_committed else None,
        "wire_ratio": _wire_ratio(report),
    }


def _wire_ratio(report: Report) -> float | None:
    verdict = asdict(report.wire)
    measured, minimum = verdict.get("measured_bytes"), verdict.get("minimum_bytes")
    return None if not measured or not minimum else measured / minimum


__all__ = ["RunOutcome", "run"]
