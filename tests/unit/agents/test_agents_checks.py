"""What a rank records for the checkers: the same draws on all ranks, exact numbers, a watchdog that speaks once."""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the training agents need torch")

from testbed_agents import breakage  # noqa: E402
from testbed_agents.check_log import EVERY, Checks, crc32, drawn, floats, optimizer_steps, positions  # noqa: E402
from testbed_agents.records import Records  # noqa: E402

TIMEOUT_S = 0.4


class Rank:
    """A linear model of six parameters under check, from step ``first`` to step 100."""

    def __init__(self, path: Path, first: int = 1, also_every: int = 0, timeout_s: float = 60.0) -> None:
        self.path = path
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.checks = Checks(
            Records(path),
            rank=0,
            world_size=2,
            model=self.model,
            optimizer=self.optimizer,
            seed=0,
            first=first,
            last=100,
            also_every=also_every,
            timeout_s=timeout_s,
        )

    def train(self, step: int, update: bool = True) -> None:
        self.checks.begin(step)
        buffer = torch.arange(100, dtype=torch.float32)
        entered = self.checks.entered(buffer)
        self.checks.left(entered, buffer.mul_(2))
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if update:
            self.optimizer.step()
        self.checks.end()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in found if line["kind"] == kind]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    it = Rank(tmp_path / "checks.jsonl")
    yield it
    it.checks.close()


def test_one_step_of_each_block_is_drawn_by_the_seed_alone() -> None:
    for seed in range(5):
        steps = [step for step in range(1, 10 * EVERY + 1) if drawn(seed, step)]
        assert [(step - 1) // EVERY for step in steps] == list(range(10))
    assert [step for step in range(1, 31) if drawn(0, step)] != [step for step in range(1, 31) if drawn(1, step)]


def test_positions_are_distinct_within_and_the_same_for_everyone() -> None:
    at = positions(7, 3, 1, elements=1000, count=64)
    assert len(set(at)) == 64
    assert set(at) <= set(range(1000))
    assert at == positions(7, 3, 1, 1000, 64)
    assert at != positions(7, 4, 1, 1000, 64)
    assert sorted(positions(7, 3, 1, elements=5, count=64)) == [0, 1, 2, 3, 4]


def test_numbers_are_recorded_exactly() -> None:
    values = torch.tensor([0.1, -2.5, 1e-40, float("inf")])
    as_bytes = values.numpy().tobytes()
    assert floats(values) == struct.pack("<4f", *values.tolist()).hex()
    assert crc32([values[:1], values[1:]]) == f"{zlib.crc32(as_bytes):08x}"


def test_what_went_in_is_recorded_before_the_sum_takes_its_place(rank: Rank) -> None:
    rank.train(1)
    (sample,) = rank.lines("sample")
    inputs = struct.unpack("<64f", bytes.fromhex(sample["inputs"]))
    outputs = struct.unpack("<64f", bytes.fromhex(sample["outputs"]))
    assert list(inputs) == [float(position) for position in sample["at"]]
    assert list(outputs) == [2.0 * position for position in sample["at"]]


def test_first_last_drawn_and_checkpointed_steps_have_fingerprints(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "checks.jsonl", first=21, also_every=7)
    for step in range(21, 101):
        rank.train(step)
    rank.checks.close()
    (begin,), steps = rank.lines("begin"), rank.lines("step")
    assert begin["step"] == 20
    had = {line["step"] for line in steps if "became" in line}
    expected = {21, 100} | {step for step in range(21, 101) if drawn(0, step) or step % 7 == 0}
    assert had == expected
    assert begin["parameters"] == steps[0]["trained_on"] != steps[0]["became"]
    assert [line["optimizer_steps"] for line in steps] == list(range(1, 81))


def test_an_update_that_was_not_made_shows(rank: Rank) -> None:
    rank.train(1, update=False)
    (line,) = rank.lines("step")
    assert line["optimizer_steps"] == 0
    assert line["trained_on"] == line["became"]
    assert optimizer_steps(rank.optimizer) == 0


def wait_for(rank: Rank, kind: str, count: int) -> list[dict[str, Any]]:
    until = time.monotonic() + 10.0
    while len(rank.lines(kind)) < count:
        assert time.monotonic() < until, f"no {kind} was recorded"
        time.sleep(0.01)
    return rank.lines(kind)


def test_the_watchdog_says_once_where_a_rank_is(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "checks.jsonl", timeout_s=TIMEOUT_S)
    rank.checks.begin(1)
    (outside,) = wait_for(rank, "waits", 1)
    assert (outside["step"], outside["sequence"]) == (1, None)
    rank.checks.left(rank.checks.entered(torch.zeros(3)), torch.zeros(3))
    entered_t = time.monotonic()
    rank.checks.entered(torch.zeros(3))
    inside = wait_for(rank, "waits", 2)[1]
    assert (inside["step"], inside["sequence"]) == (1, 1)
    assert inside["since_t"] == pytest.approx(entered_t, abs=0.1)
    assert inside["t"] - inside["since_t"] > TIMEOUT_S / 2
    rank.checks.close()
    assert len(rank.lines("waits")) == 2


@pytest.mark.parametrize("written", ["explode:rank=1,step=2", "stale"])
def test_a_breakage_that_there_is_not_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="TESTBED_BREAK"):
        breakage.Fault.parse(written)
