"""One rank per site: no operation inside a site, no two ranks of a stage. Verdicts are definite, right and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from builders.trainer_over_loopback import train

SITES = ("a", "b", "c")
PIPELINE = ("pipeline", {"stages": 3, "micro_batches": 3})
ASYNC = ("async-diloco", {"every": 3, "outer_activation": 0.2})
DECOUPLED = ("decoupled", {"every": 4, "fragments": 2, "bits": 8})

Case = tuple[str, dict[str, Any]]
THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize("case", [PIPELINE, ASYNC, DECOUPLED], ids=lambda case: str(case[0]))
def test_each_checker_holds_of_a_right_job_and_of_one_that_resumes(case: Case, tmp_path: Path) -> None:
    whole = train(tmp_path, *case, sites=SITES, checkpoint_every=8)
    again = train(tmp_path, *case, sites=SITES, checkpoint_every=8, attempt=2, resume=(8, 1))
    for ended in (whole, again):
        assert {rank.partition(" ")[0] for rank in ended.ranks} == {"ok"}, ended.ranks
        assert set(ended.holds.values()) == {True}, (ended.holds, ended.texts)


@pytest.mark.parametrize(
    ("broken", "case", "checker", "text"),
    [
        ("wrong-parcel:step=7", ASYNC, "served", "arrived with other bytes than were sent"),
        pytest.param("wrong-parcel:step=7", DECOUPLED, "served", "arrived with other", marks=THOROUGH),
        ("lost-version:step=7", ASYNC, "served", "steps of the outer optimizer"),
        ("wrong-outer:step=7", ASYNC, "updates", "the outer parameter of element"),
        pytest.param("applied-twice:step=7", ASYNC, "updates", "an exchange was applied twice", marks=THOROUGH),
        ("wrong-sum:step=7,rank=1", PIPELINE, "sums", "received something other than"),
        pytest.param("lost-input:step=7,rank=0", PIPELINE, "sums", "received something other than", marks=THOROUGH),
        ("stale:step=7,rank=1", PIPELINE, "parameters", "rank 1 went back to the parameters after step"),
        pytest.param("lost-update:step=7,rank=2", PIPELINE, "updates", "", marks=THOROUGH),
    ],
)
def test_a_planted_bug_is_found(broken: str, case: Case, checker: str, text: str, tmp_path: Path) -> None:
    ended = train(tmp_path, *case, sites=SITES, broken=broken)
    assert ended.holds[checker] is False, (ended.ranks, ended.holds, ended.texts)
    assert any(text in found for found in ended.texts), ended.texts
