"""Two runs side by side, and the meanings of numbers, in a real browser, offline."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import run_factory
from builders.pages import width_of

from testbed.host.files.store import RunDirectory, write_report
from testbed.lab import api

pytestmark = pytest.mark.e2e

PLOTS = ("step-time", "throughput")


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    runs = run_factory.make_run(root / "one"), run_factory.make_run(root / "two", steps=300)
    api.side_by_side(*runs, root / "page")
    return root / "page"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")])
def test_two_runs_stand_beside_each_other_and_below_each_other_on_a_phone(compared, visit, width, scheme):
    page = visit(compared, width=width, scheme=scheme)
    for plot in PLOTS:
        boxes = []
        for side in "ab":
            page.wait_for_selector(f"#{side}-{plot}[data-drawn] .main-svg", timeout=20_000)
            boxes.append(page.locator(f"#{side}-{plot}").bounding_box())
        a, b = boxes
        if width > 760:
            assert a["y"] == b["y"] and a["x"] + a["width"] <= b["x"]
            assert a["width"] == pytest.approx(b["width"])
        else:
            assert a["x"] == b["x"] and a["y"] + a["height"] <= b["y"]
    assert page.said == [] and page.asked == [(compared / "index.html").as_uri()]
    assert width_of(page) <= width
    row = page.get_by_label("Key figures").locator("tr", has_text="goodput").locator("td")
    places = [row.nth(number).bounding_box() for number in (0, 1)]
    assert (places[0]["y"] == places[1]["y"]) == (width > 760)
    first = page.locator("h2", has_text="What differs in the inputs").bounding_box()
    assert first["y"] < page.locator("h2", has_text="Answers").bounding_box()["y"]


@pytest.mark.parametrize("width", [1280, 400])
def test_a_number_s_meaning_is_had_by_pointer_keyboard_and_touch(tmp_path, browser, width):
    run_factory.make_run(tmp_path / "run", steps=60)
    write_report(RunDirectory.open(tmp_path / "run"))
    page = browser.new_page(viewport={"width": width, "height": 800}, has_touch=True)
    try:
        page.goto((tmp_path / "run" / "index.html").as_uri())
        table, bubble = page.get_by_label("Certificate", exact=True), page.locator("#meaning")
        assert bubble.is_hidden()

        def inside() -> bool:
            box = bubble.bounding_box()
            return box["x"] >= 0 and box["x"] + box["width"] <= width and 0 <= box["y"] <= 800

        cell = table.locator("tbody td.number").nth(2)  # the error of the first direction
        cell.hover()
        bubble.wait_for(state="visible")
        assert "How much later than the target" in bubble.inner_text() and inside()
        page.keyboard.press("Escape")
        bubble.wait_for(state="hidden")
        table.locator("tbody td.number").nth(0).tap()
        bubble.wait_for(state="visible")
        assert "The delay that the fiber shall have" in bubble.inner_text() and inside()
        page.keyboard.press("Escape")
        heads = table.locator("abbr.term")
        heads.nth(0).focus()
        for number in range(1, heads.count()):
            page.keyboard.press("Tab")
            bubble.wait_for(state="visible")
            assert bubble.inner_text().startswith(heads.nth(number).inner_text()) and inside()
        page.get_by_text("What these numbers mean").click()
        assert page.locator("dl.legend dt").first.is_visible()
    finally:
        page.close()
