"""What a rank records for the checkers: the same draws on all ranks, exact numbers, a watchdog that speaks once."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import json_files
from oracles import oracle

torch = pytest.importorskip("torch", reason="the training agents need torch")

from testbed_agents.check_log import EVERY, Checks, drawn, optimizer_steps  # noqa: E402
from testbed_agents.checksums import crc32, elements, hexadecimal, positions  # noqa: E402
from testbed_agents.fork_server import planted_errors  # noqa: E402
from testbed_agents.records import Records  # noqa: E402
from testbed_agents.watched import Operation  # noqa: E402

TIMEOUT_S = 0.4


class Rank:
    """A linear model of six parameters under check, from step ``first`` to step 100."""

    def __init__(
        self, path: Path, first: int = 1, also_every: int = 0, timeout_s: float = 60.0, every: int = 0
    ) -> None:
        self.path = path
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.outer_version = 0
        self.every = every
        self.sequence = 0
        self.checks = Checks(
            Records(path),
            rank=0,
            world_size=2,
            strategy=self,  # type: ignore[arg-type]
            optimizer=self.optimizer,
            seed=0,
            first=first,
            last=100,
            also_every=also_every,
            timeout_s=timeout_s,
            counts_exchanges=every > 0,
        )

    def fingerprints(self) -> dict[str, Any]:
        return {"parameters": list(self.model.parameters()), "outer": [torch.ones(10) * self.outer_version]}

    def enter(self, tensor: Any, kind: str = "all_reduce", group: str = "world") -> Operation:
        operation = Operation(group, (0, 1), kind, 4 * tensor.numel(), [tensor], [tensor], self.sequence, "sum")
        operation.began_t = time.monotonic()
        self.sequence += 1
        self.checks.operations.entered(operation)
        return operation

    def leave(self, operation: Operation) -> None:
        operation.ended_t = time.monotonic()
        self.checks.operations.left(operation)

    def train(self, step: int, update: bool = True) -> None:
        self.checks.begin(step)
        buffer = torch.arange(1000, dtype=torch.float32)
        entered = self.enter(buffer)
        buffer.mul_(2)
        self.leave(entered)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if update:
            self.optimizer.step()
        if self.every and step % self.every == 0:
            self.outer_version += 1
        self.checks.end()

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return json_files.read_lines(self.path, kind)


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
    at = positions(7, "world", 1, 1000, 64)
    assert len(set(at)) == 64
    assert set(at) <= set(range(1000))
    assert at == positions(7, "world", 1, 1000, 64)
    assert at != positions(7, "world", 2, 1000, 64)
    assert at != positions(7, "site:east", 1, 1000, 64)
    assert sorted(positions(7, "world", 1, 5, 64)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count_of", [10, 100, 128, 129, 100_000])
def test_fewer_positions_are_the_first_of_more(count_of: int) -> None:
    assert positions(3, "world", 9, count_of, 8) == positions(3, "world", 9, count_of, 64)[:8]


def test_numbers_are_recorded_exactly() -> None:
    values = torch.tensor([0.1, -2.5, 1e-40, float("inf")])
    as_bytes = values.numpy().tobytes()
    assert hexadecimal(values) == struct.pack("<4f", *values.tolist()).hex()
    assert hexadecimal(values.bfloat16()) == struct.pack("<4f", *values.bfloat16().tolist()).hex()
    assert hexadecimal(values.double()) == struct.pack("<4d", *values.tolist()).hex()
    assert hexadecimal(torch.tensor([-3, 7], dtype=torch.uint8)) == struct.pack("<2q", 253, 7).hex()
    assert crc32([values[:1], values[1:]]) == f"{zlib.crc32(as_bytes):08x}"


def test_elements_of_several_tensors_are_those_of_their_concatenation() -> None:
    tensors = [torch.arange(5.0), torch.zeros(0), torch.arange(10.0, 30.0).view(4, 5)]
    whole = torch.cat([each.reshape(-1) for each in tensors])
    at = [24, 0, 4, 5, 17]
    assert elements(tensors, at).tolist() == whole[at].tolist()


def test_what_went_in_is_recorded_before_the_sum_takes_its_place(rank: Rank) -> None:
    rank.train(1)
    (group,), (line,) = rank.lines("group"), rank.lines("step")
    assert (group["group"], group["ranks"]) == ("world", [0, 1])
    (operation,) = line["operations"]
    assert (operation["operation"], operation["sequence"], operation["bytes"]) == ("all_reduce", 0, 4000)
    sample = operation["sample"]
    inputs = struct.unpack("<64f", bytes.fromhex(sample["inputs"]))
    outputs = struct.unpack("<64f", bytes.fromhex(sample["outputs"]))
    assert list(inputs) == [float(position) for position in sample["at"]]
    assert list(outputs) == [2.0 * position for position in sample["at"]]


def test_an_operation_is_recorded_in_the_step_in_which_it_ended_and_names_the_one_in_which_it_began(rank: Rank) -> None:
    rank.checks.begin(1)
    streaming = rank.enter(torch.zeros(10), group="fragment")
    rank.checks.end()
    rank.train(2)
    rank.leave(streaming)
    going = rank.enter(torch.zeros(10), group="fragment")  # held, as the process group holds it
    rank.checks.end()
    rank.checks.close()
    first, second, third = rank.lines("step")
    assert first["operations"] == []
    assert [(it["sequence"], it.get("step")) for it in second["operations"]] == [(1, None)]
    assert [(it["sequence"], it.get("step")) for it in third["operations"]] == [(0, 1)]
    (left,) = rank.lines("unfinished")
    assert [(it["sequence"], it["step"], "ended_t" in it) for it in left["operations"]] == [(going.sequence, 2, False)]


def test_fingerprints_are_taken_after_each_exchange_and_a_trace_after_every_step(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "checks.jsonl", first=21, every=7)
    for step in range(21, 40):
        rank.train(step)
    rank.checks.close()
    steps = {line["step"]: line for line in rank.lines("step")}
    exchanged = {28, 35}
    assert {step for step, line in steps.items() if "fingerprints" in line} == (
        exchanged | {21} | {step for step in steps if drawn(0, step)}
    )
    assert {step for step, line in steps.items() if "fingerprints_before" in line} >= {29, 36}
    assert steps[28]["fingerprints"]["outer"] == steps[29]["fingerprints_before"]["outer"]
    assert [steps[step]["outer_version"] for step in (27, 28, 34, 35)] == [1, 2, 2, 3]
    assert len({line["trace"]["parameters"] for line in steps.values()}) == len(steps)
    assert len({line["trace"]["outer"] for line in steps.values()}) == 3


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
    oracle.until(lambda: len(rank.lines(kind)) >= count, 10.0, f"{kind} is recorded")
    return rank.lines(kind)


def test_the_watchdog_says_once_where_a_rank_is(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "checks.jsonl", timeout_s=TIMEOUT_S)
    rank.checks.begin(1)
    (outside,) = wait_for(rank, "waits", 1)
    assert (outside["step"], outside["sequence"]) == (1, None)
    rank.leave(rank.enter(torch.zeros(3)))
    entered_t = time.monotonic()
    waiting = rank.enter(torch.zeros(3))
    inside = wait_for(rank, "waits", 2)[1]
    assert (inside["step"], inside["sequence"], inside["group"]) == (1, waiting.sequence, "world")
    assert inside["since_t"] == pytest.approx(entered_t, abs=0.1)
    assert inside["t"] - inside["since_t"] > TIMEOUT_S / 2
    rank.checks.close()
    assert len(rank.lines("waits")) == 2


@pytest.mark.parametrize("written", ["explode:rank=1,step=2", "stale"])
def test_a_breakage_that_there_is_not_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="TESTBED_BREAK"):
        planted_errors().Plan.parse(written)


def test_a_message_that_nobody_waits_for_is_no_wait(tmp_path: Path) -> None:
    rank = Rank(tmp_path / "checks.jsonl", timeout_s=TIMEOUT_S)
    rank.checks.begin(1)
    posted = rank.enter(torch.zeros(3), kind="recv")
    (outside,) = wait_for(rank, "waits", 1)
    assert (outside["sequence"], posted.blocked_t) == (None, None)
    rank.checks.close()
