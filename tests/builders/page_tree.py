"""HTML pages as trees of elements."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree.ElementTree import Element, TreeBuilder

VOID = ("br", "hr", "img", "input", "link", "meta", "source", "wbr")


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.builder = TreeBuilder()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        self.open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        if self.open:
            self.builder.data(data)


def tree_of(page: str) -> Element:
    """Return the root of a page, in which each element that is not void must be closed."""
    parser = _Parser()
    parser.feed(f"<page>{page}</page>")
    parser.close()
    return parser.builder.close()


def text_of(element: Element) -> str:
    """Return the text in an element, with each run of white space as one blank."""
    return " ".join("".join(element.itertext()).split())
