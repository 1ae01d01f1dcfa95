"""Pages in a browser."""

from __future__ import annotations

from typing import Any


def width_of(page: Any) -> int:
    """Return the width of a page's content in pixels."""
    return int(page.evaluate("document.documentElement.scrollWidth"))
