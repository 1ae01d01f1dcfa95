"""Each number of a page has a meaning, which its column's head carries for pointers, keyboards and readers without."""

from __future__ import annotations

from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from builders import run_factory, validation_factory
from builders.reports import html, pages_of, report_of
from builders.run_factory import edit

from testbed.core.report.validation import validation_page


class Tables(HTMLParser):
    """The heads of each table: its label, the head's text, whether it is a number's, and its meaning."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.heads: list[tuple[str, str, bool, str]] = []
        self.rows: dict[str, list[list[str]]] = {}
        self._label = self._text = self._meaning = ""
        self._number = self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "table":
            self._label = given.get("aria-label", "")
        elif tag == "tr":
            self.rows.setdefault(self._label, []).append([])
        elif tag in ("th", "td"):
            self._inside, self._text, self._meaning = True, "", ""
            self._number = "number" in given.get("class", "").split()
        elif tag == "abbr" and self._inside:
            self._meaning = given.get("title", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "th":
            self.heads.append((self._label, " ".join(self._text.split()), self._number, self._meaning))
        elif tag == "td":
            self.rows[self._label][-1].append(" ".join(self._text.split()))
        self._inside = self._inside and tag not in ("th", "td")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self._text += data


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
    numbers = [(label, head, meaning) for label, head, number, meaning in Tables(page_of(squeezed)).heads if number]
    assert len(numbers) > least and labels <= {label for label, _, _ in numbers}
    assert [number for number in numbers if len(number[2]) < 15] == []


def test_the_certificate_s_meanings_can_be_read_without_a_pointer(squeezed: Path) -> None:
    page = html(report_of(squeezed))
    listed = page[page.index("What these numbers mean") :]
    for label, head, number, meaning in Tables(page).heads:
        if label in ("Certificate", "Fidelity under load") and number:
            assert f"<dt>{head}</dt>" in listed, head
            assert meaning.split(";")[0][:40] in listed


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
    cells = [cell for rows in Tables(page).rows.values() for row in rows for cell in row if "b/s" in cell]
    rows = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|") if "b/s" in cell]
    assert len(cells) >= 7 and len(rows) >= 9
    assert any(rate in cell for cell in cells) and any(rate in cell for cell in rows)
    for cell in cells + rows:
        assert (" for " in cell) == (scale != 1), cell
    assert (sentence in page and sentence in text) if sentence else "stands for" not in page.split("<script")[0]
