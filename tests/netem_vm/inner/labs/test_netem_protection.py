"""The protection contract on netem."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.protection_contract import ProtectionContract, protected_lab

import testbed
from testbed.host.emulators.netem import available

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = [pytest.mark.netns, pytest.mark.timing("a lab within its time limits")]

SWITCH_S = 0.4


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[testbed.Lab]:
    with protected_lab(tmp_path_factory.mktemp("t"), "netem", SWITCH_S) as made:
        yield made


class TestProtectionOnNetem(ProtectionContract):
    # Between the two changes of a switch netem is read back by tc, whose start alone takes 45 ms in this machine, and
    # its one CPU is away for tens of milliseconds at a time: 50 ms cannot be told here.
    switch_s = SWITCH_S
    every_s = 0.004
    late_s = 0.3
