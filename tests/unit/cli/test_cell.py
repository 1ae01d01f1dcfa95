"""Where the text of a cell breaks."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from testbed.cli.tables import Cell


def lines(text: str | Text, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    return [line.plain.rstrip() for line in Cell.of(text).wrap(console, width, overflow="fold")]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("san-francisco-to-santa-clara", 28, ["san-francisco-to-santa-clara"]),
        ("san-francisco-to-santa-clara", 18, ["san-francisco-to-", "santa-clara"]),
        ("san-francisco-to-santa-clara", 9, ["san-", "francisco", "-to-santa", "-clara"]),
        ("north:san-francisco up", 13, ["north:san-", "francisco up"]),
        ("to frankfurt-am-main", 12, ["to", "frankfurt-am", "-main"]),
        ("sacramento", 8, ["sacramen", "to"]),
        ("-12.5 us 1e-05", 8, ["-12.5 us", "1e-05"]),
    ],
)
def test_a_name_breaks_where_its_parts_meet(text: str, width: int, expected: list[str]) -> None:
    assert lines(text, width) == expected


@given(st.text("ab-: \n→", max_size=60), st.integers(1, 30))
def test_nothing_is_lost_and_no_line_is_too_wide(text: str, width: int) -> None:
    found = lines(text, width)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(len(line) <= width for line in found)


def test_styles_stay_where_they_were() -> None:
    text = Text("san-francisco ").append("down", style="bold red")
    console = Console(file=io.StringIO(), width=9)
    last = list(Cell.of(text).wrap(console, 9, overflow="fold"))[-1]
    assert (last.plain.strip(), [str(it.style) for it in last.spans]) == ("down", ["bold red"])
