"""The experiments in experiments/: each is runnable, has a lesson, and is in docs/experiments.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.core.experiment import expect, fault_schedule, steady
from testbed.host.files import catalog

DOCS = (Path(__file__).parents[4] / "docs" / "experiments.md").read_text(encoding="utf-8")
FAULTS = (Path(__file__).parents[4] / "docs" / "faults.md").read_text(encoding="utf-8")


def test_there_are_a_dozen() -> None:
    assert len(catalog.list_experiments()) >= 12


@pytest.mark.parametrize("name", catalog.list_experiments())
def test_each_fits_its_topology_and_says_what_it_teaches(name: str) -> None:
    experiment = catalog.load_experiment(name)
    assert experiment.topology is not None
    topology = catalog.load_topology(experiment.topology, experiment.set)
    assert fault_schedule.plan(experiment, topology)
    assert 30 <= len(experiment.teaches) <= 130
    assert experiment.expectations
    assert experiment.text.startswith(f"# {name}: ")
    assert f"| `{name}` |" in DOCS


def test_the_metrics_are_in_the_docs() -> None:
    for metric in (*expect.METRICS, *steady.METRICS):
        assert f"`{metric}`" in DOCS


def test_the_example_of_the_docs_is_a_good_file(tmp_path: Path) -> None:
    (example,) = [it for it in re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL) if it.startswith("teaches:")]
    (tmp_path / "x.yaml").write_text(example)
    experiment = catalog.load_experiment(str(tmp_path / "x.yaml"))
    assert experiment.topology is not None
    assert len(fault_schedule.plan(experiment, catalog.load_topology(experiment.topology, experiment.set))) > 3


def test_the_causes_are_in_the_docs_with_their_times() -> None:
    from testbed.core.faults.causes import CAUSES

    for cause in CAUSES.values():
        (row,) = [line for line in FAULTS.splitlines() if line.startswith(f"| `{cause.name}` |")]
        assert cause.source in row
        value, unit = re.findall(r"\| ([\d.]+) (h|d) \(", row)[0]
        assert float(value) * {"h": 3600, "d": 86400}[unit] == cause.repair_s[1]
