"""Hostile ends of every strategy, as ``tests/hostile_ends.py`` does and checks them: one test for each of its cells."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import hostile_ends
import pytest
from builders.conditions import THOROUGH, TORCH

pytestmark = [*THOROUGH, TORCH]

_undisturbed: dict[str, dict[str, Any]] = {}
"""By strategy, the cell with whose parameters those of a restarted job are compared."""


@pytest.fixture(scope="module")
def bed(state_folder: object) -> Iterator[hostile_ends.Bed]:
    with hostile_ends.bed() as found:
        yield found
        assert found.down() == []


@pytest.mark.parametrize("end", hostile_ends.ENDS)
@pytest.mark.parametrize("way", hostile_ends.WAYS)
def test_a_hostile_end(bed: hostile_ends.Bed, way: str, end: str) -> None:
    if way.startswith("torchft") and importlib.util.find_spec("torchft") is None:
        pytest.skip("needs the extra torchft")
    if way not in _undisturbed:
        _undisturbed[way] = hostile_ends.cell(bed, way, "undisturbed")
    found = _undisturbed[way] if end == "undisturbed" else hostile_ends.cell(bed, way, end, _undisturbed[way])
    assert found["wrong"] == [], found["said"]
