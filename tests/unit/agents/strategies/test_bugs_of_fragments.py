"""Bugs planted in strategies, on one rank and on all alike: each is found in the records of a real job; and no false
alarm in a right one, also in one that was killed with fragments on their way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.trainer_over_loopback import train

FEW_BITS = ("streaming-diloco", {"every": 6, "fragments": 3, "overlap": 2, "bits": 4})
STREAMING = ("streaming-diloco", {"every": 6, "fragments": 3, "overlap": 5})
SPARSE = ("sparse-loco", {"every": 4})

BROKEN: list[tuple[str, tuple[str, dict[str, Any]], str]] = [
    # A fragment that is never sent.
    ("unsent:step=8", FEW_BITS, "exchanges"),
    ("unsent:step=8", STREAMING, "exchanges"),
    ("unsent:step=8,rank=0", FEW_BITS, "exchanges"),
    ("unsent:step=8", SPARSE, "exchanges"),
    # An exchange that is applied twice.
    ("applied-twice:step=8", FEW_BITS, "updates"),
    ("applied-twice:step=8,rank=1", STREAMING, "updates"),
    ("applied-twice:step=8", SPARSE, "updates"),
    # A stale outer state.
    ("stale-outer:step=15", STREAMING, "updates"),
    ("stale-outer:step=15,rank=2", FEW_BITS, "updates"),
    ("stale-outer:step=9", SPARSE, "updates"),
    # Tied weights that are sent twice.
    ("tied-twice:step=1", STREAMING, "exchanges"),
    ("tied-twice:step=1", FEW_BITS, "exchanges"),
    # On one rank, gloo ends those that receive more than they expect; what was recorded until then tells.
    ("tied-twice:step=1,rank=1", STREAMING, "parameters"),
    # A rank that took another state than its mate.
    ("foreign-state:step=9,rank=1", STREAMING, "updates"),
    ("foreign-state:step=9", FEW_BITS, "updates"),
    ("foreign-state:step=9,rank=1", SPARSE, "parameters"),
    # A residual that is dropped.
    ("dropped-residual:step=8", SPARSE, "sums"),
    ("dropped-residual:step=8,rank=1", SPARSE, "sums"),
]


THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize("case", [FEW_BITS, *(pytest.param(case, marks=THOROUGH) for case in (STREAMING, SPARSE))])
def test_a_right_job_raises_no_alarm_and_ends_alike_when_it_was_killed(
    case: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    whole = train(tmp_path, *case, checkpoint_every=8)
    whole.check()
    again = train(tmp_path, *case, checkpoint_every=8, attempt=2, resume=(8, 1))
    again.check()
    assert again.ranks == whole.ranks


@pytest.mark.parametrize(
    ("broken", "case", "checker"), [BROKEN[0], *(pytest.param(*row, marks=THOROUGH) for row in BROKEN[1:])]
)
def test_a_planted_bug_is_found(broken: str, case: tuple[str, dict[str, Any]], checker: str, tmp_path: Path) -> None:
    ended = train(tmp_path, *case, broken=broken)
    assert ended.holds[checker] is False, (ended.ranks, ended.holds)
