"""What a run says of strategy and declared compute before anything is built."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from testbed.core.topology import resolve
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import FileMistakes, UserError
from testbed.lab.jobs import workload_notes

module = importlib.import_module("testbed.lab.run.prepared_run")


def prepared(what: str, **said: Any) -> Any:
    return module.prepare(what, said)


def test_words_beside_a_topology_stand_in_for_the_experiment() -> None:
    found = prepared("metro-40km", strategy="diloco:every=25", compute="80ms", model="1.3B")
    assert (found.workload.strategy, found.workload.options) == ("diloco", {"every": 25})
    assert found.workload.compute == DeclaredCompute(0.08, model=1.3e9)
    assert found.notes[0].startswith("compute is declared: 80 ms a step; at full scale 1.3 B parameters")
    assert any("train_loss_drop > 0 is not judged" in it for it in found.notes)
    assert "train_loss" not in found.again and '"every": 25' in found.again
    real = prepared("metro-40km", compute="real:80ms")
    assert any(it.metric == "train_loss_drop" for it in real.experiment.expectations)


def test_mistakes_of_words_and_files_have_their_place(tmp_path: Path) -> None:
    with pytest.raises(FileMistakes) as caught:
        prepared("metro-40km", strategy="streaming-diloco:fragments=99,every=3,overlap=5")
    assert [it.file for it in caught.value.findings] == ["--strategy", "--strategy"]
    file = tmp_path / "x.yaml"
    file.write_text(
        "topology: metro-40km\nworkload:\n  strategy: streaming-diloco\n  every: 3\n  overlap: 5\n  fragments: 99\n"
    )
    with pytest.raises(FileMistakes) as caught:
        prepared(str(file))
    assert [(it.file, it.line) for it in caught.value.findings] == [(str(file), 5), (str(file), 6)]


def test_a_fault_that_waits_for_a_real_loss_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "topology: metro-40km\nschedule:\n  - {when: train_loss < 3, inject: cut, target: north, for: 1s}\n"
    )
    with pytest.raises(UserError, match="train_loss < 3: train_loss tells nothing of a model that sleeps"):
        prepared(str(file), compute="80ms")
    assert prepared(str(file), compute="real:80ms").workload.compute == DeclaredCompute(0.08, True)


def test_what_the_cores_cannot_carry_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 ranks at 22 ms of CPU on two cores need 440 ms a step."""
    sites = "{east: {nodes: 20}, west: {nodes: 20}}"
    topology = resolve.load_text(
        f"name: x\nsites: {sites}\nlinks: {{north: {{between: [east, west], km: 40}}}}\n".encode(), "x.yaml"
    )
    monkeypatch.setattr(workload_notes, "cores", lambda: 2)

    def notes(seconds: float) -> tuple[str, ...]:
        workload = AgentWorkload(compute=DeclaredCompute(seconds))
        found: tuple[str, ...] = workload_notes.declared_notes(workload, topology)
        return found

    assert len(notes(0.45)) == 1
    _, bound = notes(0.2)
    assert bound.startswith("CPU-bound here: 40 ranks need 22 ms of CPU each per step, 2.2 times what 2 cores have")
    assert "declare 440 ms or more" in bound
    assert workload_notes.declared_notes(AgentWorkload(), topology) == ()
