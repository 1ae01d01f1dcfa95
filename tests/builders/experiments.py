"""Experiments of tests, and the file that a run leaves."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.experiment import replay
from testbed.core.experiment.experiment_schema import Experiment, load_text
from testbed.core.experiment.fault_schedule import Planned


def load(text: str) -> Experiment:
    return load_text(text.encode(), "x.yaml")


def replayed(experiment: Experiment, planned: Sequence[Planned] = ()) -> Experiment:
    """Return the experiment of the file that repeats a run with ``planned`` faults."""
    text = replay.to_yaml(
        experiment, planned, topology="metro-40km", overrides=experiment.set, workload=experiment.workload
    )
    return load_text(text.encode(), "again.yaml")
