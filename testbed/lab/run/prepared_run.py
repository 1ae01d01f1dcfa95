"""Prepare a run: everything that is known, and everything that is wrong, before anything is built."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from testbed.core.experiment import applicable, fault_schedule, replay
from testbed.core.experiment.experiment_schema import Experiment
from testbed.core.experiment.fault_schedule import Planned
from testbed.core.topology.graph import reachable
from testbed.core.topology.model import Topology
from testbed.core.workload import workload_layout, workload_words
from testbed.core.workload.workload import AgentWorkload, ProgramWorkload, Workload
from testbed.errors import FileMistakes, UserError
from testbed.host.files import catalog
from testbed.host.linux import invocation
from testbed.lab.jobs.workload_notes import declared_notes, placement_notes

__all__ = ["JobOptions", "Prepared", "has_bypass", "prepare", "read"]

FIRST_CUT, ONLY_FIBER = "first-cut", "only-fiber"

_WORDS: Final = ("strategy", "compute", "model", "noise")
"""Options that are parsed as the keys of a workload's file are."""

STALL_S: Final = 120.0
"""Default of a command's ``stall``, beyond the longest fault: so long may it report no step."""


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


class JobOptions(TypedDict, total=False):
    """What is given beside a file: ``set`` overrides values of the topology, all others are of the agents' job, as of
    :meth:`testbed.lab.lab.Lab.train`."""

    set: Mapping[str, object] | None
    steps: int | None
    seed: int | None
    data: Path | None
    strategy: str | None
    compute: object
    model: object
    noise: object


def prepare(
    what: str,
    options: JobOptions,
    read_before: tuple[Experiment, Topology] | None = None,
    faults: tuple[Planned, ...] | None = None,
) -> Prepared:
    """Return a run of ``what``, with everything that is wrong with it found. Raises FileMistakes, UserError.

    ``read_before``: experiment and topology, instead of those that ``what`` names. ``faults``: those of another run of
    the same, instead of drawing them.
    """
    overrides, steps, seed = options.get("set"), options.get("steps"), options.get("seed")
    workload_changes = {key: options[key] for key in _WORDS if options.get(key) is not None}
    try:
        experiment, topology = read_before or read(what, overrides)
        if experiment.workload.program is not None:
            _refuse_options(experiment, options, workload_changes)
        planned = fault_schedule.plan(experiment, topology, steps, seed) if faults is None else faults
    except FileMistakes:
        # That was the first step which failed: say what is wrong everywhere.
        if catalog.kind_of(what) == "experiment":
            raise FileMistakes(catalog.examine_experiment(what, overrides, steps, seed)) from None
        raise
    workload: Workload
    notes: tuple[str, ...] = ()
    if (program := experiment.workload.program) is not None:
        workload = _program(program, experiment.source, planned)
    else:
        assert experiment.workload.agents is not None
        workload = _agents(experiment.workload.agents, options, workload_changes)
        notes = _of_compute(workload_changes, experiment, workload, topology)
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
    for condition in (
        *(fault.when for fault in experiment.schedule),
        *(steady.check for steady in experiment.hypothesis),
    ):
        if condition is not None and (refused := applicable.metric_refused(condition.metric, workload)):
            raise UserError(f"{experiment.source}: {condition.text}: {'; '.join(refused)}")
    lost = {
        expectation.text: why
        for expectation in experiment.expectations
        if (why := applicable.metric_refused(expectation.metric, workload))
    }
    kept = tuple(expectation for expectation in experiment.expectations if expectation.text not in lost)
    notes = tuple(f"{text} is not judged: {why[0]}" for text, why in lost.items())
    return dataclasses.replace(experiment, expectations=kept), notes


def _of_compute(
    workload_changes: Mapping[str, Any], experiment: Experiment, workload: AgentWorkload, topology: Topology
) -> tuple[str, ...]:
    """Return warnings on the workload and what its declared compute means. Raises FileMistakes."""
    place = ("--strategy", {}) if workload_changes else (experiment.source, experiment.workload_lines)
    findings = workload_layout.findings(workload, topology, *place)
    if mistakes := [finding for finding in findings if not finding.warning]:
        raise FileMistakes(mistakes)
    return (*map(str, findings), *declared_notes(workload, topology), *placement_notes(workload, topology))


def _agents(written: AgentWorkload, options: JobOptions, workload_changes: Mapping[str, Any]) -> AgentWorkload:
    steps, seed, data = options.get("steps"), options.get("seed"), options.get("data")
    if data is None and written.data is not None:
        data = Path(written.data)
    if data is not None:
        data = data.absolute()  # ranks run in another directory
        if not (data.is_file() or data.is_dir()):
            raise UserError(f"no such file or folder to train on: {data}")
    return dataclasses.replace(
        workload_words.changed(written, **workload_changes),
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
        stall_s = STALL_S + max((fault.lasts_s or 0.0 for fault in planned), default=0.0)
    return dataclasses.replace(written, folder=str(folder), stall_s=stall_s)


def _refuse_options(experiment: Experiment, options: JobOptions, workload_changes: Mapping[str, Any]) -> None:
    """Raise UserError for options that say what the agents train: a program is told by its own arguments."""
    drawn = experiment.outages is not None and experiment.outages.seed is None
    given = {"steps": options.get("steps"), "data": options.get("data"), **workload_changes}
    if not drawn:
        given["seed"] = options.get("seed")
    if names := [name for name, value in given.items() if value is not None]:
        listed = " and ".join(f"--{name}" for name in names)
        raise UserError(
            f"{experiment.source} runs a command, which {listed} cannot change; write the program's own options"
            " into command:"
        )


def _found_anywhere(name_or_path: str) -> str:
    is_path = "/" in name_or_path or name_or_path.endswith((".yaml", ".yml"))
    return str(Path(name_or_path).absolute()) if is_path else name_or_path


def read(what: str, overrides: Mapping[str, object] | None) -> tuple[Experiment, Topology]:
    if catalog.kind_of(what) == "experiment":
        experiment = catalog.load_experiment(what)
        return experiment, catalog.load_topology_of(experiment, overrides)
    topology = catalog.load_topology(what, overrides)
    if not topology.links:
        raise UserError(f"{what} has no links to train across; bring it up with: {invocation.command('up', what)}")
    experiment = catalog.load_experiment(FIRST_CUT if has_bypass(topology) else ONLY_FIBER)
    return dataclasses.replace(experiment, topology=what), topology


def has_bypass(topology: Topology) -> bool:
    """Whether the sites of the first link stay connected without it."""
    first, *others = topology.links
    one, other = first.between
    return other in reachable(one, (link.between for link in others))
