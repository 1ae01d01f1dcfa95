"""The Python interface of the testbed, also as ``import testbed``; the command line is a thin layer over it.

Each function imports what it needs when called: importing everything takes 0.4 s, most of which no verb needs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from testbed.errors import MissingTool, TestbedError, UserError
from testbed.host import installation, lab_folder, lab_owner
from testbed.host.linux import invocation

if TYPE_CHECKING:
    from testbed.core.analysis.costs.measured_workload import MeasuredJob
    from testbed.core.plan.step import Plan
    from testbed.core.prediction.library_costs import Library
    from testbed.core.prediction.prediction import Failures, Power, Prediction, Tcp
    from testbed.core.report.comparison.comparison import SideBySide
    from testbed.core.report.document import Report
    from testbed.core.topology.model import Topology
    from testbed.core.validation.baseline import BaselineComparison
    from testbed.core.validation.result import Validation
    from testbed.core.workload.workload import AgentWorkload, ProgramWorkload
    from testbed.host.files.store import RunDirectory
    from testbed.lab.capture import Capture
    from testbed.lab.deploy import Choice
    from testbed.lab.fiber_status import FiberStatus
    from testbed.lab.injected_fault import Fault
    from testbed.lab.jobs.job import Job
    from testbed.lab.jobs.program_job import ProgramJob
    from testbed.lab.lab import Lab
    from testbed.lab.progress import LiveState, Progress
    from testbed.lab.run.compare import CompareOutcome, compare
    from testbed.lab.run.run import RunOutcome, run
    from testbed.lab.status import FOREIGN, LabStatus, LabSummary, LinkStatus, RankStatus
    from testbed.lab.validation.validation import ValidationOutcome, validate

__all__ = [
    "FOREIGN",
    "AgentWorkload",
    "Capture",
    "Choice",
    "CompareOutcome",
    "Fault",
    "FiberStatus",
    "Job",
    "Lab",
    "LabStatus",
    "LabSummary",
    "LinkStatus",
    "LiveState",
    "ProgramJob",
    "ProgramWorkload",
    "Progress",
    "RankStatus",
    "RunOutcome",
    "RunSummary",
    "Topology",
    "ValidationOutcome",
    "attach",
    "choose",
    "compare",
    "down",
    "down_all",
    "lab_names",
    "labs",
    "load",
    "measured_job",
    "measured_library",
    "only_mine",
    "plan",
    "predict",
    "report",
    "run",
    "runs",
    "runs_searched",
    "side_by_side",
    "strangers",
    "up",
    "validate",
    "validation_report",
]


_ELSEWHERE: Final = {
    "AgentWorkload": "testbed.core.workload.workload",
    "Capture": "testbed.lab.capture",
    "Choice": "testbed.lab.deploy",
    "CompareOutcome": "testbed.lab.run.compare",
    "FOREIGN": "testbed.lab.status",
    "Fault": "testbed.lab.injected_fault",
    "FiberStatus": "testbed.lab.fiber_status",
    "Job": "testbed.lab.jobs.job",
    "Lab": "testbed.lab.lab",
    "LabStatus": "testbed.lab.status",
    "LabSummary": "testbed.lab.status",
    "LinkStatus": "testbed.lab.status",
    "LiveState": "testbed.lab.progress",
    "ProgramJob": "testbed.lab.jobs.program_job",
    "ProgramWorkload": "testbed.core.workload.workload",
    "Progress": "testbed.lab.progress",
    "RankStatus": "testbed.lab.status",
    "RunOutcome": "testbed.lab.run.run",
    "Topology": "testbed.core.topology.model",
    "ValidationOutcome": "testbed.lab.validation.validation",
    "compare": "testbed.lab.run.compare",
    "run": "testbed.lab.run.run",
    "validate": "testbed.lab.validation.validation",
}
"""Re-exported names and the modules that define them."""


def __getattr__(name: str) -> Any:
    if name == "validate" and importlib.util.find_spec("numpy") is None:
        return _validate_without_numpy
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'testbed.lab.api' has no attribute '{name}'")


def _validate_without_numpy(libraries: Sequence[str], **options: object) -> NoReturn:
    """Stand for :func:`validate`, whose modules need numpy: raise MissingTool with what installs the libraries too."""
    from testbed.host import collective_libraries

    extras = [collective_libraries.find(library).extra or "agents" for library in libraries]
    raise MissingTool("numpy", installation.adding(*extras or ("agents",)), "it judges the libraries' answers")


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run; ``verdict`` is pass, fail, unknown, or "no report" if it has none yet.

    ``state`` is running, finished, interrupted, failed, or lost: its process ended before it recorded the end. ``pid``
    is the process of a running one. ``log`` has the output of the command, for a run that was detached.
    """

    name: str
    path: Path
    started_unix_s: float
    topology: str
    verdict: str
    state: str = "finished"
    pid: int | None = None
    log: Path | None = None


