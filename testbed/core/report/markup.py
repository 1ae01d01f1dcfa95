"""HTML and SVG that cannot be injected into: text is escaped when it becomes part of an element, never by hand."""

from __future__ import annotations

import html
from collections.abc import Iterable

__all__ = ["Markup", "element", "join"]

_VOID = frozenset({"br", "circle", "hr", "line", "meta", "path", "rect"})

Child = object
"""Markup goes in as it is, None as nothing, everything else as escaped text."""


class Markup(str):
    """Text that is markup already. Only ``element`` and files of this package make it."""

    __slots__ = ()


def element(tag: str, /, *children: Child, **attributes: object) -> Markup:
    """``element("p", "a < b", class_="note")`` is ``<p class="note">a &lt; b</p>``.

    A trailing underscore of an attribute is dropped, others become hyphens; None and False leave the attribute out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID and not children:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(children: Iterable[Child]) -> Markup:
    return Markup("".join(_text(child) for child in children))


def _text(child: Child) -> str:
    if child is None:
        return ""
    return str(child) if isinstance(child, Markup) else html.escape(str(child))
