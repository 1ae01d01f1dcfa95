"""Orders to stop or to save, given while a site is 2 s behind another one: all ranks obey after the same step."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from builders import json_files
from builders.trainer_over_loopback import train

pytestmark = pytest.mark.thorough

STEPS, ORDERED, SLOW_S = 24, 11, 0.4
CASES = [
    ("local-sgd", {"every": 20}),
    ("diloco", {"every": 20}),
    ("streaming-diloco", {"every": 40, "fragments": 2, "overlap": 1}),
    ("sparse-loco", {"every": 20}),
]


def began(folder: Path, rank: int) -> dict[int, float]:
    """Return when a rank began each step, by its own records."""
    return {step["step"]: step["t_begin"] for step in json_files.read_lines(folder / f"rank-{rank}.jsonl", "step")}


def last_step(folder: Path) -> int:
    """Return the step after which all ranks obeyed: the newest that any had entered when rank 0 passed the order on."""
    steps = [began(folder, rank) for rank in range(4)]
    (last,) = {max(it) for it in steps}
    assert last in (ORDERED, ORDERED + 1)
    behind_s = min(steps[2][ORDERED], steps[3][ORDERED]) - steps[0][ORDERED]
    assert behind_s > 2.0, "the site was that far behind when the order was given"
    return last


@pytest.mark.parametrize("case", CASES, ids=itemgetter(0))
def test_all_stop_after_the_same_step_and_exchange_what_they_trained(case: tuple[str, Any], tmp_path: Path) -> None:
    train(tmp_path, *case, steps=STEPS, stops_at=ORDERED, slow_s=SLOW_S).check("stopped")
    last_step(tmp_path)


@pytest.mark.parametrize("case", CASES[1:3], ids=itemgetter(0))
def test_all_save_after_the_same_step_and_lose_nothing(case: tuple[str, Any], tmp_path: Path) -> None:
    first = train(tmp_path, *case, steps=STEPS, stops_at=ORDERED, slow_s=SLOW_S, saves=True)
    assert {rank.partition(" ")[0] for rank in first.ranks} == {"saved"}, first.ranks
    ended = train(tmp_path, *case, steps=STEPS, attempt=2, resume=(last_step(tmp_path), 1))
    undisturbed = train(tmp_path / "undisturbed", *case, steps=STEPS)
    assert ended.ranks == undisturbed.ranks, "the same bits"
    assert {rank.partition(" ")[0] for rank in ended.ranks} == {"ok"}
