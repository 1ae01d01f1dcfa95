"""The undo contract on netem, where `tc` shows each value of a direction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.undo_contract import SHAPED, UndoContract, lab_of_all_faults
from oracles import exact_state, oracle

import testbed
from testbed.host.emulators.netem import available

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [pytest.mark.netns, pytest.mark.timing("a lab within its time limits")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[testbed.Lab]:
    with lab_of_all_faults(tmp_path_factory.mktemp("t"), "netem") as made:
        yield made


class TestUndoOnNetem(UndoContract):
    # The machine in which this runs is slow: elsewhere, and after each fault by itself, fiberd's test looks.
    nodes = ("plant", "east-gw")


def test_each_shape_is_seen_by_tc_and_undone(lab: testbed.Lab) -> None:
    plant = oracle.netns(lab.name, "plant")
    devices = [link["ifname"] for link in oracle.ip(plant, "link", "show")]

    def shapes() -> exact_state.Picture:
        return exact_state.traffic_control(plant, devices)

    before = shapes()
    for fault, target, parameters in SHAPED:
        with lab.inject(fault, target, **parameters):
            if parameters != {"path": "protection"}:
                oracle.until(lambda: shapes() != before, 5.0, f"{fault} {target} is seen")
        lab.heal()
        oracle.until(lambda: shapes() == before, 5.0, f"{fault} {target} is undone")
