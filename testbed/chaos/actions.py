"""Actions for Chaos Toolkit. Each returns its effect as plain data for the journal of ``chaos run``."""

from __future__ import annotations

from typing import Any

from testbed.chaos import session
from testbed.chaos.session import Configuration, job_of, lab_of, translated
from testbed.core.units import Unreadable, parse_duration_s
from testbed.errors import UserError
from testbed.lab import api
from testbed.lab.injected_fault import Fault

__all__ = ["cut", "down", "heal", "inject", "stop_job", "train", "up", "wait_for_job", "wait_for_step"]


def up(
    topology: str,
    lab: str | None = None,
    settings: dict[str, Any] | None = None,
    driver: str = "auto",
    emulator: str = "auto",
    agents: bool = True,
    strict: bool = False,
    allow_uncertified: bool = False,
    configuration: Configuration = None,
) -> dict[str, Any]:
    """Bring up a lab and certify its fibers. ``settings`` are those of ``--set``: ``{"links.north.km": 80}``."""
    with translated():
        made = api.up(
            api.load(topology, settings),
            name=lab or (configuration or {}).get("testbed_lab") or None,
            driver=driver,
            emulator=emulator,
            agents=agents,
            strict=strict,
            allow_uncertified=allow_uncertified,
        )
        session.remember(made)
        measured = made.certificate
        return {
            "lab": made.name,
            "certified": measured is not None and measured.certified,
            "noisy": measured is not None and measured.noisy,
        }


def down(lab: str | None = None, configuration: Configuration = None) -> dict[str, Any]:
    """Take a lab down, whatever its state; for rollbacks. A missing lab is not an error."""
    with translated():
        name = lab or (configuration or {}).get("testbed_lab") or None
        if name is None:
            labs = api.lab_names()
            if not labs:
                return {"lab": None, "removed": False}
            name = lab_of(None, None).name
        session.forget(name)
        return {"lab": name, "removed": api.down(name)}


def train(
    steps: int = 500, lab: str | None = None, configuration: Configuration = None, **workload: Any
) -> dict[str, Any]:
    """Start the testbed's training job, which continues while the next activities run."""
    with translated():
        where = lab_of(lab, configuration)
        job = where.train(steps=steps, **workload)
        session.remember(where, job)
        return {"lab": where.name, "job": job.id, "run": str(where.run_directory.path) if where.run_directory else None}


def wait_for_step(
    step: int, timeout: str | float = 60.0, lab: str | None = None, configuration: Configuration = None
) -> int:
    """Wait until every rank has completed ``step``, and return the job's current step. Fails if the job fails."""
    with translated():
        job = job_of(lab_of(lab, configuration))
        job.wait_for(step, timeout=_seconds(timeout))
        return job.step


def wait_for_job(
    timeout: str | float = 600.0, lab: str | None = None, configuration: Configuration = None
) -> dict[str, Any]:
    """Wait until the job has succeeded, and return its report's path, goodput and recovery in seconds."""
    with translated():
        where = lab_of(lab, configuration)
        job_of(where).wait(timeout=_seconds(timeout))
        report = where.report()
        return {
            "verdict": report.verdict,
            "goodput": report.training.goodput,
            "recovery_s": report.training.recovery_s,
            "report": str(where.run_directory.path / "index.html") if where.run_directory else None,
        }


def stop_job(lab: str | None = None, configuration: Configuration = None) -> dict[str, Any]:
    """End the job after its current step; for rollbacks. A missing job is not an error."""
    with translated():
        try:
            job = job_of(lab_of(lab, configuration))
        except UserError:
            return {"stopped": False}
        job.stop()
        return {"stopped": True}


def inject(
    fault: str,
    target: str,
    parameters: dict[str, Any] | None = None,
    duration: str | float | None = None,
    wait: bool = False,
    lab: str | None = None,
    configuration: Configuration = None,
) -> dict[str, Any]:
    """Inject any fault of ``testbed ls faults``; the lab's keeper ends it after ``duration`` even if chaos has ended.

    ``duration`` is in seconds, or text with a unit ("10s"). With ``wait`` return when the fault has ended.
    """
    with translated():
        written = {key: str(value) for key, value in (parameters or {}).items()}
        for_s = None if duration is None else _seconds(duration)
        return _as_data(lab_of(lab, configuration).inject(fault, target, for_s=for_s, wait=wait, **written))


def cut(
    target: str,
    duration: str | float | None = None,
    carrier: str | None = None,
    lab: str | None = None,
    configuration: Configuration = None,
) -> dict[str, Any]:
    """Cut a link, one direction of it (``north:west``), or a duct with every link in it."""
    parameters = {} if carrier is None else {"carrier": carrier}
    return inject("cut", target, parameters, duration, lab=lab, configuration=configuration)


def heal(what: str | None = None, lab: str | None = None, configuration: Configuration = None) -> list[dict[str, Any]]:
    """End one fault (by its id or link) or all faults; the rollback of every experiment."""
    with translated():
        return [_as_data(fault) for fault in lab_of(lab, configuration).heal(what)]


def _as_data(fault: Fault) -> dict[str, Any]:
    return {
        "id": fault.id,
        "type": fault.type,
        "target": fault.target,
        "links": list(fault.links),
        "began_unix_s": fault.began_unix_s,
        "over": fault.ended is not None,
    }


def _seconds(written: str | float) -> float:
    try:
        return float(written) if isinstance(written, int | float) else parse_duration_s(written)
    except Unreadable as error:
        raise UserError(str(error)) from error
