"""Probes for Chaos Toolkit: the current state of a lab, for steady-state hypotheses."""

from __future__ import annotations

from testbed.chaos.session import Configuration, job_of, lab_of, translated
from testbed.lab.jobs.job import Job
from testbed.lab.lab import Lab

__all__ = ["certified", "faults_standing", "job_alive", "links_lit", "ranks_up", "step", "train_loss"]


def links_lit(lab: str | None = None, configuration: Configuration = None) -> int:
    """Return the number of links with carrier at both ends."""
    with translated():
        return sum(all(link.carrier.values()) for link in lab_of(lab, configuration, changes=False).status().links)


def ranks_up(lab: str | None = None, configuration: Configuration = None) -> int:
    """Return the number of ranks that have a process."""
    with translated():
        return sum(rank.state != "gone" for rank in lab_of(lab, configuration, changes=False).status().ranks)


def faults_standing(lab: str | None = None, configuration: Configuration = None) -> int:
    """Return the number of active faults."""
    with translated():
        return sum(fault.ended is None for fault in lab_of(lab, configuration, changes=False).faults())


def certified(thorough: bool = False, lab: str | None = None, configuration: Configuration = None) -> bool:
    """Measure every fiber in both directions, and return whether all are within tolerance."""
    with translated():
        return lab_of(lab, configuration).certify(thorough=thorough).certified


def step(lab: str | None = None, configuration: Configuration = None) -> int:
    """Return the latest step that every rank of the job has completed."""
    with translated():
        return _job(lab, configuration).step


def train_loss(lab: str | None = None, configuration: Configuration = None) -> float | None:
    """Return the train_loss of the last step, mean over ranks, in nats per byte; None before the first step."""
    with translated():
        job = _job(lab, configuration)
        _ = job.step  # reads new records
        loss = job.last.get("train_loss")
        return None if loss is None else float(loss)


def job_alive(lab: str | None = None, configuration: Configuration = None) -> bool:
    """Return whether the job is running or has succeeded."""
    with translated():
        return not _job(lab, configuration).failure()


def _job(lab: str | None, configuration: Configuration) -> Job:
    where: Lab = lab_of(lab, configuration, changes=False)
    return job_of(where)
