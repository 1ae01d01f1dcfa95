"""The emulator contract on fiberd and this machine's kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.conditions import IPERF3, LABS
from contract.emulator_contract import EmulatorContract, Start, directions, lab  # noqa: F401
from netns.fiberd_lab import Lab

from testbed.core.physics.impairment import Impairment
from testbed.host.emulators.fiberd import Fiberd

pytestmark = [*LABS, IPERF3]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[Fiberd] = []

    def begin(lab: Lab, there: Impairment, back: Impairment) -> Fiberd:  # noqa: F811
        running.append(Fiberd.start(lab.plant, directions(lab, there, back), 7, tmp_path / "fiberd.log"))
        return running[-1]

    yield begin
    for emulator in running:
        emulator.stop()


class TestFiberd(EmulatorContract):
    pass
