"""Each number of a page has a meaning, which its column's head carries for pointers, keyboards and readers without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from builders import run_factory, validation_factory
from builders.page_tree import text_of, tree_of
from builders.reports import html, pages_of, report_of
from builders.run_factory import edit

from testbed.core.report.validation import validation_page


class Head(NamedTuple):
    """The head of a column, and the label of its table."""

    label: str
    text: str
    is_number: bool
    meaning: str


def heads(page: str) -> list[Head]:
    return [
        Head(
            table.get("aria-label", ""),
            text_of(head),
            "number" in head.get("class", "").split(),
            "".join(abbreviation.get("title", "") for abbreviation in head.iter("abbr")),
        )
        for table in tree_of(page).iter("table")
        for head in table.iter("th")
    ]


@pytest.fixture
def squeezed(tmp_path: Path) -> Path:
    run = run_factory.make_run(tmp_path / "run", steps=60)
    squeeze = {"fault": "f7", "type": "rate-squeeze", "target": "north", "links": ["north"]}
    in_force = {"direction": "north:west", "dark_by": [], "masked": []}
    values = [{"key": "rate", "text": "80 Mb/s", "by": ["f7"]}]
    began = {"t": 1010.0, "event": "fault-began", **squeeze, "in_force": {"north:west": {**in_force, "values": values}}}
    carriers = [
        {"t": 1011.0 + n, "event": "carrier", "link": "north", "site": "east", "up": n % 2 == 0} for n in range(30)
    ]
    edit(run, "events.jsonl", lambda events: [*events, began, *carriers])
    planned = {"inject": "rate-squeeze", "target": "north", "at_s": 3.0, "lasts_s": 4.0, "began": 1}
    return edit(run, "run.json", schedule=[{**planned, "parameters": {"to": "80M"}}])


@pytest.mark.parametrize(
    ("page_of", "least", "labels"),
    [
        pytest.param(
            lambda run: html(report_of(run)), 30, {"Certificate", "Fault schedule", "Rank-seconds"}, id="a run"
        ),
        pytest.param(lambda _: validation_page.html(validation_factory.validation()), 5, set(), id="a validation"),
    ],
)
def test_each_number_of_a_page_has_a_meaning(
    squeezed: Path, page_of: Callable[[Path], str], least: int, labels: set[str]
) -> None:
    numbers = [head for head in heads(page_of(squeezed)) if head.is_number]
    assert len(numbers) > least and labels <= {head.label for head in numbers}
    assert [head for head in numbers if len(head.meaning) < 15] == []


def test_the_certificate_s_meanings_can_be_read_without_a_pointer(squeezed: Path) -> None:
    page = html(report_of(squeezed))
    listed = page[page.index("What these numbers mean") :]
    for head in heads(page):
        if head.label in ("Certificate", "Fidelity under load") and head.is_number:
            assert f"<dt>{head.text}</dt>" in listed, head
            assert head.meaning.split(";")[0][:40] in listed


def test_a_certificate_is_told_in_words(squeezed: Path) -> None:
    words = "Both links behave as the topology asks. Median packets are at most 5 us late; 50 us are allowed"
    assert all(words in page for page in pages_of(report_of(squeezed)))
    page = html(report_of(edit(squeezed, "certificate.json", **run_factory.certificate(80e-6))))
    assert "2 of 2 links do not behave as the topology asks: north, south." in page
    assert "at most 81 us late; 50 us are allowed" in page


@pytest.mark.parametrize(
    ("scale", "rate", "sentence"),
    [
        (1000.0, "80 Mb/s for 80 Gb/s", "800 Mb/s stands for 800 Gb/s"),
        (100.0, "80 Mb/s for 8 Gb/s", "800 Mb/s stands for 80 Gb/s"),
        (1.0, "rate 80 Mb/s: f7", ""),
    ],
)
def test_every_rate_of_a_page_has_its_meaning_at_full_scale(
    squeezed: Path, scale: float, rate: str, sentence: str
) -> None:
    """The throughput plot and the drawing have their own tests; this one reads the tables, and Markdown as a whole."""
    page, text = pages_of(report_of(edit(squeezed, "topology.json", scale=scale)))
    cells = [cell for cell in map(text_of, tree_of(page).iter("td")) if "b/s" in cell]
    rows = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|") if "b/s" in cell]
    assert len(cells) >= 7 and len(rows) >= 9
    assert any(rate in cell for cell in cells) and any(rate in cell for cell in rows)
    for cell in cells + rows:
        assert (" for " in cell) == (scale != 1), cell
    assert (sentence in page and sentence in text) if sentence else "stands for" not in page.split("<script")[0]
