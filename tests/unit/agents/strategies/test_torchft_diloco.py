"""The adapter to torchft: what reports its absence, and that sites are equal after each of its exchanges."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import loopback_ranks
from builders.replica_jobs import Job, tiny
from testbed_agents import strategies
from testbed_agents.evidence import Evidence
from testbed_agents.groups import Groups
from trained import Case, interrupt

Ranks = list[dict[str, Any]]
SITES = ("a", "a", "b", "b")
STEPS = 7
AFTER = {"between exchanges": 4, "after one": 6}


def test_without_torchft_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(ValueError, match=r"needs torchft .*pip install 'scale-across-testbed\[torchft\]'"):
        strategies.make("torchft-diloco", {}).prepare(tiny(), None)  # type: ignore[arg-type]


def threads_of_torchft() -> list[str]:
    """The names of its native threads, and of the one that serves checkpoints."""
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    names += [thread.name for thread in threading.enumerate() if "(_serve)" in thread.name]
    return [name for name in names if "torchft" in name or "tcpstore" in name or "_serve" in name]


def _train(rank: int) -> dict[str, Any]:
    groups = Groups(rank, SITES)
    monitor, records = Evidence(), list[dict[str, Any]]()
    monitor.exchange = lambda **fields: records.append(fields)  # type: ignore[method-assign]
    groups.hooks.evidence = monitor
    job = Job(groups, "torchft-diloco", {"every": 3}, STEPS).run(1)
    assert threads_of_torchft(), "nothing is shown without them"
    job.run()
    deadline = time.monotonic() + 10
    while threads_of_torchft() and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel's list is a little behind
    left = threads_of_torchft()
    groups.hooks.evidence = Evidence()
    case = Case("torchft-diloco", {"every": 3}, steps=10)
    restored = {name: interrupt(groups, case, after) for name, after in AFTER.items()}
    return {"trace": job.trace, "records": records, "left": left, **restored}


@pytest.fixture(scope="module")
def ranks() -> Ranks:
    if importlib.util.find_spec("torchft") is None:
        pytest.skip("torchft is not installed")
    return loopback_ranks.run(4, _train)


def test_sites_are_equal_after_each_exchange_of_torchft_and_nothing_of_it_lives_on(ranks: Ranks) -> None:
    for step, rows in enumerate(zip(*(rank["trace"] for rank in ranks), strict=True), 1):
        values = [row.fingerprints["parameters"] for row in rows]
        assert values[0] == values[1] and values[2] == values[3]
        assert (len(set(values)) == 1) == (step % 3 == 0 or step == STEPS)
    for rank in ranks:
        assert rank["left"] == []
        assert rank["trace"][-1].version == 3
        assert [record["committed"] for record in rank["records"]] == [True] * 3
        assert {record["participants"] for record in rank["records"]} == {2}


@pytest.mark.parametrize("after", AFTER)
def test_restored_from_a_checkpoint_a_job_ends_with_the_same_bits(ranks: Ranks, after: str) -> None:
    for rank in ranks:
        whole, again = rank[after]
        assert torch.equal(whole.parameters, again.parameters)
