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

from testbed.core.workload.output_lines import OutputLines
from testbed.core.workload.progress_lines import LineParser
from testbed.core.workload.progress_patterns import compiled
from testbed.core.workload.progress_presets import PRESETS
from testbed.core.workload.progress_source import LinePattern
from testbed.core.workload.progress_steps import StepCounter

CAPTURED = Path(__file__).with_name("captured")


def read(name: str, lines: LinePattern, data: bytes | None = None) -> list[dict[str, Any]]:
    """Return the records of captured output; the number of a byte is its time."""
    parser, counter, output = LineParser(lines), StepCounter(lines.tokens_per_step), OutputLines()
    found = []
    data = (CAPTURED / name).read_bytes() if data is None else data
    for at in range(len(data)):
        found += output.feed(at, data[at : at + 1])
    found += output.end()
    taken = [counter.take(t, said) for t, text in found if (said := parser.read(text)) is not None]
    return [it for it in taken if it is not None]


def firsts(records: list[dict[str, Any]]) -> list[int]:
    """Return the steps in order, each once."""
    return list(dict.fromkeys(it["step"] for it in records))


def lasts(records: list[dict[str, Any]], field: str = "train_loss") -> dict[int, float]:
    return {it["step"]: it[field] for it in records if it.get(field) is not None}


@pytest.mark.parametrize("name", PRESETS)
def test_every_pattern_of_a_preset_is_one_that_users_may_write(name: str) -> None:
    for pattern in PRESETS[name].patterns:
        compiled(pattern)


def test_nanogpt() -> None:
    found = read("nanogpt.txt", PRESETS["nanogpt"])
    assert firsts(found) == list(range(13)), "and not the evaluations, which come before their step"
    losses = [3.144, 3.1446, 3.121, 3.1494, 3.1489, 3.1439, 3.1383, 3.146, 3.1448, 3.1593, 3.1545, 3.1429, 3.1529]
    assert [it["train_loss"] for it in found] == losses
    assert [it["tokens"] for it in found] == [None] + [64] * 12, "as it announces"
    assert lasts(found, "val_loss") == {0: 3.1512, 5: 3.156, 10: 3.1334}


def test_torchtitan_in_its_colours() -> None:
    found = read("torchtitan.txt", PRESETS["torchtitan"])
    assert [(it["step"], it["train_loss"], it["tokens"]) for it in found] == [
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
    assert [(it["step"], it["train_loss"], it["tokens"]) for it in read("", PRESETS["torchtitan"], before)] == [
        (1, 8.1309, None),
        (2, 7.9, 64 * 2048),
    ]


def test_hf_trainer_has_its_steps_from_the_bar_and_its_losses_from_the_dicts() -> None:
    found = read("hf-trainer.txt", PRESETS["hf-trainer"])
    steps = firsts(found)
    assert steps[0] == 0 and steps[-1] == 40 and steps == sorted(steps)
    assert set(range(0, 41, 5)) <= set(steps), "the bar is drawn after each dict"
    losses = [1.356, 1.706, 1.76, 1.404, 1.595, 1.543, 1.646, 1.886]
    assert lasts(found) == dict(zip(range(5, 41, 5), losses, strict=True))
    assert lasts(found, "val_loss") == {20: 1.647, 40: 1.499}, "and the bar of an evaluation counts no steps"


def test_hf_trainer_without_its_bar_is_counted() -> None:
    assert read("hf-trainer-no-bar.txt", PRESETS["hf-trainer"]) == [], "its dicts have no step"
    found = read("hf-trainer-no-bar.txt", dataclasses.replace(PRESETS["hf-trainer"], every=5))
    assert [(it["step"], it["train_loss"]) for it in found] == list(
        zip(range(5, 41, 5), [0.7434, 0.6804, 0.7007, 0.428, 0.6748, 0.5892, 0.6764, 0.814], strict=True)
    )


def test_hf_trainer_as_it_printed_numbers_before() -> None:
    line = (
        b"{'loss': 2.1044, 'grad_norm': 1.2, 'learning_rate': 4.5e-05, 'epoch': 0.1, 'num_input_tokens_seen': 8192}\n"
    )
    bars = b"\r 10%|#         | 10/100 [00:01<00:09, 9.99it/s]\r 20%|##        | 20/100 [00:02<00:08, 9.99it/s]\n"
    found = read(
        "", PRESETS["hf-trainer"], line + bars + line.replace(b"8192", b"16384") + bars.replace(b"20/", b"30/")
    )
    assert (found[0]["step"], found[0]["train_loss"]) == (10, 2.1044)
    assert [it["tokens"] for it in found if it["train_loss"] is not None] == [None, 8192]


@pytest.mark.parametrize("bar", ["tqdm", "rich"])
def test_lightning_counts_its_batches_over_all_epochs(bar: str) -> None:
    found = read(f"lightning-{bar}.txt", PRESETS["lightning"])
    assert firsts(found) == list(range(1, 37)), "three epochs of twelve"
    losses = lasts(found)
    expected = {"tqdm": {1: 0.302, 12: 0.0526, 13: 0.381, 36: 0.0788}, "rich": {1: 0.507, 12: 0.473, 36: 0.241}}[bar]
    assert {step: losses[step] for step in expected} == expected


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("captured", sorted(it.name for it in CAPTURED.glob("*.txt")))
def test_a_preset_reads_nothing_of_other_programs(name: str, captured: str) -> None:
    assert bool(read(captured, PRESETS[name])) == (captured.startswith(name) and "no-bar" not in captured)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    "line", ["[" * 5000, "Epoch 1:" * 900, "iter 1: loss 1" * 400, "{'loss': '" * 600, "1," * 9999]
)
def test_hostile_lines_do_not_stop_a_preset(name: str, line: str) -> None:
    LineParser(PRESETS[name]).read(line)
