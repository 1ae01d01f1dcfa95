"""Steps and tokens, from what a program says."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.workload.progress_steps import StepCounter


def lines(text: str) -> list[dict[str, float]]:
    """Return what a program says, line by line: ``"step=1 tokens=5 | step=3"``."""
    return [
        {key: float(value) for key, value in (word.split("=") for word in line.split())} for line in text.split("|")
    ]


def counted(per_step: float | None, said: Iterable[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the records of lines that come a second apart."""
    counter = StepCounter(per_step)
    records = filter(None, (counter.take(float(t), values) for t, values in enumerate(said)))
    return [{key: value for key, value in record.items() if key not in ("kind", "t")} for record in records]


@table(
    "per_step, said, tokens",
    {
        "a number a step": (64, "step=10 | step=20 | step=21", [None, 640, 64]),
        "what the program says of a step": (None, "step=1 tokens=5 | step=3 tokens=7", [None, 14]),
        "seen since the begin": (
            None,
            "step=1 tokens_seen=100 | step=5 tokens_seen=500 | step=6 tokens_seen=600",
            [None, 400, 100],
        ),
        "seen since the program began again": (
            None,
            "step=1 tokens_seen=100 | step=5 tokens_seen=500 | step=6 tokens_seen=600 | step=7 tokens_seen=3",
            [None, 400, 100, None],
        ),
        "announced": (None, "tokens_per_step=8 | step=1 | step=2", [None, 8]),
        "those that the user says, not those announced": (9, "tokens_per_step=8 | step=1 | step=2", [None, 9]),
        "announced by sequences": (None, "sequences_per_step=4 tokens_per_sequence=16 | step=1 | step=2", [None, 64]),
    },
)
def test_tokens_of_step_counter(per_step: float | None, said: str, tokens: list[int | None]) -> None:
    assert [record["tokens"] for record in counted(per_step, lines(said))] == tokens


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 1000))
def test_tokens_add_up_to_the_steps_that_were_passed(steps: list[int], per_step: int) -> None:
    records = counted(per_step, ({"step": float(step)} for step in steps))
    passed = sum(max(0, b - a) for a, b in itertools.pairwise(steps))
    assert sum(record["tokens"] or 0 for record in records) == per_step * passed
    assert [record["step"] for record in records] == [b for a, b in zip([None, *steps], steps, strict=False) if a != b]


@table(
    "per_step, said, records",
    {
        "a step that is told again is written only with something new": (
            4,
            "step=1 | step=1 | train_loss=2 | step=1 | step=1 train_loss=2 | step=2",
            [
                {"step": 1, "tokens": None, "train_loss": None},
                {"step": 1, "tokens": None, "train_loss": 2.0},
                {"step": 2, "tokens": 4, "train_loss": None},
            ],
        ),
        "what has no step is held for the next": (
            None,
            "train_loss=3 lr=0.1 | step=4",
            [{"step": 4, "tokens": None, "train_loss": 3.0, "lr": 0.1}],
        ),
        "damage is no step": (None, "step=-1 | step=1.5 | step=1e300 | epoch_step=-3", []),
        "what is no number is left out": (
            None,
            "step=1 train_loss=nan lr=inf | step=inf tokens=nan",
            [{"step": 1, "tokens": None, "train_loss": None}],
        ),
    },
)
def test_records_of_step_counter(per_step: float | None, said: str, records: list[dict[str, Any]]) -> None:
    assert counted(per_step, lines(said)) == records


@table("length", {"of known length": " epoch_steps=3", "of unknown length": ""})
def test_steps_of_epochs(length: str) -> None:
    said = " | ".join(f"epoch={epoch} epoch_step={step}{length}" for epoch in range(2) for step in range(1, 4))
    assert [record["step"] for record in counted(None, lines(said))] == [1, 2, 3, 4, 5, 6]


def test_a_record_has_its_kind_and_time() -> None:
    record = StepCounter().take(1.0, {"step": 1.0})
    assert record == {"kind": "progress", "t": 1.0, "step": 1, "tokens": None, "train_loss": None}
