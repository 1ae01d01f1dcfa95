"""Which files of a host an experiment names beside its own: they go along where it goes to another host or a pod."""

from __future__ import annotations

from testbed.core.experiment.experiment_schema import Experiment

__all__ = ["named_files", "program_folder"]


def named_files(experiment: Experiment) -> tuple[str, ...]:
    """Return the paths of its topology, unless that is a shipped one, and of its data; seen from the current folder."""
    topology, workload = experiment.topology, experiment.workload
    paths = [topology] if topology is not None and ("/" in topology or topology.endswith((".yaml", ".yml"))) else []
    if workload.data:
        paths.append(workload.data)
    return tuple(paths)


def program_folder(experiment: Experiment) -> str | None:
    """Return the folder that its program runs in, seen from the experiment's file; None if agents train."""
    return experiment.workload.program_folder
