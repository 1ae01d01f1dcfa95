"""Presets against output captured from the programs themselves; the expected numbers are read off by eye.

nanogpt: train.py of karpathy/nanoGPT (3adf61e) on a CPU. torchtitan: MetricsProcessor.log of pytorch/torchtitan
(b5bcd76), called with made-up figures, as it needs a GPU. hf-trainer: transformers 5.23, both streams in one pipe.
lightning: 2.6.6 with TQDM's bar, and with Rich's and TTY_COMPATIBLE=1. None had a terminal.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from builders.inputs import by_input

from testbed.core.workload.output_lines import OutputLines
from testbed.core.workload.progress_lines import LineParser
from testbed.core.workload.progress_patterns import compiled
from testbed.core.workload.progress_presets import PRESETS
from testbed.core.workload.progress_source import LinePattern
from testbed.core.workload.progress_steps import StepCounter

CAPTURED = Path(__file__).with_name("captured")


def read(preset: str | LinePattern, captured: str = "", data: bytes = b"") -> list[dict[str, Any]]:
    """Return the records of captured output, or of ``data``; the number of a byte is its time."""
    lines = PRESETS[preset] if isinstance(preset, str) else preset
    parser, counter, output = LineParser(lines), StepCounter(lines.tokens_per_step), OutputLines()
    texts = []
    data = data or (CAPTURED / captured).read_bytes()
    for index in range(len(data)):
        texts += output.feed(index, data[index : index + 1])
    texts += output.end()
    taken = [counter.take(t, values) for t, text in texts if (values := parser.read(text)) is not None]
    return [record for record in taken if record is not None]


def columns(records: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(record[name] for name in names) for record in records]


def firsts(records: list[dict[str, Any]]) -> list[int]:
    """Return the steps in order, each once."""
    return list(dict.fromkeys(record["step"] for record in records))


def lasts(records: list[dict[str, Any]], field: str = "train_loss") -> dict[int, float]:
    return {record["step"]: record[field] for record in records if record.get(field) is not None}


@pytest.mark.parametrize("name", PRESETS)
def test_every_pattern_of_a_preset_is_one_that_users_may_write(name: str) -> None:
    for pattern in PRESETS[name].patterns:
        compiled(pattern)


FIGURES = ("step", "train_loss", "tokens")


def test_nanogpt() -> None:
    records = read("nanogpt", "nanogpt.txt")
    losses = [3.144, 3.1446, 3.121, 3.1494, 3.1489, 3.1439, 3.1383, 3.146, 3.1448, 3.1593, 3.1545, 3.1429, 3.1529]
    # Not the evaluations, which come before their step; tokens as it announces.
    assert columns(records, *FIGURES) == list(zip(range(13), losses, [None] + [64] * 12, strict=True))
    assert lasts(records, "val_loss") == {0: 3.1512, 5: 3.156, 10: 3.1334}


def test_torchtitan_in_its_colours() -> None:
    assert columns(read("torchtitan", "torchtitan.txt"), *FIGURES) == [
        (1, 8.13471, None),
        (10, 7.92038, 9 * 131_072),
        (20, 7.70112, 10 * 131_072),
    ]


def test_torchtitan_as_it_printed_a_year_before() -> None:
    before = (
        b"[titan] 2025-05-01 10:00:00,000 - root - INFO - Trainer is initialized with local batch size 8, global batch"
        b" size 64, gradient accumulation steps 1, sequence length 2048, total steps 10 (warmup 2)\n"
        b"[titan] 2025-05-01 10:00:01,000 - root - INFO - step:  1  loss:  8.1309  memory:  1.90GiB(2.01%)\n"
        b"[titan] 2025-05-01 10:00:02,000 - root - INFO - step:  2  loss:  7.9000  memory:  1.90GiB(2.01%)\n"
    )
    assert columns(read("torchtitan", data=before), *FIGURES) == [(1, 8.1309, None), (2, 7.9, 64 * 2048)]


def test_hf_trainer_has_its_steps_from_the_bar_and_its_losses_from_the_dicts() -> None:
    records = read("hf-trainer", "hf-trainer.txt")
    steps = firsts(records)
    assert steps[0] == 0 and steps[-1] == 40 and steps == sorted(steps)
    assert set(range(0, 41, 5)) <= set(steps), "the bar is drawn after each dict"
    losses = [1.356, 1.706, 1.76, 1.404, 1.595, 1.543, 1.646, 1.886]
    assert lasts(records) == dict(zip(range(5, 41, 5), losses, strict=True))
    assert lasts(records, "val_loss") == {20: 1.647, 40: 1.499}, "and the bar of an evaluation counts no steps"


def test_hf_trainer_without_its_bar_is_counted() -> None:
    captured = "hf-trainer-no-bar.txt"
    assert read("hf-trainer", captured) == [], "its dicts have no step"
    losses = [0.7434, 0.6804, 0.7007, 0.428, 0.6748, 0.5892, 0.6764, 0.814]
    records = read(dataclasses.replace(PRESETS["hf-trainer"], every=5), captured)
    assert columns(records, "step", "train_loss") == list(zip(range(5, 41, 5), losses, strict=True))


def test_hf_trainer_as_it_printed_numbers_before() -> None:
    line = (
        b"{'loss': 2.1044, 'grad_norm': 1.2, 'learning_rate': 4.5e-05, 'epoch': 0.1, 'num_input_tokens_seen': 8192}\n"
    )
    bars = b"\r 10%|#         | 10/100 [00:01<00:09, 9.99it/s]\r 20%|##        | 20/100 [00:02<00:08, 9.99it/s]\n"
    later = line.replace(b"8192", b"16384") + bars.replace(b"20/", b"30/")
    records = read("hf-trainer", data=line + bars + later)
    assert columns(records, "step", "train_loss")[0] == (10, 2.1044)
    assert [record["tokens"] for record in records if record["train_loss"] is not None] == [None, 8192]


@by_input(
    "bar, expected",
    {"tqdm": {1: 0.302, 12: 0.0526, 13: 0.381, 36: 0.0788}, "rich": {1: 0.507, 12: 0.473, 36: 0.241}},
)
def test_lightning_counts_its_batches_over_all_epochs(bar: str, expected: dict[int, float]) -> None:
    records = read("lightning", f"lightning-{bar}.txt")
    assert firsts(records) == list(range(1, 37)), "three epochs of twelve"
    losses = lasts(records)
    assert {step: losses[step] for step in expected} == expected


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("captured", sorted(file.name for file in CAPTURED.glob("*.txt")))
def test_a_preset_reads_nothing_of_other_programs(name: str, captured: str) -> None:
    assert bool(read(name, captured)) == (captured.startswith(name) and "no-bar" not in captured)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "line", ["[" * 5000, "Epoch 1:" * 900, "iter 1: loss 1" * 400, "{'loss': '" * 600, "1," * 9999]
)
def test_hostile_lines_do_not_stop_a_preset(name: str, line: str) -> None:
    LineParser(PRESETS[name]).read(line)
