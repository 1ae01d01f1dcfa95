"""What this version makes of the stored runs is what was stored (tests/stored_runs.py): a part of it, drawn by seed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from oracles.differences import Difference, Templates, differences, text_differences

TOOL = Path(__file__).resolve().parents[2] / "stored_runs.py"
PART = "1/4"
"""All of it takes four times as long: ``python tests/stored_runs.py``."""


@pytest.mark.timeout(900)  # of a busy host; it takes 35 s of CPU time
def test_outputs_for_stored_runs_are_those_that_were_stored() -> None:
    done = subprocess.run([sys.executable, TOOL, "--part", PART], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1, "b": [1.5]}, {"a": 1, "b": [1.5]}, []),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, []),
        ({"a": 1}, {"a": 2}, ["x.a: 1 -> 2"]),
        ({"a": 1}, {"a": 1.0}, ["x.a: 1 -> 1.0"]),
        ({"a": True}, {"a": None}, ["x.a: True -> None"]),
        ({"a": "pass"}, {"a": "unknown"}, ["x.a: 'pass' -> 'unknown'"]),
        ({"a": 1}, {"b": 1}, ["x.a: 1 -> 'nothing'", "x.b: 'nothing' -> 1"]),
        ([1, 2], [1], ["x.length: 2 -> 1"]),
        ({"a": []}, {"a": {}}, ["x.a: [] -> {}"]),
    ],
)
def test_a_figure_that_differs_is_found(old: Any, new: Any, expected: list[str]) -> None:
    found = list(differences(old, new, "x"))
    assert [str(difference) for difference in found] == expected
    assert not any(difference.prose for difference in found)


def test_words_that_differ_are_prose() -> None:
    assert list(differences(["it held"], ["it holds"])) == [Difference("[0]", "it held", "it holds", prose=True)]
    lines = list(text_differences(["a", "b", "c"], ["a", "B", "c", "d"], "page"))
    assert [(line.old, line.new) for line in lines] == [("b", "B"), ("nothing", "d")]


@pytest.mark.parametrize(
    ("new", "accepted"),
    [
        ("rank 3: ended after 12 s", True),
        ("rank 3: ended after 13 s", False),
        ("rank 3 ended", False),
    ],
)
def test_a_template_accepts_new_words_with_the_same_values(new: str, accepted: bool) -> None:
    templates = Templates([["after {time} rank {rank} ended", "rank {rank}: ended after {time}"]])
    assert templates.accept("after 12 s rank 3 ended", new) == accepted


def test_templates_accept_parts_of_a_line_each() -> None:
    templates = Templates(
        [["It trained across {what}.", "Training crossed {what}."], ["{n} steps lost", "lost: {n} steps"]]
    )
    old, new = "pass: It trained across the fiber. 3 steps lost", "pass: Training crossed the fiber. lost: 3 steps"
    assert templates.accept("# It trained across the fiber.", "# Training crossed the fiber.")
    assert not templates.accept("# It trained across the fiber.", "# Training crossed a fiber.")
    assert templates.accept("It trained across the fiber.", "Training crossed the fiber.")
    assert templates.accept(old, new)
    assert not templates.accept(old, new.replace("3", "4"))
