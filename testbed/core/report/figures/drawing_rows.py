"""The drawing of one or two sites: a column each, and every fiber a row between them with its name above its line."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.report import formats
from testbed.core.report.figures.drawing_parts import (
    NAME,
    SMALL,
    Box,
    Drawing,
    Fiber,
    Label,
    Line,
    NodeBox,
    Point,
    SiteShape,
    leading,
    stacked,
    text_width,
    wrapped,
)
from testbed.core.report.figures.drawn_link import DrawnLink
from testbed.core.topology.model import Site

__all__ = ["rows"]

_MARGIN, _GAP, _INSIDE = 6.0, 16.0, 10.0
_ABOVE, _BELOW = 6.0, 8.0
"""Between a fiber and the text above and below it; the sign of a fault is on the fiber."""
_SIGN = 9.0
_NODE = 30.0
_DRAWN_NODES = 8


def rows(sites: Sequence[Site], links: Sequence[DrawnLink], size: str, title: str, width: float) -> Drawing:
    column = min(200.0, round(width * 0.25)) if len(sites) == 2 else min(240.0, width - 2 * _MARGIN)
    room = width - 2 * (column + _MARGIN) - 2 * _INSIDE
    left, right = column + _MARGIN, width - column - _MARGIN
    fibers: list[Fiber] = []
    labels: list[Label] = []
    y = 2 * _MARGIN
    for link in links if len(sites) == 2 else ():
        above, below = link.title(room), link.details(room)
        at = y + sum(map(leading, above)) + _ABOVE + (_SIGN if link.touched else 0)
        end = at + (_SIGN if link.touched else 0) + _BELOW + sum(map(leading, below))
        # A site's box has its first site at the left, whichever way a link is written.
        signs = tuple(
            (each, Point(width / 2 + (index - (len(link.effects) - 1) / 2) * 4 * _SIGN, at))
            for index, each in enumerate(link.effects)
        )
        fibers.append(Fiber(Point(left, at), Point(width / 2, at), Point(right, at), link.effects, signs))
        labels.append(_label(above, width / 2, y, room))
        labels.append(_label(below, width / 2, end - sum(map(leading, below)), room))
        y = end + _GAP
    tallest = max((_content(site, column) for site in sites), default=0.0)
    height = max(y - _GAP, tallest) + 2 * _MARGIN
    xs = (_MARGIN, right) if len(sites) == 2 else ((width - column) / 2,)
    shapes = tuple(
        _site(site, Box(x, _MARGIN, column, height - 2 * _MARGIN)) for site, x in zip(sites, xs, strict=False)
    )
    return Drawing(size, title, width, height, tuple(fibers), shapes, tuple(labels))


def _label(lines: tuple[Line, ...], x: float, top: float, room: float) -> Label:
    height = sum(map(leading, lines))
    return Label(Box(x - room / 2, top, room, height), stacked(lines, x, top))


def _lines(site: Site, column: float) -> tuple[Line, ...]:
    room = column - 2 * _INSIDE
    lines = wrapped(site.name, "name", NAME, room) + wrapped(f"gateway {site.gateway}", "small", SMALL, room)
    return (
        lines
        if _columns(site, column)
        else (*lines, *wrapped(formats.plural(site.nodes, "node"), "small", SMALL, room))
    )


def _columns(site: Site, column: float) -> int:
    """Return how many nodes stand side by side; 0 if there is no room for boxes, and their count is written."""
    if not 0 < site.nodes <= _DRAWN_NODES or column < 150:
        return 0
    return min(4, site.nodes)


def _content(site: Site, column: float) -> float:
    side_by_side = _columns(site, column)
    rows_of_nodes = -(-site.nodes // side_by_side) if side_by_side else 0
    return sum(map(leading, _lines(site, column))) + rows_of_nodes * (_NODE + 6) + 3 * _INSIDE


def _site(site: Site, box: Box) -> SiteShape:
    lines = stacked(_lines(site, box.width), box.x + _INSIDE, box.y + _INSIDE / 2)
    top = (lines[-1].y if lines else box.y) + _INSIDE
    side_by_side = _columns(site, box.width)
    if not side_by_side:
        return SiteShape(box, 12.0, lines)
    width = (box.width - 2 * _INSIDE - 6 * (side_by_side - 1)) / side_by_side
    fit = all(text_width(name, SMALL) <= width - 6 for name in site.node_names)
    nodes = (
        NodeBox(
            x=box.x + _INSIDE + index % side_by_side * (width + 6),
            y=top + index // side_by_side * (_NODE + 6),
            width=width,
            height=_NODE,
            label=site.node_names[index] if fit else str(index),
        )
        for index in range(site.nodes)
    )
    return SiteShape(box, 12.0, lines, tuple(nodes))
