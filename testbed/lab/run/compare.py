"""Run the same job by several ways of training, one after the other, and compare them.

One lab is brought up and certified for all of them, so they share its fibers; how the emulator kept up is measured in
each run again. Every run has a directory of its own, like one of ``testbed run``. The runs of one seed follow each
other, so that a host that becomes slower over the hour slows all ways alike. The comparison is written after each run,
so that an interruption keeps what was measured.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Unpack

from testbed.core.certification import admission
from testbed.core.experiment import experiment_schema
from testbed.core.experiment.experiment_schema import Experiment
from testbed.core.report import answers
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared, way_of_run
from testbed.core.topology.model import Topology
from testbed.core.workload.strategy_section import list_of_words
from testbed.errors import FileMistakes, Finding, Interrupted, JobFailed, LabError, TestbedError, UserError
from testbed.host import fork_server as agent_host
from testbed.host import strategy_packages
from testbed.host.files import catalog, comparisons, runs_folder
from testbed.host.files.store import RunDirectory
from testbed.lab.interruption import defer_interrupts
from testbed.lab.lab import Lab
from testbed.lab.own_lab import own_lab
from testbed.lab.progress import Progress, Silent, Unbreakable
from testbed.lab.run.prepared_run import JobOptions, Prepared, prepare
from testbed.lab.run.run import RunOptions, job_access, run_in, split_options

__all__ = ["CompareOutcome", "compare", "plan_runs"]

STEPS: Final = 300
"""Of each job, unless something else is said."""
EVALUATIONS: Final = 10
MOST_RUNS: Final = 200


@dataclass(frozen=True)
class CompareOutcome:
    """``page``: path of the comparison. ``exit_code``: 0 all runs passed, 1 one did not, 3 one has no verdict."""

    found: WaysCompared
    page: Path
    exit_code: int


@dataclass(frozen=True)
class _Planned:
    """One run: the way as it was written, the seed, and all that is known before it begins."""

    way: str
    seed: int
    prepared: Prepared


def compare(
    what: str,
    strategies: str | Sequence[str],
    *,
    seeds: int = 1,
    inject: Sequence[str] = (),
    evaluations: int = EVALUATIONS,
    runs: Path | None = None,
    wait: bool = False,
    progress: Progress | None = None,
    **options: Unpack[RunOptions],
) -> CompareOutcome:
    """Run ``what``, a topology or an experiment of the testbed's agents, by each of ``strategies``, for each seed.

    Args:
        what: a topology or an experiment, by path or name.
        strategies: as in ``ddp,diloco:every=50,outer.rate=0.7``; the first is what the others are compared with.
        seeds: how many, counted from ``seed`` (default: the experiment's, else 0).
        inject: faults of each run, as in ``cut north after=40% for=3s``; of a topology only.
        evaluations: of the held-out loss in each run; 0: none.
        runs: folder of the run directories.
        wait: until no other measurement holds this host; otherwise HostBusy is raised.
        progress: receives progress.
        options: as of :func:`testbed.run`, except ``strategy``.

    Raises what :func:`testbed.lab.deploy.up` raises, before anything is measured; FileMistakes with everything that is
    wrong with any of the runs; Interrupted after everything was undone and the comparison of the runs so far written.
    """
    progress = Unbreakable(progress or Silent())
    ways = tuple(list_of_words(strategies)) if isinstance(strategies, str) else tuple(strategies)
    job_options, lab_options = split_options(options)
    planned = plan_runs(what, ways, seeds, inject, evaluations, job_options)
    first = planned[0].prepared
    lab_options["strict"] = lab_options.get("strict", False) or first.experiment.strict
    admission.refuse_both(lab_options["strict"], lab_options.get("allow_uncertified", False))
    if why := agent_host.missing():
        raise LabError(f"a comparison needs training agents: {why}")
    root = runs_folder.ready(runs)
    for line in dict.fromkeys(note for run in planned for note in run.prepared.notes):
        progress.note(line)
    compared = _Compared(first.topology.name, ways, tuple(dict.fromkeys(run.seed for run in planned)), root)
    access = job_access(first.workload, root)
    with own_lab(f"compare {what}", first.topology, progress, access, wait=wait, **lab_options) as lab:
        try:
            _run_all(lab, planned, compared, root, progress)
        except (KeyboardInterrupt, Interrupted) as error:
            with defer_interrupts():
                compared.end("interrupted")
            raise Interrupted(compared.interrupted(str(error))) from error
        except TestbedError as error:
            compared.end(str(error))
            raise
    if compared.page is None:
        raise JobFailed(f"nothing to compare: no run has trained a step; their reports are in {root}")
    return CompareOutcome(compared.comparison, compared.page, compared.exit_code)


def _run_all(lab: Lab, planned: Sequence[_Planned], compared: _Compared, root: Path, progress: Progress) -> None:
    for number, run in enumerate(planned, 1):
        name = f"{run.way}, seed {run.seed}"
        progress.note(f"run {number} of {len(planned)}: {name}")
        run_directory = lab.open_run(root)
        try:
            run_in(lab, name, run.prepared, run_directory, progress)
        finally:
            with defer_interrupts():
                compared.add(run.way, run.seed, run_directory)
        if why := run_directory.read().info.unknown_because:
            raise LabError(f"{name}, has no result: {why}")  # the next one would have none either


class _Compared:
    """The comparison so far, written below ``root`` whenever it grows."""

    def __init__(self, topology: str, ways: tuple[str, ...], seeds: tuple[int, ...], root: Path) -> None:
        self.comparison = WaysCompared(topology, ways, seeds, ())
        self.page: Path | None = None
        self._root, self._name = root, f"{topology}-{time.strftime('%Y%m%d-%H%M%S')}"

    @property
    def exit_code(self) -> int:
        return answers.EXIT_CODES[self.comparison.verdict]

    def add(self, way: str, seed: int, run: RunDirectory) -> None:
        """Add a run that has ended, however it did; of one that did not train at all, why. Raises StorageError."""
        read = run.read()
        if not any(log.steps for log in read.ranks):
            if read.info.status == "failed" and not read.info.unknown_because:
                failed = (*self.comparison.failed, (way, seed, read.info.reason))
                self.comparison = dataclasses.replace(self.comparison, failed=failed)
                if self.comparison.runs:
                    self._write()
            return
        added: WayRun = way_of_run(way, seed, run.name, str(run.path), read)
        self.comparison = dataclasses.replace(self.comparison, runs=(*self.comparison.runs, added))
        self._write()

    def end(self, why: str) -> None:
        """Note why there are fewer runs than planned."""
        self.comparison = dataclasses.replace(self.comparison, ended=why)
        if self.comparison.runs:
            self._write()

    def interrupted(self, why: str) -> str:
        """Return the message of an interruption, with where the comparison is if there is one."""
        parts = len(self.comparison.ended_early)
        runs = f"{len(self.comparison.runs) - parts} of {self.comparison.planned} runs"
        runs += (
            ", and of what another did until then," if parts == 1 else f", and of parts of {parts}," if parts else ""
        )
        return f"interrupted; the comparison of {runs} is {self.page}" if self.page else why or "interrupted"

    def _write(self) -> None:
        self.page = comparisons.keep_ways(self.comparison, self._root, self._name)


def plan_runs(
    what: str,
    ways: Sequence[str],
    seeds: int,
    inject: Sequence[str],
    evaluations: int,
    options: JobOptions,
) -> tuple[_Planned, ...]:
    """Return all runs in their order. Raises FileMistakes with the mistakes of all of them."""
    if len(ways) < 2:
        raise UserError(f"expected at least two strategies to compare, got {len(ways)}; write ddp,diloco:every=50")
    if twice := [way for way in dict.fromkeys(ways) if ways.count(way) > 1]:
        raise UserError(f"{twice[0]} is named twice; remove one, or give it other options")
    if seeds < 1 or len(ways) * seeds > MOST_RUNS:
        raise UserError(f"expected 1 to {MOST_RUNS} runs in all, got {len(ways)} strategies with {seeds} seeds each")
    strategy_packages.register()
    steps, seed = options.get("steps"), options.get("seed")
    experiment, topology = _read(what, options.get("set"), inject, steps)
    if (workload := experiment.workload.agents) is None:
        raise UserError(f"{what} runs a command, whose way of training is its own; name one that the agents train")
    total = workload.steps if steps is None else steps
    every = -(-total // evaluations) if evaluations else 0
    experiment = dataclasses.replace(experiment, workload=dataclasses.replace(workload, evaluate_every=every))
    begin = workload.seed if seed is None else seed
    planned, findings = list[_Planned](), list[Finding]()
    for number in range(begin, begin + seeds):
        for way in ways:
            of_way: JobOptions = {**options, "seed": number, "strategy": way}
            try:
                # Those that are drawn do not depend on the seed.
                faults = planned[0].prepared.planned if planned else None
                planned.append(_Planned(way, number, prepare(what, of_way, (experiment, topology), faults)))
            except FileMistakes as error:
                of_list = [_of_list(finding, way) for finding in error.findings]
                findings += [finding for finding in of_list if finding not in findings]
    if findings:
        raise FileMistakes(findings)
    return tuple(planned)


def _of_list(finding: Finding, way: str) -> Finding:
    """Return a finding on ``--strategy`` as one on the strategy ``way`` of the list."""
    return dataclasses.replace(finding, file=f"--strategies {way}") if finding.file == "--strategy" else finding


def _read(
    what: str, overrides: Mapping[str, object] | None, inject: Sequence[str], steps: int | None
) -> tuple[Experiment, Topology]:
    if catalog.kind_of(what) == "experiment":
        if inject:
            raise UserError("--inject is for a topology; an experiment has its faults in schedule:")
        experiment = catalog.load_experiment(what)
        return experiment, catalog.load_topology_of(experiment, overrides)
    topology = catalog.load_topology(what, overrides)
    if not topology.links:
        raise UserError(f"{what} has no links to train across")
    text = "\n".join(_experiment_lines(inject, STEPS if steps is None else steps))
    experiment = experiment_schema.load_text(text.encode(), "--inject")
    return dataclasses.replace(experiment, name="compare", topology=what), topology


_TRIGGERS: Final = ("after", "at", "when")
_OF_ENTRY: Final = ("for", "repeat", "every")


def _experiment_lines(inject: Sequence[str], steps: int) -> Iterator[str]:
    """Yield an experiment file without expectations. A line for each fault, so that mistakes name its number.

    Raises UserError for words that are no fault.
    """
    entries = []
    for injection in inject:
        fault, target, *settings = (*injection.split(), "", "")[: max(2, len(injection.split()))]
        if not fault or not target or any("=" not in word for word in settings) or "=" in fault + target:
            raise UserError(f"expected --inject 'FAULT TARGET [after=40%] [for=3s] [KEY=VALUE ...]', got '{injection}'")
        given = dict(word.split("=", 1) for word in settings)
        entry: dict[str, object] = {"inject": fault, "target": target}
        for key in (*_TRIGGERS, *_OF_ENTRY):
            if key in given:
                value = given.pop(key)
                entry[key] = f"step {value}" if key == "after" else int(value) if value.isdigit() else value
        if not any(key in entry for key in _TRIGGERS):
            entry["after"] = "step 40%"
        if given:
            entry["with"] = given
        entries.append(entry)
    yield f"workload: {{steps: {steps}}}"
    if entries:
        yield "schedule:"
        yield from (f"  - {json.dumps(fault_entry)}" for fault_entry in entries)