def load(topology: str, set: Mapping[str, object] | None = None) -> Topology:
    """Load a topology by path or shipped name, with overrides from ``set`` (``{"links.north.km": 80}``).

    Raises FileMistakes with all mistakes at once, UnknownName with similar names.
    """
    from testbed.host.files import catalog

    return catalog.load_topology(topology, set)


def choose(topology: Topology, name: str | None = None, driver: str = "auto", emulator: str = "auto") -> Choice:
    """Return which driver and emulator :func:`up` would use, and why; see :func:`testbed.lab.deploy.choose`."""
    from testbed.lab import deploy

    return deploy.choose(topology, name or topology.name, driver, emulator)


def predict(
    strategy: str | None = None,
    topology: Topology | str | None = None,
    *,
    compute: object = None,
    model: object = None,
    layers: int | None = None,
    workload: AgentWorkload | None = None,
    sites: int | None = None,
    ranks_per_site: int | None = None,
    rate_bps: float | None = None,
    delay_s: float | None = None,
    scale: float | None = None,
    library: Library | None = None,
    measured: MeasuredJob | Path | None = None,
    as_published: bool = False,
    target: float | None = None,
    merge_within_s: float | None = None,
    tcp: Tcp | None = None,
    failures: Failures | None = None,
    lab: tuple[float, float, int] | None = None,
    power: Power | None = None,
    **options: Any,
) -> Prediction:
    """Return what the numbers say of a job, without a lab; docs/prediction.md.

    ::

        testbed.predict("diloco", every=100, rate_bps=5e9, delay_s=5e-3).utilization

    Args:
        strategy: as of ``testbed run``: ``"diloco:every=50,outer.rate=0.7"``; default: ddp, or the workload's.
        topology: a topology or its name; None for ``sites`` that are alike.
        compute, model, layers: as of a workload: ``"80ms"``, ``"10B"``; default: 800 ms, 10 billion parameters, 24.
        workload: of an experiment, which the words above change.
        sites, ranks_per_site: without a topology; default: 2 and 1.
        rate_bps: payload rate of each fiber at full scale, in bit/s; default: the topology's, or 100 Gb/s.
        delay_s: one-way delay between each two sites; default: the topology's, or 200 us.
        scale: of the lab whose messages are simulated; default: the topology's, or 1000.
        library: that carries out the operations; default: torch's gloo.
        measured: a run, or what it says of other jobs: default of the job, the topology and the costs of operations.
        as_published: simulate as arXiv:2501.18512 does (``core/prediction/as_published.py``).
        target: compute utilization, 0 to 1, to find the least payload rate for.
        merge_within_s: with a target, the greatest age of updates where no site waits for them.
        tcp, failures, lab, power: as in :mod:`testbed.core.prediction.prediction`.
        options: of the strategy, with ``_`` for ``.``.

    Raises:
        UserError: unknown strategy or topology, impossible inputs: all at once.
    """
    from testbed.core.prediction import prediction, workload_job
    from testbed.core.prediction.library_costs import GLOO
    from testbed.core.training.strategies_built import BUILT
    from testbed.core.workload import workload_words
    from testbed.core.workload.workload import AgentWorkload
    from testbed.host import strategy_packages

    strategy_packages.register()
    ran = measured_job(measured) if isinstance(measured, Path) else measured
    given = workload or (ran.workload if ran else AgentWorkload())
    if topology is None and ran is not None and sites is None and ranks_per_site is None:
        topology = ran.topology
    if compute is None and given.compute is None:
        compute = f"{workload_job.COMPUTE_S}s"
        model = workload_job.MODEL if model is None else model
    twin = BUILT.get(given.strategy if strategy is None else strategy.partition(":")[0].strip())
    dotted = {option.argument: option.name for option in twin.options} if twin else {}
    named = {dotted.get(name, name): value for name, value in options.items()}
    changed = workload_words.changed(given, strategy, compute, model, None, named, layers=layers)
    if changed.compute is None:
        raise UserError(f"--compute: expected the time of a step, got '{compute}'; write 80ms or real:80ms")
    costs, limits = library or (ran.library if ran else None) or GLOO, tcp or prediction.Tcp()
    if topology is None:
        job = workload_job.job_alike(
            changed,
            sites=2 if sites is None else sites,
            ranks_per_site=1 if ranks_per_site is None else ranks_per_site,
            rate_bps=workload_job.RATE_BPS if rate_bps is None else rate_bps,
            delay_s=workload_job.DELAY_S if delay_s is None else delay_s,
            scale=workload_job.SCALE if scale is None else scale,
            library=costs,
            tcp=limits,
        )
    else:
        job_topology = load(topology) if isinstance(topology, str) else topology
        job = workload_job.job_on(changed, job_topology, rate_bps=rate_bps, delay_s=delay_s, library=costs, tcp=limits)
    if ran and library is None:
        same = (job.twin.name, job.twin.values) == (ran.workload.strategy, ran.workload.options)
        job = job.but(quartiles=ran.quartiles, unattributed_s=ran.unattributed_s if same else 0.0)
    return prediction.predict(
        job.but(as_published=as_published),
        target=target,
        merge_within_s=merge_within_s,
        failures=failures,
        lab=lab,
        power=power,
    )


