"""Jobs that are stopped, or killed, between two exchanges: nothing is lost, and no checker complains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders import json_files
from builders.trainer_over_loopback import train

ACCUMULATING = ("ddp", {"accumulate": 4})
TWO_LEVELS = ("hierarchical", {"accumulate": 4})
TIERS = ("multi-tier", {"every": 2, "every_regions": 8})


def _thorough(case: Any) -> Any:
    return pytest.param(case, marks=pytest.mark.thorough)


@pytest.mark.parametrize("case", [ACCUMULATING, _thorough(TWO_LEVELS), TIERS, _thorough(("diloco", {"every": 8}))])
def test_a_stopped_job_ends_with_an_exchange(case: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    train(tmp_path, *case, stops_at=6).check("stopped")
    file = tmp_path / "rank-0.checks.jsonl"
    (finish,) = json_files.read_lines(file, "finish")
    step = finish["step"] - 1
    if "accumulate" in case[1]:
        assert finish["optimizer_steps"] == -(-step // 4), "what was added since the last exchange is used"
    if case is TIERS:
        tiers = [outer["name"] for outer in json_files.read_lines(file, "outer") if outer["step"] > step]
        expected = ["outer", "region"] if step % 2 else ["outer"] if step % 8 else []
        assert sorted(tiers) == expected, "each tier exchanges once after the last step"


@pytest.mark.parametrize("case", [ACCUMULATING, _thorough(TWO_LEVELS)])
def test_gradients_that_wait_for_an_exchange_are_in_a_checkpoint(
    case: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    whole = train(tmp_path, *case, steps=9, checkpoint_every=6)
    again = train(tmp_path, *case, steps=9, attempt=2, resume=(6, 1))
    for ended in (whole, again):
        ended.check()
    assert again.ranks == whole.ranks
