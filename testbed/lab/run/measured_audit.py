"""The measured audit: train a job in a lab, cut each duct in turn, and take the lab down.

Measurements are kept however the audit ends: an interruption, a job that did not survive a cut, or a failed lab.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Unpack

from testbed.core.analysis.cut_impact import CutImpact, impacts
from testbed.core.analysis.timeline import fault_windows
from testbed.core.certification import admission
from testbed.core.shared_risk.audit import ducts_of
from testbed.core.topology.model import Topology
from testbed.errors import (
    FidelityError,
    Interrupted,
    JobFailed,
    LabError,
    NoisyHost,
    TestbedError,
    UnknownName,
    UserError,
)
from testbed.host import fork_server as agent_host
from testbed.host.files import runs_folder
from testbed.host.files.store import RunDirectory
from testbed.lab.interruption import defer_interrupts
from testbed.lab.jobs.job import Job
from testbed.lab.jobs.running_job import BY_USER
from testbed.lab.lab import Lab
from testbed.lab.own_lab import LabOptions, own_lab
from testbed.lab.progress import Progress, Silent, Unbreakable

__all__ = ["DEFAULT_HOLD_S", "Measured", "measure", "to_dict"]

DEFAULT_HOLD_S: Final = 5.0
"""How long each duct is cut: some tens of steps, and far less than the process group's timeout (30 s)."""

_WARM_STEPS: Final = 15
"""The first steps are slow: memory is touched for the first time, connections are opened."""
_BACK_STEPS: Final = 5
"""Steps after a heal before the next duct is cut."""
_BACK_BOUND_S: Final = 90.0
"""After a cut of all fibers TCP retries within twice the dark time; the job's timeout ends it after 30 s."""
_MOST_STEPS: Final = 1_000_000
_RECORDER_S: Final = 1.0


@dataclass(frozen=True)
class Measured:
    """Result of an audit: ``impacts`` in the order of the cuts; ``left``, the ducts that were not cut, and ``why``.

    ``status`` is ``finished``, ``interrupted`` or ``failed``.
    """

    impacts: tuple[CutImpact, ...]
    left: tuple[str, ...]
    status: str
    why: str
    directory: Path | None


def measure(
    topology: Topology,
    *,
    only: Sequence[str] = (),
    hold_s: float = DEFAULT_HOLD_S,
    runs: Path | None = None,
    wait: bool = False,
    progress: Progress | None = None,
    **options: Unpack[LabOptions],
) -> Measured:
    """Train on ``topology`` and cut each duct for ``hold_s`` seconds; ``only`` selects ducts.

    Raises what :func:`testbed.lab.deploy.up` raises, UnknownName for a duct that no link passes through, and UserError
    for a topology without links, HostBusy unless ``wait``; later failures are part of the result.
    """
    admission.refuse_both(options.get("strict", False), options.get("allow_uncertified", False))
    progress = Unbreakable(progress or Silent())
    ducts = _chosen(topology, only)
    if why := agent_host.missing():
        raise LabError(f"--measure needs training agents: {why}")
    if not 0.5 <= hold_s <= 20.0:
        raise UserError(f"--hold must be from 0.5 s to 20 s, below the job's timeout of 30 s; got {hold_s:g} s")
    root = runs_folder.ready(runs)
    try:
        with own_lab(f"audit {topology.name}", topology, progress, wait=wait, **options) as lab:
            run = lab.open_run(root)
            progress.note(runs_folder.note(run.path, runs))
            return _on(lab, ducts, hold_s, run, progress)
    except Interrupted as error:
        return Measured((), ducts, "interrupted", str(error), None)


def _chosen(topology: Topology, only: Sequence[str]) -> tuple[str, ...]:
    ducts = ducts_of(topology)
    if not ducts:
        raise UserError(f"topology {topology.name} has no links to cut")
    for duct in only:
        if duct not in ducts:
            raise UnknownName("duct", duct, ducts)
    return tuple(duct for duct in ducts if not only or duct in only)


def _on(lab: Lab, ducts: tuple[str, ...], hold_s: float, run: RunDirectory, progress: Progress) -> Measured:
    status, why, done = "finished", "", 0
    failure: TestbedError | None = None
    try:
        progress.phase("train", f"{len(lab.topology.node_names)} ranks, then {len(ducts)} cuts of {hold_s:g} s")
        job = lab.train(_MOST_STEPS)
        job.wait_for(_WARM_STEPS, timeout=120.0)
        for duct in ducts:
            progress.phase("cut", f"{duct}, {done + 1} of {len(ducts)}")
            _cut(lab, job, duct, hold_s)
            done += 1
        _let(job, hold_s)  # the recovery from the last cut shows in the following steps
        job.stop()
    except (KeyboardInterrupt, Interrupted):
        status, why = "interrupted", BY_USER
    except (FidelityError, NoisyHost):
        raise
    except TestbedError as error:
        status, why, failure = "failed", str(error), error
        if isinstance(error, JobFailed):
            done = min(done + 1, len(ducts))  # that cut was measured; it ended the job
    if status != "finished":
        progress.ended("interrupted" if status == "interrupted" else "failed")
    with defer_interrupts():
        time.sleep(_RECORDER_S if status == "finished" else 0.0)  # the job's last scrapes and records
        this_run = lab.current_run
        assert this_run is not None
        if status == "interrupted":
            this_run.interrupt(why)
        elif failure is not None:
            this_run.fail(failure)
        this_run.record_end()
        data = run.read()
        cut_impacts = impacts(data.ranks, fault_windows(data.events), time.monotonic())
        if status != "finished":
            progress.note(why)
    return Measured(tuple(cut_impacts), ducts[max(done, len(cut_impacts)) :], status, why, run.path)


def _cut(lab: Lab, job: Job, duct: str, hold_s: float) -> None:
    """Cut one duct, after an undisturbed interval, and wait until the job proceeds. Raises JobFailed, LabError."""
    _let(job, hold_s)
    with lab.cut(duct):
        _let(job, hold_s)
    job.wait_for(job.step + _BACK_STEPS, timeout=_BACK_BOUND_S)
    # A protected link reverts by itself after its wait; heal() reverts it now, before the next duct is cut.
    lab.heal()


def _let(job: Job, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if job.failure():
            raise job.failed()
        time.sleep(0.25)


def to_dict(measured: Measured) -> Mapping[str, object]:
    """Convert to JSON data."""
    return {**asdict(measured), "directory": None if measured.directory is None else str(measured.directory)}
