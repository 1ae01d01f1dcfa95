"""Real ranks that train wrongly on purpose (TESTBED_BREAK): each checker finds its fault, names it, and raises no false
alarm.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents_lab import Nodes, Ranks, fork_server, nodes_up
from builders.conditions import LABS, TORCH
from builders.json_files import read_lines
from oracles.oracle import until

from testbed.core.checkers.checks import Checked, check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks

pytestmark = [*LABS, TORCH]

RANKS = 3
TIMEOUT_S = 6.0
"""A collective hangs after half of it."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with nodes_up("tbck", RANKS) as made:
        yield made


def broken(how: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ranks", [how], indirect=True)


@pytest.fixture
def ranks(
    nodes: Nodes, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ranks]:
    """Ranks that are broken as :func:`broken` says."""
    if how := getattr(request, "param", ""):
        monkeypatch.setenv("TESTBED_BREAK", how)
    with fork_server(tmp_path / "parent.log") as parent:
        yield Ranks(parent, nodes, tmp_path, ("east",) * RANKS, steps=8, timeout_s=TIMEOUT_S)


def checked(ranks: Ranks) -> Checked:
    logs = []
    for rank in range(RANKS):
        log, malformed = read_checks(rank, read_lines(ranks.folder / f"rank-{rank}.checks.jsonl"))
        assert malformed == 0
        logs.append(log)
    return check(logs)


def by_id(result: Checked) -> dict[str, Checker]:
    return {checker.id: checker for checker in result.checkers}


def trained(ranks: Ranks, **changed: object) -> dict[str, Checker]:
    ranks.begin(**changed)
    ranks.finish()
    return by_id(checked(ranks))


def wrong(checkers: dict[str, Checker]) -> set[str]:
    assert None not in {checker.holds for checker in checkers.values()}
    return {name for name, checker in checkers.items() if not checker.holds}


def fingerprints(ranks: Ranks) -> list[str]:
    return [str(ranks.records(rank)[-1]["parameters_sha256"]) for rank in range(RANKS)]


def test_nothing_is_found_in_a_right_job(ranks: Ranks) -> None:
    assert wrong(trained(ranks)) == set()
    assert len(set(fingerprints(ranks))) == 1


@pytest.mark.thorough
def test_nothing_is_found_in_an_attempt_that_goes_on(ranks: Ranks) -> None:
    trained(ranks, checkpoint_every=4)
    once = fingerprints(ranks)
    (ranks.folder / "attempt").write_text("2")
    checkers = trained(ranks, checkpoint_every=4, attempt=2, resume=[4, 1])
    assert wrong(checkers) == set()
    # Selected ones, those with a checkpoint, the first and the last, of both attempts; before and after.
    assert "at 10 steps" in checkers["parameters"].looked_at
    assert fingerprints(ranks) == once


@broken("wrong-sum:rank=1,step=3")
def test_one_bit_of_a_sum_on_one_rank(ranks: Ranks) -> None:
    checkers = trained(ranks)
    assert "sums" in wrong(checkers)
    first = checkers["sums"].findings[0]
    assert (checkers["sums"].found, first.step, first.group, first.ranks) == (1, 3, "world", (1,))


@broken("lost-input:rank=2,step=4")
def test_a_sum_that_is_wrong_on_all_ranks_alike(ranks: Ranks) -> None:
    checkers = trained(ranks)
    assert len(set(fingerprints(ranks))) == 1, "the ranks agree: comparing them finds nothing"
    assert wrong(checkers) == {"sums"}
    (finding,) = checkers["sums"].findings
    assert (finding.step, finding.group, finding.ranks) == (4, "world", (0, 1, 2))
    assert finding.text.endswith("as if the input of rank 2 were missing")


@pytest.mark.thorough
@broken("stale:rank=2,step=6")
def test_a_rank_on_stale_parameters(ranks: Ranks) -> None:
    checkers = trained(ranks)
    assert len(set(fingerprints(ranks))) == 2
    assert wrong(checkers) == {"parameters"}
    assert {finding.ranks for finding in checkers["parameters"].findings} == {(2,)}
    assert min(finding.step for finding in checkers["parameters"].findings) == 5, "step 6 begins with what step 5 left"


@pytest.mark.thorough
@broken("lost-update:step=5")
def test_an_update_that_no_rank_made(ranks: Ranks) -> None:
    checkers = trained(ranks)
    assert len(set(fingerprints(ranks))) == 1
    assert wrong(checkers) == {"updates"}
    (finding,) = checkers["updates"].findings
    assert (checkers["updates"].found, finding.step, finding.ranks) == (RANKS, 5, (0, 1, 2))


@broken("hang:rank=1,step=4")
def test_who_waited_for_whom(ranks: Ranks) -> None:
    ranks.begin()
    ends = ranks.parent.next("finished", 2, timeout_s=60)
    assert {(end["rank"], end["status"]) for end in ends} == {(0, "failed"), (2, "failed")}
    hangs = by_id(checked(ranks))["hangs"]
    (finding,) = hangs.findings
    assert (hangs.holds, finding.step, finding.group, finding.ranks) == (False, 4, "world", (1,))
    assert finding.text.startswith("all_reduce of world: ranks 0, 2 waited ")
    assert "rank 1 was in no collective of step 4" in finding.text


@pytest.mark.thorough
def test_a_paused_rank_is_named(ranks: Ranks) -> None:
    pids = [int(event["pid"]) for event in ranks.begin(steps=10_000)]
    ranks.parent.next("began", RANKS)
    waits = ranks.folder / "rank-0.checks.jsonl"
    until(lambda: waits.exists() and waits.read_text().count('"step"') > 5, 30, "it trains")
    os.kill(pids[1], signal.SIGSTOP)
    try:
        until(lambda: '"waits"' in waits.read_text(), TIMEOUT_S, "rank 0 says that it waits")
    finally:
        os.kill(pids[1], signal.SIGCONT)
    before = waits.read_text().count('"kind": "step"')
    until(lambda: waits.read_text().count('"kind": "step"') > before + 3, 30, "it goes on")
    ranks.stop()
    ranks.parent.next("finished", RANKS)
    checkers = by_id(checked(ranks))
    assert wrong(checkers) == {"hangs"}
    (finding,) = checkers["hangs"].findings
    assert finding.ranks == (1,)
    assert "the process of rank 1 did not run for " in finding.text
