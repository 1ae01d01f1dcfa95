"""Actions for Chaos Toolkit. Each returns what it did, as plain data for the journal of ``chaos run``."""

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
    allow_uncertified: bool = False,
    configuration: Configuration = None,
) -> dict[str, Any]:
    """Bring a lab up and measure its fibers. ``settings`` as in ``--set``: ``{"links.north.km": 80}``."""
    with translated():
        made = api.up(
            api.load(topology, settings),
            name=lab or (configuration or {}).get("testbed_lab") or None,
            driver=driver,
            emulator=emulator,
            agents=agents,
            allow_uncertified=allow_uncertified,
        )
        session.remember(made)
        return {"lab": made.name, "certified": made.certificate is not None and made.certificate.certified}


def down(lab: str | None = None, configuration: Configuration = None) -> dict[str, Any]:
    """Take a lab down, whatever state it is in; a rollback. One that is not there is no error."""
    with translated():
        name = lab or (configuration or {}).get("testbed_lab") or None
        if name is None:
            known = api.lab_names()
            if not known:
                return {"lab": None, "removed": False}
            name = lab_of(None, None).name
        session.forget(name)
        return {"lab": name, "removed": api.down(name)}


def train(
    steps: int = 500, lab: str | None = None, configuration: Configuration = None, **workload: Any
) -> dict[str, Any]:
    """Begin the testbed's training job; it goes on while the next activities run."""
    with translated():
        where = lab_of(lab, configuration)
        job = where.train(steps=steps, **workload)
        session.remember(where, job)
        return {"lab": where.name, "job": job.id, "run": str(where.run_directory.path) if where.run_directory else None}


def wait_for_step(
    step: int, timeout: str | float = 60.0, lab: str | None = None, configuration: Configuration = None
) -> int:
    """Return when every rank has done ``step``; the step that the job has come to. Fails when the job does."""
    with translated():
        job = job_of(lab_of(lab, configuration))
        job.wait_for(step, timeout=_seconds(timeout))
        return job.step


def wait_for_job(
    timeout: str | float = 600.0, lab: str | None = None, configuration: Configuration = None
) -> dict[str, Any]:
    """Return when the job has ended well, with its report's path, goodput and recovery in seconds."""
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
    """End the job after the step that it is in; a rollback. None that was begun is no error."""
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
    """Any fault of ``testbed ls faults``; the keeper of the lab ends it after ``duration``, whatever becomes of us.

    ``duration`` in seconds, or as people write it ("10s"). With ``wait`` return when it is over.
    """
    with translated():
        written = {key: str(value) for key, value in (parameters or {}).items()}
        for_s = None if duration is None else _seconds(duration)
        return _told(lab_of(lab, configuration).inject(fault, target, for_s=for_s, wait=wait, **written))


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
    """End one fault (its id, or its link), or all: the rollback of every experiment."""
    with translated():
        return [_told(it) for it in lab_of(lab, configuration).heal(what)]


def _told(fault: Fault) -> dict[str, Any]:
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
