"""Orders to stop or to save, given while a site is 2 s behind another one: all ranks obey after the same step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from builders.trainer_over_loopback import train

pytestmark = pytest.mark.thorough

STEPS, TOLD, SLOW_S = 24, 11, 0.4
CASES = [
    ("local-sgd", {"every": 20}),
    ("diloco", {"every": 20}),
    ("streaming-diloco", {"every": 40, "fragments": 2, "overlap": 1}),
    ("sparse-loco", {"every": 20}),
]


def began(folder: Path, rank: int) -> dict[int, float]:
    """Return when a rank began each step, by its own records."""
    lines = map(json.loads, (folder / f"rank-{rank}.jsonl").read_text().splitlines())
    return {it["step"]: it["t_begin"] for it in lines if it["kind"] == "step"}


def last_step(folder: Path) -> int:
    """Return the step after which all ranks obeyed: the newest that any had entered when rank 0 passed the order on."""
    steps = [began(folder, rank) for rank in range(4)]
    (last,) = {max(it) for it in steps}
    assert last in (TOLD, TOLD + 1)
    behind_s = min(steps[2][TOLD], steps[3][TOLD]) - steps[0][TOLD]
    assert behind_s > 2.0, "the site was that far behind when the order was given"
    return last


@pytest.mark.parametrize("case", CASES, ids=lambda it: it[0])
def test_all_stop_after_the_same_step_and_exchange_what_they_trained(case: tuple[str, Any], tmp_path: Path) -> None:
    ended = train(tmp_path, *case, steps=STEPS, told=TOLD, slow_s=SLOW_S)
    assert {each.partition(" ")[0] for each in ended.ranks} == {"stopped"}, ended.ranks
    assert len(set(ended.ranks)) == 1, "the exchange at the end makes all parameters equal"
    last_step(tmp_path)
    assert set(ended.holds.values()) == {True}, ended.texts


@pytest.mark.parametrize("case", CASES[1:3], ids=lambda it: it[0])
def test_all_save_after_the_same_step_and_lose_nothing(case: tuple[str, Any], tmp_path: Path) -> None:
    first = train(tmp_path, *case, steps=STEPS, told=TOLD, slow_s=SLOW_S, saves=True)
    assert {each.partition(" ")[0] for each in first.ranks} == {"saved"}, first.ranks
    ended = train(tmp_path, *case, steps=STEPS, attempt=2, resume=(last_step(tmp_path), 1))
    undisturbed = train(tmp_path / "undisturbed", *case, steps=STEPS)
    assert ended.ranks == undisturbed.ranks, "the same bits"
    assert {each.partition(" ")[0] for each in ended.ranks} == {"ok"}
