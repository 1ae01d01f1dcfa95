"""The page of a validation in a real browser, offline: readable at any width and in both themes, with working links."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import validation_factory as factory
from builders.pages import width_of

from testbed.host.files.store import RunDirectory
from testbed.host.files.validations import write_validation

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def page_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = RunDirectory.create(tmp_path_factory.mktemp("runs"), "validated")
    write_validation(run, factory.validation(), factory.validation(factory.library(speeds=factory.speeds(0.9))))
    return run.path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_it_is_drawn_without_an_error_or_a_request(page_folder, visit, width, scheme):
    page = visit(page_folder, width=width, scheme=scheme)
    page.wait_for_selector("#time-of-all-reduce[data-drawn] .main-svg", timeout=20_000)
    assert page.said == []
    assert page.asked == [(page_folder / "index.html").as_uri()]
    assert width_of(page) <= width
    assert "wrong results without an error: lame-ring" in page.inner_text("h1")


def contrast(page, locator) -> float:
    """WCAG 2.1's contrast ratio of an element's text and the first opaque background behind it."""
    return locator.evaluate("""it => {
        const light = (text) => {
            const [r, g, b] = text.match(/[\\d.]+/g).map((each) => each / 255)
                .map((each) => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        };
        let behind = it;
        while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
        const [a, b] = [light(getComputedStyle(it).color), light(getComputedStyle(behind).backgroundColor)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_of_the_matrix_can_be_read(page_folder, visit, scheme):
    """WCAG requires a contrast of 4.5 for text."""
    page = visit(page_folder, scheme=scheme)
    words = page.locator("table.matrix .mark, table.matrix .note")
    assert words.count() > 30
    assert min(contrast(page, words.nth(index)) for index in range(words.count())) >= 4.5


def test_a_wrong_result_stands_out_and_leads_to_its_detail(page_folder, visit):
    page = visit(page_folder)
    folded = page.locator("#library-torch-gloo-cut-long")
    assert folded.get_attribute("open") is None
    page.locator("table.matrix a[href='#library-torch-gloo-cut-long']").click()
    page.wait_for_selector("#library-torch-gloo-cut-long[open]", timeout=5_000)
    assert folded.get_by_text("Timed out waiting 10000ms").is_visible()
    wrong = page.locator("table.matrix td.worst")
    assert wrong.count() == 2
    papers = {
        each.evaluate("it => getComputedStyle(it).backgroundColor") for each in page.locator("table.matrix td").all()
    }
    assert len(papers) > 4 and wrong.first.evaluate("it => getComputedStyle(it).backgroundColor") in papers
    assert page.said == []