def measured_job(run: Path) -> MeasuredJob:
    """Return what a run of the agents says of other jobs, for :func:`predict`. Raises UserError."""
    from testbed.core.analysis.costs import measured_workload

    return measured_workload.measured_job(_chosen(run).read())


def measured_library(validation: Path) -> Library:
    """Return what the operations of a library cost, by a validation of it. Raises UserError."""
    from testbed.core.validation.measured_collective import measured_collective
    from testbed.host.files import store
    from testbed.host.files.validations import read_validation

    return measured_collective(read_validation(_chosen(validation).path / store.VALIDATION))


def plan(
    topology: Topology, agents: bool = True, emulator: str = "fiberd", observe: bool = False, driver: str = "netns"
) -> Plan:
    """Return the Steps that :func:`up` would apply; ``str(step)`` is one line."""
    from testbed.core.plan import build

    lab_plan = build.build(topology, agents=agents, emulator=emulator, observe=observe)
    if driver == "containerlab":
        from testbed.lab import containers

        return containers.plan_of(topology, lab_plan, topology.name)
    return lab_plan


def up(
    topology: Topology | str,
    *,
    name: str | None = None,
    agents: bool = True,
    driver: str = "auto",
    emulator: str = "auto",
    observe: bool = False,
    keep: bool = False,
    strict: bool = False,
    allow_uncertified: bool = False,
    progress: Progress | None = None,
) -> Lab:
    """Bring up a lab: build it, deploy its agents, certify its fibers. See :func:`testbed.lab.deploy.up`."""
    from testbed.lab import deploy

    lab_topology = load(topology) if isinstance(topology, str) else topology
    return deploy.up(
        lab_topology,
        name=name,
        agents=agents,
        driver=driver,
        emulator=emulator,
        observe=observe,
        keep=keep,
        strict=strict,
        allow_uncertified=allow_uncertified,
        progress=progress,
    )


def attach(
    name: str | None = None, *, changes: bool = True, command: Callable[[str], str] = 'testbed.attach("{}")'.format
) -> Lab:
    """Return a running lab: ``name``, else ``$TESTBED_LAB``, else the only one, if the same user brought it up.

    ``changes``: set it to False to only look at the lab of any user. ``command`` returns what an error
    suggests for a lab. Raises UnknownName or UserError.
    """
    from testbed.lab.lab import Lab

    return Lab(lab_owner.chosen(name, changes=changes, command=command))


def only_mine(command: Callable[[str], str] | None = None) -> tuple[str, ...]:
    """Return the name of the only lab, for taking it down; () if there is none. Raises UserError as :func:`attach`."""
    down = command or (lambda lab: invocation.command("down", lab))
    return (lab_owner.chosen("", changes=True, command=down).name,) if lab_folder.folders() else ()


def strangers(name: str) -> str:
    """Return a line about a lab that another user or login session brought up (who, when, from where); else empty."""
    return lab_owner.strangers(lab_folder.folder(name))


