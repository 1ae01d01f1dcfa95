"""What is offered for a program's output: the preset that reads it, a pattern that does, or nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from testbed.core.workload.progress_lines import LineParser
from testbed.core.workload.progress_patterns import compiled
from testbed.core.workload.progress_presets import PRESETS
from testbed.core.workload.step_lines import EXAMPLE, Offer, offer

CAPTURED = Path(__file__).parent / "captured"
READERS = {name: lambda lines=lines: LineParser(lines).read for name, lines in PRESETS.items()}


def offered(lines: list[str]) -> Offer | None:
    return offer({0: ["starting", *lines, "done"], 1: ["rank 1 is up"]}, READERS)


@pytest.mark.parametrize("name", PRESETS)
def test_captured_output_of_a_preset_s_program_is_offered_that_preset(name: str) -> None:
    files = sorted(CAPTURED.glob(f"{name}*.txt"))
    assert files
    told = {found.preset for file in files if (found := offer({0: _lines(file)}, READERS)) is not None}
    assert told == {name}


def _lines(file: Path) -> list[str]:
    return re.split(r"[\r\n]+", file.read_text(errors="replace"))


@pytest.mark.parametrize(
    "form",
    [
        "step {step}: loss {loss}",
        "[Step {step}/900] lr 0.001 training loss={loss}",
        "INFO 2026-11-22 10:00:00,123 train iteration={step} | train_loss: {loss} | grad norm 1.5",
        '{{"global_step": {step}, "loss": {loss}}}',
        "epoch 0 | Iter {step:4d} | Loss {loss}",
        "update #{step} it's loss {loss}",
        "Training step   {step}   Loss:  {loss}",
    ],
)
def test_the_pattern_reads_the_steps_and_losses_of_the_lines_that_it_was_made_from(form: str) -> None:
    told = [(step, round(4 - step / 100, 3)) for step in range(10, 310, 10)]
    lines = [form.format(step=step, loss=loss) for step, loss in told]
    found = offered(lines)
    assert found is not None and found.ranks == (0,)
    # As a user would have it: from YAML, and accepted as a pattern.
    written = yaml.safe_load(found.yaml)["progress"]["line"]
    matches = [compiled(written).search(line) for line in lines]
    assert [(int(it["step"]), float(it["train_loss"])) for it in matches if it] == told
    assert found.sample in [" ".join(line.split()) for line in lines]


def test_a_line_without_a_loss_is_offered_for_its_step_alone() -> None:
    found = offered([f"step {step} took 0.1 s" for step in range(5)])
    assert found is not None
    assert found.pattern == r"\bstep\s*(?P<step>\d+)"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["step 1 of the setup", "step 2 of the setup"],
        [f"loaded shard {number}" for number in range(50)],
        [f"step {step}" for step in (9, 3, 7, 1, 8, 2, 6)],
        ["step 0.5", "step 0.6", "step 0.7", "step 0.8"],
        [f"lockstep{number}" for number in range(9)],
    ],
)
def test_numbers_that_are_no_steps_are_not_offered(lines: list[str]) -> None:
    assert offered(lines) is None


def test_the_option_is_one_word_of_a_shell_and_the_example_is_a_pattern() -> None:
    import shlex

    assert shlex.split(EXAMPLE.option) == ["--progress", EXAMPLE.pattern]
    assert compiled(EXAMPLE.pattern).search("step 12: loss 3.5")
