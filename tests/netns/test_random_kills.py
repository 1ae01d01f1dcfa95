"""A few rounds of tests/random_kills.py, which can run any number of them."""

from __future__ import annotations

import random
from pathlib import Path

import killed_runs
import pytest
import random_kills
from builders.conditions import LABS, thorough
from oracles import oracle

pytestmark = LABS

RUNS = [*map(thorough, (20, 71))]
"""One of the orchestrator and one of the keeper."""


@pytest.mark.parametrize("seed", [0, *map(thorough, (1, 2, 5, 7, 9))])
def test_whatever_is_killed_is_undone(seed: int, state_folder: Path) -> None:
    random_kills.one_round(oracle.unused_name(), seed, state_folder)


def test_all_victims_are_among_them() -> None:
    assert {random.Random(seed).choice(random_kills.VICTIMS) for seed in (0, 1, 2, 5)} == {*random_kills.VICTIMS}


@pytest.mark.parametrize("seed", RUNS)
@pytest.mark.alone
def test_of_a_run_that_is_killed_the_measurements_stay_and_nothing_else(seed: int, state_folder: Path) -> None:
    pytest.importorskip("torch", reason="a run trains")
    killed_runs.one_run(oracle.unused_name(), seed, state_folder)
