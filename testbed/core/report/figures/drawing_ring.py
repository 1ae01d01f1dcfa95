"""The drawing of three sites or more: on a ring, as boxes with their names, or as discs where there are many.

A label stands on its own fiber, on paper that covers what is below it, and neither on a site nor on another label.
Where not all labels find such a place, numbers stand on the fibers, and a key says what they mean. The links that
faults touched choose first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from testbed.core.report import formats
from testbed.core.report.figures.drawing_parts import (
    LINK,
    NAME,
    SMALL,
    Box,
    Drawing,
    Fiber,
    KeyLine,
    Label,
    Line,
    Point,
    SiteShape,
    boxed,
    leading,
    stacked,
    text_width,
    wrapped,
)
from testbed.core.report.figures.drawn_link import DrawnLink
from testbed.core.topology.model import Site

__all__ = ["ring"]

_MARGIN = 6.0
_MOST_BOXES = 8
_DISC = 7.5
"""Radius of a site's disc and half the height of a link's number."""
_ROOM_OF_A_LABEL = 190.0
_ROOM_OF_A_NUMBER = 18.0
_BOW = 70.0
_SHARES = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73, 0.2, 0.8)
"""Places of a label along its fiber, the best first."""
_SIGN = 9.0
_MOST_NUMBERS = 48
"""Of more links, only those that faults touched have numbers."""
_PULL = 0.35


def ring(sites: Sequence[Site], links: Sequence[DrawnLink], size: str, title: str, width: float) -> Drawing:
    shapes, places, height, site_key = _boxes(sites, width) if len(sites) <= _MOST_BOXES else _discs(sites, width)
    fibers = _fibers(links, places, Point(width / 2, height / 2), len(sites))
    taken = [shape.box for shape in shapes]
    taken += [_box_of(line) for shape in shapes for line in shape.lines if line.turn]
    whole = Box(0, 0, width, height)
    order = sorted(range(len(links)), key=lambda index: not links[index].touched)
    room = min(_ROOM_OF_A_LABEL, width * 0.4)
    texts = {index: links[index].title(room) + links[index].details(room) for index in order}
    labels = _placed(texts, fibers, taken, whole)
    link_key: tuple[KeyLine, ...] = ()
    if len(labels) < len(links):
        few = len(links) <= _MOST_NUMBERS
        numbers = {i: (Line(str(i + 1), "link middle", SMALL),) for i in order if few or links[i].touched}
        labels = _placed(numbers, fibers, taken, whole)
        link_key = tuple(link.key(number) for number, link in enumerate(links, 1))
    covered = [*taken, *(label.box for label in labels.values())]
    signed = [_signed(fiber, covered) for fiber in fibers]
    # What faults touched is drawn over what they did not.
    signed.sort(key=lambda fiber: bool(fiber.effects))
    return Drawing(size, title, width, height, tuple(signed), shapes, tuple(labels.values()), site_key, link_key)


_Sites = tuple[tuple[SiteShape, ...], Mapping[str, Point], float, tuple[KeyLine, ...]]
"""The sites' shapes, where fibers end, the height of the drawing, and the key of the sites' numbers."""


def _boxes(sites: Sequence[Site], width: float) -> _Sites:
    column = min(170.0, width * 0.29)
    lines = {
        site.name: wrapped(site.name, "name middle", NAME if width > 600 else LINK, column - 16)
        + wrapped(formats.plural(site.nodes, "node"), "small middle", SMALL, column - 16)
        for site in sites
    }
    tall = max(sum(map(leading, each)) for each in lines.values()) + 14
    across = (width - column) / 2 - _MARGIN
    down = max(150.0 + 16 * len(sites), len(sites) * tall / 3, across if width < 600 else 0.0)
    height = 2 * (down + tall / 2 + _MARGIN)
    places = _around(sites, Point(width / 2, height / 2), across, down)
    # An odd number of sites leaves the foot of the ring empty.
    height = max(at.y for at in places.values()) + tall / 2 + _MARGIN
    shapes = []
    for name, at in places.items():
        own = sum(map(leading, lines[name])) + 14
        box = Box(at.x - column / 2, at.y - own / 2, column, own)
        shapes.append(SiteShape(box, 10.0, stacked(lines[name], at.x, box.y + 4)))
    return tuple(shapes), places, height, ()


def _discs(sites: Sequence[Site], width: float) -> _Sites:
    """Draw each site as a disc: with its name, along the radius, where names have room; else with a number."""
    longest = max(text_width(site.name, SMALL) for site in sites)
    radius = width / 2 - longest - 2 * _DISC - 2 * _MARGIN
    between = 2 * math.pi * radius / len(sites)
    named = radius > width / 6 and between >= 1.2 * SMALL
    if not named:
        radius = width / 2 - _DISC - _MARGIN
        between = 2 * math.pi * radius / len(sites)
    reach = width / 2
    height = 2 * reach
    places = _around(sites, Point(reach, reach), radius, radius)
    every = max(1, math.ceil(_ROOM_OF_A_NUMBER / between))  # each second site has its number, if need be
    disc = min(_DISC, max(2.0, between / 2.1)) if not named else 5.0
    shapes = []
    for number, (name, at) in enumerate(places.items(), 1):
        lines: tuple[Line, ...] = ()
        if named:
            lines = (_radial(name, at, Point(reach, reach), disc),)
        elif number % every == 1 or every == 1:
            lines = (Line(str(number), "small middle", SMALL, at.x, at.y + 4.2),)
        shapes.append(SiteShape(Box(at.x - disc, at.y - disc, 2 * disc, 2 * disc), disc, lines))
    key = (
        ()
        if named
        else tuple(
            KeyLine(number, site.name, formats.plural(site.nodes, "node"), "") for number, site in enumerate(sites, 1)
        )
    )
    return tuple(shapes), places, height, key


def _around(sites: Sequence[Site], center: Point, across: float, down: float) -> Mapping[str, Point]:
    turn = 2 * math.pi / len(sites)
    return {
        site.name: Point(center.x + across * math.sin(index * turn), center.y - down * math.cos(index * turn))
        for index, site in enumerate(sites)
    }


def _radial(name: str, at: Point, center: Point, disc: float) -> Line:
    """Write ``name`` from the disc outward, and never upside down."""
    angle = math.degrees(math.atan2(at.y - center.y, at.x - center.x))
    away = disc + 5
    x = at.x + away * math.cos(math.radians(angle))
    y = at.y + away * math.sin(math.radians(angle))
    backward = abs(angle) > 90.01
    return Line(
        name, "small end" if backward else "small start", SMALL, x, y, angle + 180 if backward else angle or 0.001
    )


def _box_of(line: Line) -> Box:
    """Return a box around a turned line of text."""
    angle = math.radians(line.turn)
    long = -line.width if line.css.endswith("end") else line.width
    end = Point(line.x + long * math.cos(angle), line.y + long * math.sin(angle))
    left, top = min(line.x, end.x), min(line.y, end.y)
    return Box(left - 6, top - 6, abs(end.x - line.x) + 12, abs(end.y - line.y) + 12)


def _fibers(links: Sequence[DrawnLink], places: Mapping[str, Point], center: Point, count: int) -> tuple[Fiber, ...]:
    """Return a curve for each link: parallel ones bow apart, and among many sites long ones bow toward the center."""
    height = 2 * center.y
    pairs: dict[frozenset[str], list[DrawnLink]] = {}
    for link in links:
        pairs.setdefault(frozenset(link.between), []).append(link)
    fibers = []
    for link in links:
        beside = pairs[frozenset(link.between)]
        offset = beside.index(link) - (len(beside) - 1) / 2
        first, last = sorted(link.between, key=lambda name: (places[name].x, places[name].y))
        start, end = places[first], places[last]
        length = math.hypot(end.x - start.x, end.y - start.y) or 1.0
        bow = 2 * offset * min(_BOW, length / 3)
        middle = Point((start.x + end.x) / 2, (start.y + end.y) / 2)
        pull = _PULL * min(1.0, length / height) if count > _MOST_BOXES else 0.0
        if pull and link.touched:
            pull = _PULL  # neighbors on a ring are close: away from it, there is room for a number
        control = Point(
            middle.x + pull * (center.x - middle.x) - (end.y - start.y) / length * bow,
            middle.y + pull * (center.y - middle.y) + (end.x - start.x) / length * bow,
        )
        fibers.append(Fiber(start, control, end, link.effects))
    return tuple(fibers)


def _placed(
    texts: Mapping[int, tuple[Line, ...]], fibers: Sequence[Fiber], taken: Sequence[Box], whole: Box
) -> dict[int, Label]:
    """Return a label for each fiber whose text found a place, in the order of ``texts``."""
    occupied = list(taken)
    found: dict[int, Label] = {}
    for index, lines in texts.items():
        free = [
            label
            for label in (boxed(lines, fibers[index].at(share)) for share in _SHARES)
            if _inside(label.box, whole) and not any(label.box.overlaps(other) for other in occupied)
        ]
        if free:
            found[index] = free[0] if len(texts) > 40 else min(free, key=lambda it: _hidden(it.box, index, fibers))
            occupied.append(found[index].box)
    return found


def _hidden(box: Box, own: int, fibers: Sequence[Fiber]) -> int:
    """Return how many other fibers pass below ``box``, which one would take for theirs."""
    return sum(
        any(box.holds(fiber.at(step / 24)) for step in range(25)) for index, fiber in enumerate(fibers) if index != own
    )


def _inside(box: Box, whole: Box) -> bool:
    return box.x >= 0 and box.y >= 0 and box.x + box.width <= whole.width and box.y + box.height <= whole.height


def _signed(fiber: Fiber, covered: Sequence[Box]) -> Fiber:
    """Put a sign for each effect onto the fiber, where it can be seen."""
    free = _free(fiber, covered)
    return replace(fiber, signs=tuple(zip(fiber.effects, free, strict=False)))


def _free(fiber: Fiber, covered: Sequence[Box]) -> Iterator[Point]:
    for step in range(2, 19):
        share = 0.5 + (step // 2) * 0.05 * (-1 if step % 2 else 1)
        at = fiber.at(share)
        around = Box(at.x - _SIGN, at.y - _SIGN, 2 * _SIGN, 2 * _SIGN)
        if not any(around.overlaps(other) for other in covered):
            yield at
