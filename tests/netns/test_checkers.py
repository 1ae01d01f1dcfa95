"""Real ranks that train wrongly on purpose (TESTBED_BREAK): each checker finds its fault, names it, and raises no false
alarm.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents_lab import Message, Nodes, Parent, records
from builders.conditions import LABS, TORCH
from oracles.oracle import until

from testbed.core.checkers.checks import Checked, check
from testbed.core.checkers.finding import Checker
from testbed.core.records.check_record import read_checks

pytestmark = [*LABS, TORCH]

RANKS = 3
STEPS = 8
TIMEOUT_S = 6.0
"""A collective hangs after half of it."""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    it = Nodes(f"tbck{os.getpid()}", RANKS)
    try:
        it.build()
        yield it
    finally:
        it.remove()


def broken(how: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("parent", [how], indirect=True)


@pytest.fixture
def parent(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    """A fork server, whose ranks are broken as :func:`broken` says."""
    if how := getattr(request, "param", ""):
        monkeypatch.setenv("TESTBED_BREAK", how)
    it = Parent(tmp_path / "parent.log")
    try:
        it.next("warm", timeout_s=60)
        yield it
    finally:
        it.process.kill()
        it.process.wait()


def begin(parent: Parent, nodes: Nodes, directory: Path, **changed: object) -> list[Message]:
    """What the ranks said when they were ready."""
    for rank in range(RANKS):
        place = {"rank": rank, "node": f"node-{rank}", "site": "east", "namespaces": nodes.namespaces(rank)}
        parent.say({"do": "rank", **place, "metrics": [nodes.address(rank), 9100]})
    ready = parent.next("ready", RANKS)
    parent.say(
        {
            "do": "train",
            "job": "j1",
            "world_size": RANKS,
            "master": [nodes.address(0), 29500],
            "interface": "fabric0",
            "directory": str(directory),
            "steps": STEPS,
            "seed": 0,
            "timeout_s": TIMEOUT_S,
            "model": {"layers": 2, "heads": 2, "width": 64},
            **changed,
        }
    )
    return ready


def checked(directory: Path) -> Checked:
    logs = []
    for rank in range(RANKS):
        lines = (directory / f"rank-{rank}.checks.jsonl").read_text().splitlines()
        log, malformed = read_checks(rank, map(json.loads, lines))
        assert malformed == 0
        logs.append(log)
    return check(logs)


def trained(parent: Parent, nodes: Nodes, directory: Path, **changed: object) -> dict[str, Checker]:
    begin(parent, nodes, directory, **changed)
    ends = parent.next("finished", RANKS, timeout_s=60)
    assert [it["status"] for it in ends] == ["ok"] * RANKS, ends
    return {each.id: each for each in checked(directory).checkers}


def wrong(checkers: dict[str, Checker]) -> set[str]:
    assert None not in {each.holds for each in checkers.values()}
    return {name for name, each in checkers.items() if not each.holds}


def fingerprints(directory: Path) -> list[str]:
    return [str(records(directory, rank)[-1]["parameters_sha256"]) for rank in range(RANKS)]


def test_nothing_is_found_in_a_right_job(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    checkers = trained(parent, nodes, tmp_path)
    assert wrong(checkers) == set()
    assert len(set(fingerprints(tmp_path))) == 1


@pytest.mark.thorough
def test_nothing_is_found_in_an_attempt_that_goes_on(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    trained(parent, nodes, tmp_path, checkpoint_every=4)
    once = fingerprints(tmp_path)
    (tmp_path / "attempt").write_text("2")
    checkers = trained(parent, nodes, tmp_path, checkpoint_every=4, attempt=2, resume=[4, 1])
    assert wrong(checkers) == set()
    assert "at 7 steps" in checkers["parameters"].looked_at  # 1, 3, 4, 8; what the second began with; 5, 8
    assert fingerprints(tmp_path) == once


@broken("wrong-sum:rank=1,step=3")
def test_one_bit_of_a_sum_on_one_rank(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    checkers = trained(parent, nodes, tmp_path)
    assert "sums" in wrong(checkers)
    first = checkers["sums"].findings[0]
    assert (checkers["sums"].found, first.step, first.group, first.ranks) == (1, 3, "world", (1,))


@broken("lost-input:rank=2,step=4")
def test_a_sum_that_is_wrong_on_all_ranks_alike(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    checkers = trained(parent, nodes, tmp_path)
    assert len(set(fingerprints(tmp_path))) == 1, "the ranks agree: comparing them finds nothing"
    assert wrong(checkers) == {"sums"}
    (found,) = checkers["sums"].findings
    assert (found.step, found.group, found.ranks) == (4, "world", (0, 1, 2))
    assert found.text.endswith("as if the input of rank 2 were missing")


@pytest.mark.thorough
@broken("stale:rank=2,step=6")
def test_a_rank_on_stale_parameters(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    checkers = trained(parent, nodes, tmp_path)
    assert len(set(fingerprints(tmp_path))) == 2
    assert wrong(checkers) == {"parameters"}
    assert {found.ranks for found in checkers["parameters"].findings} == {(2,)}
    assert all(found.step >= 6 for found in checkers["parameters"].findings)


@pytest.mark.thorough
@broken("lost-update:step=5")
def test_an_update_that_no_rank_made(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    checkers = trained(parent, nodes, tmp_path)
    assert len(set(fingerprints(tmp_path))) == 1
    assert wrong(checkers) == {"updates"}
    (found,) = checkers["updates"].findings
    assert (checkers["updates"].found, found.step, found.ranks) == (RANKS, 5, (0, 1, 2))


@broken("hang:rank=1,step=4")
def test_who_waited_for_whom(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    begin(parent, nodes, tmp_path)
    ends = parent.next("finished", 2, timeout_s=60)
    assert {(it["rank"], it["status"]) for it in ends} == {(0, "failed"), (2, "failed")}
    (hangs,) = (each for each in checked(tmp_path).checkers if each.id == "hangs")
    (found,) = hangs.findings
    assert (hangs.holds, found.step, found.group, found.ranks) == (False, 4, "world", (1,))
    assert found.text.startswith("all_reduce of world: ranks 0, 2 waited ")
    assert "rank 1 was in no collective of step 4" in found.text


@pytest.mark.thorough
def test_a_paused_rank_is_named(parent: Parent, nodes: Nodes, tmp_path: Path) -> None:
    pids = {int(it["rank"]): int(it["pid"]) for it in begin(parent, nodes, tmp_path, steps=10_000)}
    parent.next("began", RANKS)
    waits = tmp_path / "rank-0.checks.jsonl"
    until(lambda: waits.exists() and waits.read_text().count('"step"') > 5, 30, "it trains")
    os.kill(pids[1], signal.SIGSTOP)
    try:
        until(lambda: '"waits"' in waits.read_text(), TIMEOUT_S, "rank 0 says that it waits")
    finally:
        os.kill(pids[1], signal.SIGCONT)
    before = waits.read_text().count('"kind": "step"')
    until(lambda: waits.read_text().count('"kind": "step"') > before + 3, 30, "it goes on")
    parent.say({"do": "stop", "job": "j1"})
    parent.next("finished", RANKS)
    checkers = {each.id: each for each in checked(tmp_path).checkers}
    assert wrong(checkers) == {"hangs"}
    (found,) = checkers["hangs"].findings
    assert found.ranks == (1,)
    assert "the process of rank 1 did not run for " in found.text
