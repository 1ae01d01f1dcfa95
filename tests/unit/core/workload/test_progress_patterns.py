"""Users' patterns: which are refused, and that those that are not cannot go exponential."""

from __future__ import annotations

import pytest

from testbed.core.units import Unreadable
from testbed.core.workload.progress_lines import LONGEST, LineParser, plain
from testbed.core.workload.progress_patterns import compiled
from testbed.core.workload.progress_source import LinePattern


@pytest.mark.parametrize(
    "pattern, why",
    [
        (r"(?P<step>(a+)+)b", "exponentially long"),
        (r"(?P<step>\d+)(ab|\w)*x", "exponentially long"),
        (r"(?P<step>\d+)(a|aa)+$", "exponentially long"),
        (r"(?P<step>\d+)(.*,)*$", "exponentially long"),
        (r"(?P<step>\d+)(x?y?)*z", "exponentially long"),
        (r"(?P<step>\d+)((ab){1,50})*z", "exponentially long"),
        (r"(?=(a+)+b)(?P<step>\d+)", "exponentially long"),
        (r"(?P<step>(\d{1,32}){1,32}x)", "exponentially long"),
        (r"(?P<step>((\d{1,4}){1,4}){1,4}x)", "exponentially long"),
        (r"(?P<step>.*).*.*.*.*x", "very long"),
        (r"(?P<step>\S+)[^a]+\D+\W+.+x", "very long"),
        (r"iter (\d+)", "no named group"),
        (r"(?P<step>\d+", "not a regular expression"),
        (r"(?P<rank>\d+) (?P<step>\d+)", "cannot be named rank"),
        ("", "expected a regular expression"),
        (7, "expected a regular expression"),
        ("(?P<step>x)" + "a" * 1000, "too long"),
    ],
)
def test_what_is_refused(pattern: object, why: str) -> None:
    with pytest.raises(Unreadable, match=why) as error:
        compiled(pattern)
    assert error.value.fix


@pytest.mark.parametrize(
    "pattern",
    [
        r"iter (?P<step>\d+): loss (?P<train_loss>[\d.]+)",
        r"step (?P<step>\d+).*loss (?P<train_loss>\S+).*tok/s (?P<speed>[\d,]+)",
        r"(?:\[\w+\] )?(?P<step>\d+)",
        r"(?:\d{1,3}\.){3}\d{1,3} (?:\d{1,2}:){2,3} (?P<step>\d+)",
        r"(?P<step>\d+)(?:[^,]*+,)*+",
        r"iteration\s+(?P<step>\d+)/\s*\d+ \| consumed samples:\s+\d+ \|.*lm loss: (?P<train_loss>\S+)",
    ],
)
def test_what_is_taken(pattern: str) -> None:
    compiled(pattern)
    LineParser(LinePattern((pattern,))).read("step 1 loss tok/s " * 500)


def test_only_the_begin_of_a_line_is_searched() -> None:
    parser = LineParser(LinePattern((r"step (?P<step>\d+)",)))
    assert parser.read("x" * (LONGEST - 7) + " step 5") == {"step": 5.0}, "it ends at the limit"
    assert parser.read("x" * (LONGEST - 6) + " step 5") is None
    assert parser.read(" " * LONGEST + "step 5") is None
    assert parser.read("\x1b[31m" * 100 + "step 5") == {"step": 5.0}, "colours are no text"


def test_control_sequences() -> None:
    assert plain("\x1b[38;2;180;60;0mstep\x1b[0m \x1b]0;title\x07x\x1b[2K\x1b[?25l") == "step x"
    assert plain("50%\x1b[A") == "50%\x1b[A", "which tells a nested bar"
    assert plain("\x1b[1A\x1b[2KEpoch 1") == "Epoch 1"


def test_numbers_as_programs_print_them() -> None:
    parser = LineParser(LinePattern((r"(?P<step>\S+) (?P<train_loss>\S+)(?: (?P<lr>\S+))?",)))
    assert parser.read("1,024 3.5e-1 6e-4") == {"step": 1024.0, "train_loss": 0.35, "lr": 6e-4}
    assert parser.read("7 nan") == {"step": 7.0}, "not a number, and no lr"
    assert parser.read("8 inf x") == {"step": 8.0}


def test_lines_without_a_step_are_counted_or_announce() -> None:
    parser = LineParser(LinePattern((r"loss (?P<train_loss>\S+)",)))
    assert [parser.read(f"loss {it}") for it in (3, 2)] == [
        {"train_loss": 3.0, "step": 1.0},
        {"train_loss": 2.0, "step": 2.0},
    ]
    parser = LineParser(LinePattern((r"batch (?P<tokens_per_step>\d+)", r"(?P<step>\d+)")))
    assert parser.read("batch 64") == {"tokens_per_step": 64.0}
