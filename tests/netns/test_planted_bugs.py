"""Real ranks at two sites with one bug each (TESTBED_BREAK), on one rank or on all alike: a checker finds it.

Made-up records of the same bugs are in tests/unit/core/checkers/test_checks_by_twin.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from agents_lab import Nodes, Parent
from builders.conditions import LABS, TORCH
from builders.json_files import read_lines

from testbed.core.analysis.job_twin import twin_of
from testbed.core.checkers.checks import check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks
from testbed.core.records.rank_log import read_rank

pytestmark = [*LABS, TORCH, pytest.mark.thorough]

SITES = ("east", "east", "west", "west")
RANKS, STEPS = len(SITES), 12
MODEL = {"layers": 4, "heads": 2, "width": 64}


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    it = Nodes(f"tbpb{os.getpid()}", RANKS)
    try:
        it.build()
        yield it
    finally:
        it.remove()


@pytest.fixture
def parent(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    """A fork server, whose ranks are broken as its parameter says."""
    if request.param:
        monkeypatch.setenv("TESTBED_BREAK", request.param)
    it = Parent(tmp_path / "parent.log")
    try:
        it.next("warm", timeout_s=60)
        yield it
    finally:
        it.process.kill()
        it.process.wait()


def judged(
    parent: Parent, nodes: Nodes, directory: Path, strategy: str, options: Mapping[str, Any]
) -> dict[str, Checker]:
    """Train to the end, or until each rank has failed or died; return what the checkers say.

    gloo aborts on a message of another size than it expects.
    """
    for rank, site in enumerate(SITES):
        place = {"rank": rank, "node": f"node-{rank}", "site": site, "namespaces": nodes.namespaces(rank)}
        parent.say({"do": "rank", **place, "metrics": [nodes.address(rank), 9100]})
    parent.next("ready", RANKS)
    parent.say(
        {
            "do": "train", "job": "j1", "world_size": RANKS, "master": [nodes.address(0), 29500],
            "interface": "fabric0", "directory": str(directory), "steps": STEPS, "seed": 0, "timeout_s": 6.0,
            "model": MODEL, "sites": list(SITES), "strategy": {"name": strategy, "options": dict(options)},
        }
    )  # fmt: skip
    parent.wait_for(RANKS, 60, lambda it: it["event"] in ("finished", "died"))
    checks, ranks = [], []
    for rank in range(RANKS):
        lines = read_lines(directory / f"rank-{rank}.checks.jsonl")
        checks.append(read_checks(rank, lines)[0])
        lines = read_lines(directory / f"rank-{rank}.jsonl")
        ranks.append(read_rank(rank, lines)[0])
    return {each.id: each for each in check(checks, twin_of(ranks, MODEL), ranks).checkers}


DILOCO = ("diloco", {"every": 4})
STREAMING = ("streaming-diloco", {"every": 6, "fragments": 2, "overlap": 1})
SPARSE = ("sparse-loco", {"every": 4})


@pytest.mark.parametrize(
    ("parent", "strategy", "finders"),
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
    indirect=["parent"],
)
def test_a_planted_bug_is_found(
    parent: Parent, nodes: Nodes, tmp_path: Path, strategy: tuple[str, dict[str, Any]], finders: set[str]
) -> None:
    checkers = judged(parent, nodes, tmp_path, *strategy)
    wrong = {name for name, each in checkers.items() if each.holds is False}
    if finders:
        assert finders <= wrong, {name: (each.holds, each.why) for name, each in checkers.items()}
    else:
        assert {each.holds for each in checkers.values()} == {True}, checkers
