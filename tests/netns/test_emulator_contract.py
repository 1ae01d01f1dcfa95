"""The emulator contract on fiberd and this machine's kernel."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.emulator_contract import EmulatorContract, Start, directions, lab  # noqa: F401
from netns.fiberd_lab import Lab

from testbed.core.physics.impairment import Impairment
from testbed.host.emulators.fiberd import Fiberd

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: needs root"),
    pytest.mark.skipif(not shutil.which("iperf3"), reason="iperf3 is missing"),
]


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
