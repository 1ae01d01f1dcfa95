"""Names in the legend of a plot: short enough for it, and told apart at a glance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.report.figures.plotly_figure import told_apart

ROUTE = "san-francisco-to-los-angeles-coast"
NAMES = st.from_regex(r"[a-c](-?[a-c]){0,20}:[a-c](-?[a-c]){0,20}", fullmatch=True)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            [f"{ROUTE}-{way}:{city}-center" for way in ("north", "south") for city in ("san-francisco", "los-angeles")],
            [
                "san…north:san-francisco…",
                "san…north:los-angeles…",
                "san…south:san-francisco…",
                "san…south:los-angeles…",
            ],
        ),
        (["north:east", "a-long-name-of-a-link-at-the-coast:east"], ["north:east", "a-long-name-of-a…:east"]),
        (["a" * 40, "b" * 40], ["aaaaaaaaaaaaa…aaaaaaaaaaaa", "bbbbbbbbbbbbb…bbbbbbbbbbbb"]),
    ],
)
def test_names_keep_what_tells_them_apart(names: Sequence[str], told: Sequence[str]) -> None:
    assert told_apart(names, 26) == list(told)


@given(st.lists(NAMES, max_size=6, unique=True))
def test_different_names_stay_different_and_short_ones_whole(names: list[str]) -> None:
    told = told_apart(names, 12)
    assert len(set(told)) == len(names)
    assert all(each == name for each, name in zip(told, names, strict=True) if len(name) <= 12)
