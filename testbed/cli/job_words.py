"""Jobs of a lab in sentences, for ``status``, ``stop`` and ``attach``; nothing here prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.core.units import format_duration, format_number

if TYPE_CHECKING:
    from testbed.lab.job_status import JobStatus

__all__ = ["figures", "line", "reached", "state"]


def line(job: JobStatus) -> str:
    """Return a job with its figures in one line, for ``status``."""
    run = f"; {job.run}" if job.run else ""
    asked = ", stopping" if job.state == "stopping" else ""
    told = figures(job)
    return f"job {job.id}{asked}: {job.kind}, {job.what}{': ' + told if told else ''}{run}"


def figures(job: JobStatus) -> str:
    """Return what is known of a job's progress: ``step 120/500, 4,512 tokens/s, train_loss 2.41, for 20 s``."""
    said = [f"step {reached(job)}"] if job.step is not None else []
    if job.tokens_per_s is not None:
        said.append(f"{job.tokens_per_s:,.0f} tokens/s")
    if job.train_loss is not None:
        said.append(f"train_loss {format_number(job.train_loss, 4)}")
    if job.elapsed_s:
        said.append(f"for {format_duration(round(job.elapsed_s), 3)}")
    return ", ".join(said)


def state(job: JobStatus) -> str:
    """Return how a job stands, in a sentence for a person who asked for its end."""
    where = f" at step {step}" if (step := reached(job)) else ""
    return f"{job.id}: {job.state}{where}" + (f": {job.why}" if job.why else "")


def reached(job: JobStatus) -> str:
    """Return the step of a job, of how many if that is known; empty if it reports none."""
    if job.step is None:
        return ""
    return f"{job.step}/{job.steps}" if job.steps is not None else str(job.step)
