"""Steps and tokens, from what a program says."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.workload.progress_steps import StepCounter


def taken(counter: StepCounter, *said: dict[str, float]) -> list[dict[str, Any]]:
    found = [counter.take(float(t), values) for t, values in enumerate(said)]
    return [{key: value for key, value in it.items() if key not in ("kind", "t")} for it in found if it]


def tokens(counter: StepCounter, *said: dict[str, float]) -> list[int | None]:
    return [it["tokens"] for it in taken(counter, *said)]


def test_tokens_are_a_number_a_step() -> None:
    assert tokens(StepCounter(64), {"step": 10}, {"step": 20}, {"step": 21}) == [None, 640, 64]


def test_tokens_are_what_the_program_says_of_a_step() -> None:
    assert tokens(StepCounter(), {"step": 1, "tokens": 5}, {"step": 3, "tokens": 7}) == [None, 14]


def test_tokens_seen_count_since_the_begin() -> None:
    said = [{"step": step, "tokens_seen": step * 100.0} for step in (1, 5, 6)]
    assert tokens(StepCounter(), *said) == [None, 400, 100]
    assert tokens(StepCounter(), *said, {"step": 7, "tokens_seen": 3.0}) == [None, 400, 100, None], "it began again"


def test_tokens_are_announced() -> None:
    said = ({"tokens_per_step": 8.0}, {"step": 1}, {"step": 2})
    assert tokens(StepCounter(), *said) == [None, 8]
    assert tokens(StepCounter(9), *said) == [None, 9], "what the user says counts"
    batches = ({"sequences_per_step": 4.0, "tokens_per_sequence": 16.0}, {"step": 1}, {"step": 2})
    assert tokens(StepCounter(), *batches) == [None, 64]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 1000))
def test_tokens_add_up_to_the_steps_that_were_passed(steps: list[int], per_step: int) -> None:
    found = taken(StepCounter(per_step), *({"step": float(it)} for it in steps))
    passed = sum(max(0, b - a) for a, b in itertools.pairwise(steps))
    assert sum(it["tokens"] or 0 for it in found) == per_step * passed
    assert [it["step"] for it in found] == [b for a, b in zip([None, *steps], steps, strict=False) if a != b]


def test_a_step_that_is_told_again_is_written_only_with_something_new() -> None:
    counter = StepCounter(4)
    said = ({"step": 1}, {"step": 1}, {"train_loss": 2.0}, {"step": 1}, {"step": 1, "train_loss": 2.0}, {"step": 2})
    assert taken(counter, *said) == [
        {"step": 1, "tokens": None, "train_loss": None},
        {"step": 1, "tokens": None, "train_loss": 2.0},
        {"step": 2, "tokens": 4, "train_loss": None},
    ]


def test_what_has_no_step_is_held_for_the_next() -> None:
    assert taken(StepCounter(), {"train_loss": 3.0, "lr": 0.1}, {"step": 4}) == [
        {"step": 4, "tokens": None, "train_loss": 3.0, "lr": 0.1}
    ]


def test_epochs_with_and_without_a_known_length() -> None:
    said = [{"epoch": float(e), "epoch_step": float(s), "epoch_steps": 3.0} for e in range(2) for s in range(1, 4)]
    assert [it["step"] for it in taken(StepCounter(), *said)] == [1, 2, 3, 4, 5, 6]
    endless = [{key: it[key] for key in ("epoch", "epoch_step")} for it in said]
    assert [it["step"] for it in taken(StepCounter(), *endless)] == [1, 2, 3, 4, 5, 6]


def test_damage_is_no_step() -> None:
    assert taken(StepCounter(), {"step": -1}, {"step": 1.5}, {"step": 1e300}, {"epoch_step": -3.0}) == []


def test_what_is_no_number_is_left_out() -> None:
    counter = StepCounter()
    nan, inf = float("nan"), float("inf")
    assert counter.take(1.0, {"step": 1.0, "train_loss": nan, "lr": inf}) == {
        "kind": "progress", "t": 1.0, "step": 1, "tokens": None, "train_loss": None,
    }  # fmt: skip
    assert counter.take(2.0, {"step": inf, "tokens": nan}) is None
