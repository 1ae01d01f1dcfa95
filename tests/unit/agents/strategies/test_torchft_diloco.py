"""The adapter to torchft: how its absence is told, and with it, that sites are equal after each of its exchanges."""

from __future__ import annotations

import importlib.util
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import loopback_ranks
from builders.replica_jobs import drawn, loss, tiny
from testbed_agents import evidence, strategies
from testbed_agents.groups import Groups
from testbed_agents.strategies import Context
from trained import Case, train_interrupted

SITES = ("a", "a", "b", "b")
STEPS = 7


def test_without_torchft_it_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(ValueError, match=r"needs torchft .*pip install 'scale-across-testbed\[torchft\]'"):
        strategies.make("torchft-diloco", {}).prepare(tiny(), None)  # type: ignore[arg-type]


def threads_of_torchft() -> list[str]:
    """The names of its native threads, and of the one that serves checkpoints."""
    names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    names += [it.name for it in threading.enumerate() if "(_serve)" in it.name]
    return [it for it in names if "torchft" in it or "tcpstore" in it or "_serve" in it]


def job(rank: int) -> tuple[list[int], list[dict[str, Any]], int, list[str]]:
    records: list[dict[str, Any]] = []
    context = Context(Groups(rank, SITES), loss=loss, steps=STEPS)
    monitor = evidence.Evidence()
    monitor.exchange = lambda **fields: records.append(fields)  # type: ignore[method-assign]
    evidence.install(monitor)
    model, strategy = tiny(), strategies.make("torchft-diloco", {"every": 3})
    optimizer = torch.optim.AdamW(strategy.prepare(model, context), lr=1e-2)
    found = []
    for step in range(1, STEPS + 1):
        context.step = step
        strategy.run(*drawn(rank, step))
        optimizer.step()
        optimizer.zero_grad()
        strategy.after_step(step)
        if step == STEPS:
            strategy.finish(step)
        elif step == 1:
            assert threads_of_torchft(), "nothing is shown without them"
        found.append(zlib.crc32(b"".join(it.detach().numpy().tobytes() for it in model.parameters())))
    deadline = time.monotonic() + 10
    while threads_of_torchft() and time.monotonic() < deadline:
        time.sleep(0.01)  # the kernel's list is a little behind
    return found, records, strategy.outer_version, threads_of_torchft()


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")
def test_sites_are_equal_after_each_exchange_of_torchft_and_nothing_of_it_lives_on() -> None:
    found = loopback_ranks.run(4, job)
    for step in range(1, STEPS + 1):
        values = [each[0][step - 1] for each in found]
        assert values[0] == values[1] and values[2] == values[3]
        assert (len(set(values)) == 1) == (step % 3 == 0 or step == STEPS)
    for _, records, version, threads in found:
        assert threads == []
        assert version == 3
        assert [it["committed"] for it in records] == [True] * 3 and {it["participants"] for it in records} == {2}


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed")
@pytest.mark.parametrize("at", [4, 6], ids=["between exchanges", "after one"])
def test_restored_from_a_checkpoint_a_job_ends_with_the_same_bits(at: int) -> None:
    case = Case("torchft-diloco", {"every": 3}, steps=10)
    for whole, again in loopback_ranks.run(4, lambda rank: train_interrupted(rank, case, SITES, at)):
        assert whole == again
