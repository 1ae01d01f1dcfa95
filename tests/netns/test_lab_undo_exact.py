"""The undo contract on fiberd: no trace of a fault in any namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.conditions import LABS
from builders.labs import Lab
from contract.undo_contract import EachUndoContract, lab_of_all_faults

pytestmark = LABS


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Lab]:
    with lab_of_all_faults(tmp_path_factory.mktemp("t"), "fiberd") as made:
        yield made


class TestUndoOnFiberd(EachUndoContract):
    """All of it."""
