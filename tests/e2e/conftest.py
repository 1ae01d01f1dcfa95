"""Report pages in a real browser, offline."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("Chromium is missing; install it with: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing; pip install playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Open a page offline; collect its console messages, errors and requests."""
    opened = []

    def visit(path: Path, *, width: int = 1280, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        page.context.set_offline(True)
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto((path / "index.html").as_uri())
        return page

    yield visit
    for page in opened:
        page.close()