def lab_names() -> tuple[str, ...]:
    """Return the names of all labs that are up or were left behind, without querying them. Raises StorageError."""
    return tuple(folder.name for folder in lab_folder.folders())


def labs() -> tuple[LabSummary, ...]:
    """Return a summary of each lab that is up or was left behind, within seconds whatever does not answer."""
    from testbed.lab import status

    folders = lab_folder.folders()
    with ThreadPoolExecutor(max(1, len(folders))) as beside:  # a lab that does not answer delays no other
        return tuple(beside.map(status.summary, folders))


def down(name: str) -> bool:
    """Remove everything that carries the lab's mark, in whatever state it is; False if there was nothing."""
    from testbed.lab import teardown

    lab_folder.refuse_bad_name(name)
    return teardown.down(lab_folder.folder(name))


def down_all() -> tuple[str, ...]:
    """Remove all labs and return their names. Tries every lab, then raises the first failure."""
    from testbed.lab import teardown

    gone: list[str] = []
    failed: list[TestbedError] = []
    for folder in lab_folder.folders():
        try:
            if teardown.down(folder):
                gone.append(folder.name)
        except TestbedError as error:
            failed.append(error)
    if failed:
        raise failed[0]
    return tuple(gone)


def runs(root: Path | None = None) -> tuple[RunSummary, ...]:
    """Return all runs, the latest first: those in ``root``, else where runs are kept by default, and in ./runs."""
    from testbed.host.files import runs_folder, store

    directories = runs_folder.listed(begun=True) if root is None else store.list_runs(root.absolute(), begun=True)
    return tuple(_summary(run_directory) for run_directory in directories)


def runs_searched() -> str:
    """Return the folders in which runs are looked for, for a message. Raises UserError."""
    from testbed.host.files import runs_folder

    return " or ".join(map(str, runs_folder.searched()))


def report(run: Path | None = None) -> tuple[Report, Path]:
    """Rebuild a report from its run directory alone; return it and its page's path.

    ``run`` is the directory, or its name where runs are kept; default: the latest run.
    """
    from testbed.host.files import store

    chosen = _chosen(run)
    if (chosen.path / store.VALIDATION).exists():
        raise UserError(f"{chosen.path} is a validation run; rebuild its report with validation_report()")
    return store.write_report(chosen), chosen.path / "index.html"


def validation_report(run: Path | None = None) -> tuple[Validation, BaselineComparison | None, Path] | None:
    """Like :func:`report`, for a run directory of ``testbed validate``: return the result, the comparison with its
    baseline and the path of its page. None if the run is not a validation, or there are no runs."""
    from testbed.host.files import runs_folder, store

    if run is None and not runs_folder.listed():
        return None
    chosen = _chosen(run)
    if not (chosen.path / store.VALIDATION).exists():
        return None
    from testbed.host.files.validations import rebuild_validation

    return *rebuild_validation(chosen), chosen.path / "index.html"


def side_by_side(a: Path, b: Path, out: Path | None = None) -> tuple[SideBySide, Path]:
    """Compare two runs of any kind; return the comparison and the path of its page.

    The runs are only read. The page and comparison.json go into ``out`` (default: ``comparisons/A--B`` in the folder of
    the caller's runs).

    Raises:
        UnknownName: one of them is no run.
        UserError: ``out`` is a run directory.
        StorageError: a run cannot be read, or the page cannot be written.
    """
    from testbed.core.report.comparison.comparison import compare
    from testbed.host.files import comparisons, runs_folder

    comparison = compare(*(comparisons.read_side(_chosen(run)) for run in (a, b)))
    if out is not None:
        return comparison, comparisons.write_comparison(comparison, out)
    return comparison, comparisons.keep_comparison(comparison, runs_folder.ready(need_bytes=0))


def _chosen(run: Path | None) -> RunDirectory:
    from testbed.host.files import runs_folder

    return runs_folder.latest() if run is None else runs_folder.find(run)


def _summary(run_directory: RunDirectory) -> RunSummary:
    from testbed.host.files import store

    info, verdict = store.read_summary(run_directory)
    state = store.read_state(run_directory)
    began = info[0] or state.since_unix_s or 0.0
    log = store.detached_log(run_directory)
    return RunSummary(run_directory.name, run_directory.path, began, info[1], verdict, state.word, state.pid, log)
