"""Overlapping faults on fiberd, whose values are read back over its control socket."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from builders.conditions import LABS
from contract.emulator_contract import directions, lab  # noqa: F401
from contract.fold_contract import PLANS, RealPorts, World
from hypothesis import HealthCheck, Phase, given, settings
from netns.fiberd_lab import Lab
from oracles.fold_oracle import TOPOLOGY

from testbed.core.topology.resolve import load_text
from testbed.host.emulators.fiberd import Fiberd

pytestmark = LABS


@pytest.fixture
def fiberd(lab: Lab, tmp_path: Path) -> Iterator[Fiberd]:  # noqa: F811
    link = load_text(TOPOLOGY, "l0.yaml").link("l0")
    there, back = (link.impairment(it) for it in ("l0:b", "l0:a"))
    emulator = Fiberd.start(lab.plant, directions(lab, there, back), 7, tmp_path / "fiberd.log")
    yield emulator
    emulator.stop()


def read_back(emulator: Fiberd, direction: str) -> Mapping[str, Any]:
    """The answer of ``get``, whose keys are described in testbed/fiberd/control.h."""
    (line,) = emulator._ask([f"get {direction}"], collect=True)
    kind, name, *words = line.split()
    assert (kind, name) == ("values", direction)
    it = dict(word.split("=") for word in words)
    p, r, h, k = (float(it[key]) for key in "prhk")
    assert float(it["correlation"]) == 0.0
    assert it["overhead_bytes"] == "24"
    return {
        "delay": int(it["delay_ns"]) / 1e9,
        "rate": float(it["rate_bps"]),
        "queue": int(it["queue_bytes"]),
        "largest": int(it["largest_bytes"]),
        "loss": float(it["loss"]),
        "burst": (p, r, h, k) if p else None,
        "corrupt": float(it["corrupt"]),
        "corrupt_survives": it["corrupt_survives"] == "1",
        "duplicate": float(it["duplicate"]),
        "jitter": (int(it["jitter_ns"]) / 1e9, it["distribution"], it["jitter_reorders"] == "1"),
        "reorder": (float(it["reorder"]), int(it["reorder_by_ns"]) / 1e9),
    }


def test_any_faults_in_any_order_leave_the_fold_of_those_in_force(
    lab: Lab,  # noqa: F811
    fiberd: Fiberd,
    tmp_path: Path,
) -> None:
    numbers = itertools.count()

    @settings(
        max_examples=300 if os.environ.get("TESTBED_THOROUGH") else 60,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(moves=PLANS, order=st.lists(st.integers(0, 20), max_size=8))
    def play(moves: Sequence[tuple[str, Any]], order: Sequence[int]) -> None:
        path = tmp_path / f"journal{next(numbers)}.jsonl"
        world = World(RealPorts(lab), fiberd, lambda direction: read_back(fiberd, direction), path)
        world.check()
        world.play(moves)
        assert world.in_force.differences(fiberd.differences) == []
        world.heal_from_the_journal(order)

    play()
