"""The report in a real browser, offline: no console error, no request, every plot drawn, readable on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders import run_factory
from builders.pages import width_of

from testbed.host.files.store import RunDirectory, write_report

pytestmark = pytest.mark.e2e

PLOTS = ["train-loss", "time-of-ranks", "step-time", "tokens-per-second", "throughput", "lateness"]
PLOTS += ["rank-tokens", "rank-exposed", "rank-cpu", "rank-memory", "scrape-gaps"]


def make(path: Path, **options) -> Path:
    run_factory.make_run(path, **options)
    write_report(RunDirectory.open(path))
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_plot_is_drawn_without_an_error_or_a_request(tmp_path, visit, width, scheme):
    path = make(tmp_path / "run")
    page = visit(path, width=width, scheme=scheme)
    for plot in PLOTS:
        page.wait_for_selector(f"#{plot}[data-drawn] .main-svg", timeout=20_000)
        marks = page.locator(f"#{plot} :is(.scatterlayer .trace path.js-line, .barlayer .point path)")
        assert marks.count() > 0, f"{plot} is empty"
    assert page.said == []
    assert page.asked == [(path / "index.html").as_uri()]
    assert width_of(page) <= width
    assert "It trained, and came through the cut of north." in page.inner_text("h1")
    assert page.locator("svg.topology:visible .mark").count() == 1


@pytest.mark.thorough
def test_paper_follows_the_readers_theme(tmp_path, visit):
    path = make(tmp_path / "run")
    light, dark = visit(path), visit(path, scheme="dark")

    def brightness(page) -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert brightness(light) > 700 > 100 > brightness(dark)


def test_an_uncertified_failed_run_says_so_first(tmp_path, visit):
    page = visit(make(tmp_path / "run", status="failed", steps=260, uncertified=True))
    assert page.locator(".banner[role=alert]").is_visible()
    assert "rank 2 died of signal 9" in page.inner_text("h1")
    page.wait_for_selector("#step-time[data-drawn]", timeout=20_000)
    assert page.said == []


def test_the_certificate_says_every_quantity_on_demand(tmp_path, visit):
    page = visit(make(tmp_path / "run"), width=390)
    table = page.get_by_label("Certificate", exact=True)
    assert table.locator("tbody tr").count() == 6, "two directions and a round trip for each of two links"
    every = page.get_by_label("Every quantity of the certificate")
    assert not every.is_visible()
    page.get_by_text("Every quantity:").click()
    assert every.is_visible()
    for quantity in ("delay, median", "jitter", "loss", "reordering", "duplication", "rate", "RTT, median"):
        assert every.get_by_text(quantity, exact=True).first.is_visible()
    assert width_of(page) <= 390
    assert page.said == []


@pytest.mark.parametrize("width", [1280, 390])
def test_what_netem_cannot_measure_is_an_answer_of_its_own(tmp_path, visit, width):
    page = visit(make(tmp_path / "run", emulator="netem"), width=width)
    answer = page.locator(".answer", has_text="not measurable")
    assert answer.count() == 1
    assert answer.evaluate("it => it.scrollWidth <= it.clientWidth"), "expected no overflow into the question beside it"
    assert page.get_by_label("Fidelity under load").get_by_text("not measurable on netem").count() == 4
    assert page.locator("#lateness").count() == 0, "expected no histogram"
    assert page.said == []


def test_a_run_that_left_nothing_still_has_a_page(tmp_path, visit):
    path = tmp_path / "run"
    (path / "ranks").mkdir(parents=True)
    write_report(RunDirectory.open(path))
    page = visit(path)
    assert page.inner_text("h1")
    assert page.locator(".plot").count() == 0
    assert page.said == []
