"""Overlapping faults without any emulator: many more of them, and what `status` says of who made a value."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from builders.noop import NoopEmulator
from contract.fold_contract import PLANS, Ports, World
from hypothesis import HealthCheck, Phase, example, given, settings
from oracles.fold_oracle import OWN, Fault

from testbed.core.physics.impairment import EmulatedDirection, Impairment


class Remembering(NoopEmulator):
    """Has what it was given last."""

    def __init__(self) -> None:
        super().__init__([EmulatedDirection(f"l0:{end}", "l0-a", "l0-b", Impairment()) for end in "ba"])
        self.impairments: dict[str, Impairment] = {}

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        assert not [finding for impairment in changes.values() for finding in impairment.findings()]
        self.impairments |= changes

    def read_back(self, direction: str) -> Mapping[str, Any]:
        values = self.impairments[direction]
        chain = values.chain
        return {
            "delay": values.delay_s,
            "rate": values.rate_bps,
            "queue": values.queue_bytes,
            "largest": values.largest_bytes,
            "loss": 0.0 if chain else values.loss,
            "burst": (chain.p, chain.r, chain.h, chain.k) if chain else None,
            "corrupt": values.corrupt,
            "corrupt_survives": values.corrupt_survives,
            "duplicate": values.duplicate,
            "jitter": (values.jitter_s, values.jitter_distribution, values.jitter_reorders),
            "reorder": (values.reorder, values.reorder_by_s),
        }


LOSS = Fault("impair", "l0", {"loss": "5%"}, [{"loss": 0.05}])
EXTRA = Fault("latency-step", "l0", {"extra": "1ms"}, [{"extra": 1e-3}])


def test_any_faults_in_any_order_leave_the_fold_of_those_in_force(tmp_path: Path) -> None:
    numbers = itertools.count()
    seen = {"begin": 0, "standing together": 0}

    @settings(
        max_examples=2000 if os.environ.get("TESTBED_THOROUGH") else 120,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(moves=PLANS, order=st.lists(st.integers(0, 20), max_size=8))
    @example([("begin", LOSS), ("begin", EXTRA)], [0, 0])
    @example([("begin", EXTRA), ("begin", LOSS)], [1, 0])
    def play(moves: Sequence[tuple[str, Any]], order: Sequence[int]) -> None:
        emulator = Remembering()
        world = World(Ports(), emulator, emulator.read_back, tmp_path / f"{next(numbers)}.jsonl")
        world.check()
        world.play(moves)
        seen["begin"] += len(world.standing)
        seen["standing together"] = max(seen["standing together"], len(world.standing))
        world.heal_from_the_journal(order)
        world.journal.path.unlink()

    play()
    assert seen["begin"] > 150 and seen["standing together"] >= 4, "there was something to fold"


@pytest.fixture
def world(tmp_path: Path) -> World:
    emulator = Remembering()
    return World(Ports(), emulator, emulator.read_back, tmp_path / "journal.jsonl")


def in_force(world: World, direction: str = "l0:b") -> dict[str, tuple[str, str]]:
    """Return each value of a direction, and who made it."""
    (state,) = [state for state in world.in_force.all() if state["direction"] == direction]
    return {value["key"]: (value["text"], " ".join(value["by"])) for value in state["values"]}


def test_each_value_has_who_made_it(world: World) -> None:
    world.play([("begin", LOSS), ("begin", EXTRA)])
    assert in_force(world) == {
        "delay": ("6 ms", "link f2"),
        "rate": ("100 Mb/s", "link"),
        "queue": ("200 kB", "link"),
        "loss": ("5.19%", "link f1"),
    }
    world.play([("begin", Fault("impair", "l0:b", {"delay": "9ms"}, [{"delay": 9e-3}])), ("second path", True)])
    assert in_force(world)["delay"] == ("10 ms", "f3 f2")
    assert in_force(world, "l0:a")["delay"] == ("8 ms", "protection f2")
    assert OWN["loss"] == 0.002, "the loss above is 1 - (1 - 0.002) (1 - 0.05)"


def test_masked_values_and_dark_directions_are_listed(world: World) -> None:
    first = Fault("jitter", "l0:b", {"amount": "10us"}, [{"jitter": (1e-5, "normal", False)}])
    second = Fault("jitter", "l0", {"amount": "20us"}, [{"jitter": (2e-5, "normal", False)}])
    cut = Fault("cut", "l0:b", {}, [{}], [frozenset({"l0-b"})])
    silent = Fault("cut", "l0:b", {"carrier": "silent"}, [{"dark": True}])
    world.play([("begin", fault) for fault in (first, second, cut, silent)])
    there, back = world.in_force.all()
    assert there["masked"] == [{"fault": "f1", "key": "jitter"}]
    assert there["dark_by"] == ["f3", "f4"]
    # West's port, which has no light, does not send either.
    assert (back["masked"], back["dark_by"]) == ([], ["f3"])
    assert in_force(world)["jitter"] == ("20 us normal", "f2")


def test_events_have_what_is_in_force_after_each_of_them(world: World) -> None:
    flap = Fault(
        "flap", "l0", {"down": "100s", "up": "100s"}, [{}, {}], [frozenset({"l0-a", "l0-b"}), frozenset()], True
    )
    world.play([("begin", LOSS), ("begin", flap), ("advance", 1), ("heal", 0), ("heal", 0)])
    states = [(event["event"], event["in_force"]["l0:a"]) for event in world.faults._events.since(0, 0)["events"]]
    assert [(kind, state["dark_by"], [value["key"] for value in state["values"]]) for kind, state in states] == [
        ("fault-began", [], ["loss"]),
        ("fault-began", ["f2"], ["loss"]),
        ("fault-phase", [], ["loss"]),
        ("fault-ended", [], []),
        ("fault-ended", [], []),
    ]
