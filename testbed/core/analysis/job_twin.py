"""The twin of a job from its records: what its strategy had to do, for everything that compares or counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.core.fields import integer, text
from testbed.core.records.rank_log import JobRecord, RankLog
from testbed.core.training.layout import FLOAT32_BYTES, Layout, Tensor, asleep_tensors, gpt_tensors
from testbed.core.training.strategies_built import BUILT
from testbed.core.training.twin import Twin
from testbed.core.workload.workload import AgentWorkload

__all__ = ["layout_of", "strategy_words", "twin_of"]


def twin_of(logs: Sequence[RankLog], workload: Mapping[str, object] | None = None) -> Twin | None:
    """Return the twin of a run's job; None for an unknown strategy, or while ranks or the model's size are unknown.

    ``workload`` is that of run.json, which has the model's shape where it is not the default.
    """
    jobs = [log.job for log in sorted(logs, key=lambda log: log.rank) if log.job]
    made = BUILT.get(jobs[0].strategy or jobs[0].scheme) if jobs else None
    if made is None:
        return None
    layout = layout_of(jobs, workload or {})
    if layout is None:
        return None
    options = jobs[0].options
    return made(
        {option.name: options[option.argument] for option in made.options if option.argument in options}, layout
    )


def strategy_words(logs: Sequence[RankLog]) -> str:
    """Return strategy and options as in ``diloco:every=50``; empty if no rank recorded a job."""
    job = next((log.job for log in logs if log.job), None)
    if job is None:
        return ""
    made = BUILT.get(job.strategy or job.scheme)
    names = {option.argument: option.name for option in made.options} if made else {}
    options = ",".join(f"{names.get(key, key)}={value}" for key, value in job.options.items() if value is not None)
    return (job.strategy or job.scheme) + (f":{options}" if options else "")


def layout_of(jobs: Sequence[JobRecord], workload: Mapping[str, object]) -> Layout | None:
    """Return who trained what; None unless all ranks recorded their site and the first one its model's bytes."""
    first = jobs[0]
    tensors = _tensors(first, workload)
    if not tensors or len(jobs) != first.world_size:
        return None
    return Layout(
        sites=tuple(job.site for job in jobs),
        tensors=tensors,
        tokens=first.tokens or 0,
        context=_shape(workload, "context"),
        width=_shape(workload, "width"),
        layers=integer(first.compute, "layers") or _shape(workload, "layers"),
        steps=first.steps or 0,
        step_s=max((job.declared_s or 0.0 for job in jobs), default=0.0) or None,
        speeds={job.site: job.speed for job in jobs if job.speed != 1.0},
    )


def _tensors(job: JobRecord, workload: Mapping[str, object]) -> tuple[Tensor, ...]:
    """Return the model's tensors: as recorded, else by its shape, else one of its size."""
    if text(job.compute, "kind") == "declared" and job.parameters:
        return asleep_tensors(job.parameters, integer(job.compute, "layers") or 1)
    if job.tensor_elements:
        return tuple(Tensor(str(index), elements) for index, elements in enumerate(job.tensor_elements))
    if job.gradient_bytes is None:
        return ()
    elements = job.gradient_bytes // FLOAT32_BYTES
    tensors = gpt_tensors(*(_shape(workload, key) for key in ("layers", "width", "context")))
    return tensors if sum(record.elements for record in tensors) == elements else (Tensor("model", elements),)


def _shape(workload: Mapping[str, object], key: str) -> int:
    size = integer(workload, key)
    default: int = getattr(AgentWorkload, key)
    return default if size is None else size
