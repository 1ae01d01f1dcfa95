"""Probes for Chaos Toolkit: what is true of a lab at this moment, for steady-state hypotheses."""

from __future__ import annotations

from testbed.chaos.session import Configuration, job_of, lab_of, translated
from testbed.lab.jobs.job import Job
from testbed.lab.lab import Lab

__all__ = ["certified", "faults_standing", "job_alive", "links_lit", "ranks_up", "step", "train_loss"]


def links_lit(lab: str | None = None, configuration: Configuration = None) -> int:
    """How many links have their carrier at both ends."""
    with translated():
        return sum(all(link.carrier.values()) for link in lab_of(lab, configuration).status().links)


def ranks_up(lab: str | None = None, configuration: Configuration = None) -> int:
    """How many ranks have a process."""
    with translated():
        return sum(rank.state != "gone" for rank in lab_of(lab, configuration).status().ranks)


def faults_standing(lab: str | None = None, configuration: Configuration = None) -> int:
    """How many faults are in force."""
    with translated():
        return sum(fault.ended is None for fault in lab_of(lab, configuration).faults())


def certified(thorough: bool = False, lab: str | None = None, configuration: Configuration = None) -> bool:
    """Measure every fiber now, both ways; whether all are within tolerance."""
    with translated():
        return lab_of(lab, configuration).certify(thorough=thorough).certified


def step(lab: str | None = None, configuration: Configuration = None) -> int:
    """The step that every rank of the job has done."""
    with translated():
        return _job(lab, configuration).step


def train_loss(lab: str | None = None, configuration: Configuration = None) -> float | None:
    """Of the last step, mean over ranks, in nats per byte; None before the first."""
    with translated():
        job = _job(lab, configuration)
        _ = job.step  # reads what is new
        found = job.last.get("train_loss")
        return None if found is None else float(found)


def job_alive(lab: str | None = None, configuration: Configuration = None) -> bool:
    """Whether the job goes on, or has ended well."""
    with translated():
        return not _job(lab, configuration).failure()


def _job(lab: str | None, configuration: Configuration) -> Job:
    where: Lab = lab_of(lab, configuration)
    return job_of(where)
