"""Real ranks at two sites with one bug each (TESTBED_BREAK), on one rank or on all alike: a checker finds it.

Made-up records of the same bugs are in tests/unit/core/checkers/test_checks_by_twin.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from agents_lab import Nodes, Ranks, fork_server, nodes_up
from builders.conditions import LABS, TORCH
from builders.json_files import read_lines

from testbed.core.analysis.job_twin import twin_of
from testbed.core.checkers.checks import check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks
from testbed.core.records.rank_log import read_rank

pytestmark = [*LABS, TORCH, pytest.mark.thorough]

SITES = ("east", "east", "west", "west")
RANKS = len(SITES)
MODEL = {"layers": 4, "heads": 2, "width": 64}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with nodes_up("tbpb", RANKS) as made:
        yield made


@pytest.fixture
def ranks(
    nodes: Nodes, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ranks]:
    """Ranks that are broken as the parameter says."""
    if request.param:
        monkeypatch.setenv("TESTBED_BREAK", request.param)
    with fork_server(tmp_path / "parent.log") as parent:
        yield Ranks(parent, nodes, tmp_path, SITES, steps=12, timeout_s=6.0, model=MODEL, sites=list(SITES))


def judged(ranks: Ranks, strategy: str, options: Mapping[str, Any]) -> dict[str, Checker]:
    """Train to the end, or until each rank has failed or died; return what the checkers say.

    gloo aborts on a message of another size than it expects.
    """
    ranks.begin(strategy={"name": strategy, "options": dict(options)})
    ranks.parent.wait_for(RANKS, 60, lambda report: report["event"] in ("finished", "died"))
    checks = [read_checks(rank, read_lines(ranks.folder / f"rank-{rank}.checks.jsonl"))[0] for rank in range(RANKS)]
    logs = [read_rank(rank, ranks.records(rank))[0] for rank in range(RANKS)]
    return {checker.id: checker for checker in check(checks, twin_of(logs, MODEL), logs).checkers}


DILOCO = ("diloco", {"every": 4})
STREAMING = ("streaming-diloco", {"every": 6, "fragments": 2, "overlap": 1})
SPARSE = ("sparse-loco", {"every": 4})


@pytest.mark.parametrize(
    ("ranks", "strategy", "finders"),
    [
        ("", DILOCO, set()),
        ("", STREAMING, set()),
        ("", SPARSE, set()),
        ("unsent:step=8", DILOCO, {"sums", "exchanges"}),
        ("unsent:rank=1,step=8", DILOCO, {"exchanges"}),
        ("unsent:step=5", STREAMING, {"exchanges"}),
        ("applied-twice:step=8", DILOCO, {"updates"}),
        ("applied-twice:rank=1,step=8", DILOCO, {"updates", "parameters"}),
        ("stale-outer:step=8", DILOCO, {"updates"}),
        ("stale-outer:rank=2,step=8", DILOCO, {"updates", "parameters"}),
        ("foreign-state:rank=1,step=6", DILOCO, {"updates", "parameters"}),
        ("foreign-state:step=6", DILOCO, {"updates"}),
        ("dropped-residual:step=4", SPARSE, {"sums"}),
        ("dropped-residual:rank=3,step=4", SPARSE, {"sums"}),
        ("tied-twice:step=1", STREAMING, {"exchanges"}),
        ("tied-twice:rank=1,step=1", STREAMING, {"parameters"}),
    ],
    indirect=["ranks"],
)
def test_a_planted_bug_is_found(ranks: Ranks, strategy: tuple[str, dict[str, Any]], finders: set[str]) -> None:
    checkers = judged(ranks, *strategy)
    wrong = {name for name, each in checkers.items() if each.holds is False}
    if finders:
        assert finders <= wrong, {name: (each.holds, each.why) for name, each in checkers.items()}
    else:
        assert {each.holds for each in checkers.values()} == {True}, checkers
