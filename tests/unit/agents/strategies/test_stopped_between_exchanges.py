"""Jobs that are stopped, or killed, between two exchanges: nothing is lost, and no checker complains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from builders.trainer_over_loopback import train

ACCUMULATING = ("ddp", {"accumulate": 4})
TWO_LEVELS = ("hierarchical", {"accumulate": 4})
TIERS = ("multi-tier", {"every": 2, "every_regions": 8})


@pytest.mark.parametrize(
    "case",
    [
        ACCUMULATING,
        pytest.param(TWO_LEVELS, marks=pytest.mark.thorough),
        TIERS,
        pytest.param(("diloco", {"every": 8}), marks=pytest.mark.thorough),
    ],
)
def test_a_stopped_job_ends_with_an_exchange(case: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    ended = train(tmp_path, *case, told=6)
    assert {each.partition(" ")[0] for each in ended.ranks} == {"stopped"}, ended.ranks
    assert len(set(ended.ranks)) == 1, "their parameters differ"
    assert set(ended.holds.values()) == {True}, ended.texts
    lines = [json.loads(it) for it in (tmp_path / "rank-0.checks.jsonl").read_text().splitlines()]
    (finish,) = (it for it in lines if it["kind"] == "finish")
    step = finish["step"] - 1
    if "accumulate" in case[1]:
        assert finish["optimizer_steps"] == -(-step // 4), "what was added since the last exchange is used"
    tiers = [it["name"] for it in lines if it["kind"] == "outer" and it["step"] > step]
    if case is TIERS:
        expected = ["outer", "region"] if step % 2 else ["outer"] if step % 8 else []
        assert sorted(tiers) == expected, "each tier exchanges once after the last step"


@pytest.mark.parametrize("case", [ACCUMULATING, pytest.param(TWO_LEVELS, marks=pytest.mark.thorough)])
def test_gradients_that_wait_for_an_exchange_are_in_a_checkpoint(
    case: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    whole = train(tmp_path, *case, steps=9, checkpoint_every=6)
    assert len(set(whole.ranks)) == 1 and whole.ranks[0].startswith("ok "), whole.ranks
    again = train(tmp_path, *case, steps=9, attempt=2, resume=(6, 1))
    assert again.ranks == whole.ranks
    assert set(again.holds.values()) == {True}, again.texts
