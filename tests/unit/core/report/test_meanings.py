"""Each number of a page has a meaning, which its column's head carries for pointers, keyboards and readers without."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from builders import run_factory, validation_factory

from testbed.core.report import run_page
from testbed.core.report.document import build
from testbed.core.report.markdown import markdown
from testbed.core.report.validation import validation_page
from testbed.host.files.store import RunDirectory


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


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = run_factory.make_run(tmp_path_factory.mktemp("meanings") / "run", steps=60)
    events = path / "events.jsonl"
    squeeze: dict[str, Any] = {"fault": "f7", "type": "rate-squeeze", "target": "north", "links": ["north"]}
    told = {"direction": "north:west", "dark_by": [], "masked": []}
    told["values"] = [{"key": "rate", "text": "80 Mb/s", "by": ["f7"]}]
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    lines.append({"t": 1010.0, "event": "fault-began", **squeeze, "in_force": {"north:west": told}})
    lines += [
        {"t": 1011.0 + n, "event": "carrier", "link": "north", "site": "east", "up": n % 2 == 0} for n in range(30)
    ]
    events.write_text("".join(json.dumps(it) + "\n" for it in lines))
    whole = json.loads((path / "run.json").read_text())
    whole["schedule"] = [{"inject": "rate-squeeze", "target": "north", "at_s": 3.0, "lasts_s": 4.0, "began": 1}]
    whole["schedule"][0]["parameters"] = {"to": "80M"}
    (path / "run.json").write_text(json.dumps(whole))
    return path


def page_of(path: Path) -> str:
    return run_page.html(build(RunDirectory(path).read()))


def test_each_number_of_a_run_s_page_has_a_meaning(run: Path) -> None:
    heads = Tables(page_of(run)).heads
    numbers = [(label, head) for label, head, number, _ in heads if number]
    assert len(numbers) > 30 and {"Certificate", "Fault schedule", "Rank-seconds"} <= {it for it, _ in numbers}
    assert [(label, head) for label, head, number, told in heads if number and len(told) < 15] == []


def test_each_number_of_a_validation_s_page_has_a_meaning() -> None:
    heads = Tables(validation_page.html(validation_factory.validation())).heads
    assert sum(number for _, _, number, _ in heads) > 5
    assert [(label, head) for label, head, number, told in heads if number and len(told) < 15] == []


def test_the_certificate_s_meanings_can_be_read_without_a_pointer(run: Path) -> None:
    page = page_of(run)
    listed = page[page.index("What these numbers mean") :]
    for label, head, number, told in Tables(page).heads:
        if label in ("Certificate", "Fidelity under load") and number:
            assert f"<dt>{head}</dt>" in listed, head
            assert told.split(";")[0][:40] in listed


def test_a_certificate_is_told_in_words(run: Path) -> None:
    said = "Both links behave as the topology asks. Median packets are at most 5 us late; 50 us are allowed"
    assert said in page_of(run) and said in markdown(build(RunDirectory(run).read()))
    path = run / "certificate.json"
    whole = path.read_text()
    try:
        path.write_text(json.dumps(run_factory.certificate(80e-6)))
        page = page_of(run)
        assert "2 of 2 links do not behave as the topology asks: north, south." in page
        assert "at most 81 us late; 50 us are allowed" in page
    finally:
        path.write_text(whole)


@pytest.mark.parametrize("scale", [1000.0, 100.0, 1.0])
def test_every_rate_of_a_page_has_its_meaning_at_full_scale(run: Path, scale: float) -> None:
    """The throughput plot and the drawing have their own tests; this one reads the tables, and Markdown as a whole."""
    path = run / "topology.json"
    whole = path.read_text()
    try:
        path.write_text(json.dumps({**json.loads(whole), "scale": scale}))
        page, text = page_of(run), markdown(build(RunDirectory(run).read()))
    finally:
        path.write_text(whole)
    cells = [cell for rows in Tables(page).rows.values() for row in rows for cell in row if "b/s" in cell]
    rows = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split("|") if "b/s" in cell]
    assert len(cells) >= 7 and len(rows) >= 9
    squeezed = {1000.0: "80 Mb/s for 80 Gb/s", 100.0: "80 Mb/s for 8 Gb/s", 1.0: "rate 80 Mb/s: f7"}[scale]
    assert any(squeezed in cell for cell in cells) and any(squeezed in cell for cell in rows)
    for cell in cells + rows:
        assert (" for " in cell) == (scale != 1), cell
    sentence = {1000.0: "800 Mb/s stands for 800 Gb/s", 100.0: "800 Mb/s stands for 80 Gb/s"}.get(scale)
    assert (sentence in page and sentence in text) if sentence else "stands for" not in page.split("<script")[0]
