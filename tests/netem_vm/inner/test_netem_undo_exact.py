"""The contract of undoing, on netem, where `tc` shows each value of a direction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.undo_contract import UndoContract, lab_of_all_faults

import testbed
from testbed.host.netem import available

WHY_NOT = available() if os.geteuid() == 0 else "needs root"
if WHY_NOT:
    pytest.skip(f"netem: {WHY_NOT}; test_in_vm.py runs this on a kernel that has it", allow_module_level=True)
pytestmark = pytest.mark.netns


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[testbed.Lab]:
    with lab_of_all_faults(tmp_path_factory.mktemp("t"), "netem") as made:
        yield made


class TestUndoOnNetem(UndoContract):
    shows_shapes = True
