"""Calibration in the keeper: what comes off a delay is subtracted in one place, and its undo restores exactly."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from builders.noop import NoHandler, NoopEmulator
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.plan import codec
from testbed.core.plan.properties import Calibrated, Shape
from testbed.core.plan.resources import Fibers
from testbed.core.plan.step import Property
from testbed.host.emulators import fiberd
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.handlers import EmulatorHandler
from testbed.keeper.journal import Journal

WEST, EAST = "north:west", "north:east"
OWN = Impairment(200e-6, 8e8, 100_000)
DIRECTIONS = (EmulatedDirection(WEST, "north-a", "north-b", OWN), EmulatedDirection(EAST, "north-b", "north-a", OWN))
FIBERS = Fibers("plant", DIRECTIONS)
BASE = (FIBERS, *(Shape(it.name, it.impairment) for it in DIRECTIONS))
OFF = {WEST: 12e-6, EAST: 9e-6}
CALIBRATION = tuple(Calibrated(name, off) for name, off in OFF.items())

_numbers = itertools.count()


class Plant:
    """An engine with the keeper's own handler of the emulator, on an emulator that records."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fiberd.Fiberd, "start", lambda plant, directions, *rest: NoopEmulator(directions))
        # A wait without a limit returns at once, as from an emulator that has ended: nobody is to notice here.
        monkeypatch.setattr(EmulatorHandler, "_supervise", lambda self, emulator: None)
        driver: Any = type("Driver", (), {"path": lambda self, node: Path("/nowhere")})()
        self.handler = EmulatorHandler(driver, folder / "log", lambda status: None)
        journal = Journal.create(folder / f"journal-{next(_numbers)}", "lab", "boot", (1, 1))
        kinds = {Fibers: self.handler, Shape: self.handler, Calibrated: self.handler}
        self.engine = Engine(journal, {**dict.fromkeys(kinds, NoHandler()), **kinds})
        self.engine.apply(LAB, BASE)

    @property
    def impairments(self) -> dict[str, Impairment]:
        assert isinstance(self.handler.emulator, NoopEmulator)
        return self.handler.emulator.impairments

    def delays_us(self) -> list[float]:
        """Return the delays of WEST and EAST."""
        return [round(self.impairments[direction].delay_s * 1e6, 6) for direction in (WEST, EAST)]

    def apply(self, owner: str, *steps: Property) -> list[float]:
        self.engine.apply(owner, steps)
        return self.delays_us()

    def undo(self, owner: str) -> list[float]:
        self.engine.undo(owner)
        return self.delays_us()


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    return Plant(tmp_path, monkeypatch)


def test_it_comes_off_the_links_own_delay_and_each_faults(plant: Plant) -> None:
    assert plant.apply("calibration", *CALIBRATION) == [188, 191]
    assert plant.apply("f1", Shape(WEST, Impairment(5e-3))) == [4988, 191]
    assert plant.apply("f2", Shape(WEST, Impairment(5e-6))) == [0, 191], "never below 0"
    assert plant.undo("f2") == [4988, 191]
    assert plant.undo("f1") == [188, 191]


def test_calibration_under_way_overrides_everything_and_leaves_nothing(plant: Plant) -> None:
    assert plant.apply("calibration", Calibrated(WEST, 0.0, plain_s=0.0)) == [0, 200]
    plant.undo("calibration")
    assert plant.impairments == {WEST: OWN, EAST: OWN}
    assert plant.handler.taken_off_s == {}


def test_the_handler_has_what_is_taken_off(plant: Plant) -> None:
    plant.apply("calibration", *CALIBRATION)
    assert plant.handler.taken_off_s == OFF


@settings(max_examples=50, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["f1", "f2", "f3", "calibration"]), st.sampled_from([5e-6, 1e-3, 5e-3])), max_size=12
    )
)
def test_faults_and_calibration_in_any_order_end_in_the_calibrated_own_delay(
    steps: list[tuple[str, float]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant = Plant(tmp_path_factory.mktemp("plant"), monkeypatch)
        active: dict[str, tuple[str, float]] = {}
        calibrated = False
        for number, (owner, delay_s) in enumerate(steps):
            if owner == "calibration":
                plant.undo(owner) if calibrated else plant.apply(owner, *CALIBRATION)
                calibrated = not calibrated
            elif owner in active:
                plant.undo(active.pop(owner)[0])
            else:
                active[owner] = (f"{owner}.{number}", delay_s)  # each fault has an id of its own
                plant.apply(active[owner][0], Shape(WEST, Impairment(delay_s)))
            expected = ([delay_s for _, delay_s in active.values()] or [200e-6])[-1] - calibrated * OFF[WEST]
            assert plant.impairments[WEST].delay_s == pytest.approx(max(0.0, expected), abs=1e-12)


def test_it_is_journalled_as_any_step() -> None:
    for step in (*CALIBRATION, Calibrated(WEST, 1e-6, plain_s=2e-4)):
        assert codec.from_dict(codec.to_dict(step)) == step
        assert step.direction in str(step)
