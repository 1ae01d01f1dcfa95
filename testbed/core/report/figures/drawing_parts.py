"""Parts of the topology's drawing, and an estimate of the room that text takes before a browser draws it.

Lengths are CSS pixels: a drawing is as wide as its page, so letters have the size that they are given here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from testbed.core.report.figures.fault_effects import Effect

__all__ = [
    "Box",
    "Drawing",
    "Fiber",
    "KeyLine",
    "Label",
    "Line",
    "NodeBox",
    "Point",
    "SiteShape",
    "boxed",
    "text_width",
    "wrapped",
]

NAME, LINK, SMALL = 16.0, 14.0, 12.5
"""Sizes of letters: of a site's name, of a link's, of all else. page.css has the same."""
_OF_A_LETTER = {NAME: 0.64, LINK: 0.62, SMALL: 0.58}
"""Widths per size, generous: a text that takes less than its room is no harm."""
_PADDING = 4.0
_MANY_FIBERS = 48


@dataclass(frozen=True)
class Point:
    x: float
    y: float


@dataclass(frozen=True)
class Box:
    """``x`` and ``y`` are those of its upper left corner."""

    x: float
    y: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        return (
            self.x < other.x + other.width
            and other.x < self.x + self.width
            and self.y < other.y + other.height
            and other.y < self.y + self.height
        )

    def holds(self, at: Point) -> bool:
        return self.x <= at.x <= self.x + self.width and self.y <= at.y <= self.y + self.height


@dataclass(frozen=True)
class Line:
    """A line of text; ``css`` is its class, ``size`` that of its letters, ``y`` its baseline, ``turn`` in degrees."""

    text: str
    css: str
    size: float
    x: float = 0.0
    y: float = 0.0
    turn: float = 0.0

    @property
    def width(self) -> float:
        return text_width(self.text, self.size)


@dataclass(frozen=True)
class Label:
    """Lines of centered text on paper of their own, drawn after all fibers: no fiber crosses it."""

    box: Box
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class NodeBox(Box):
    label: str


@dataclass(frozen=True)
class SiteShape:
    """A site: a rounded box with ``lines`` of text and boxes of nodes; a disc is a box as wide as twice ``round``."""

    box: Box
    round: float
    lines: tuple[Line, ...]
    nodes: tuple[NodeBox, ...] = ()


@dataclass(frozen=True)
class Fiber:
    """A quadratic curve; ``effects`` are those of the faults that touched the link, ``signs`` where each is drawn."""

    start: Point
    control: Point
    end: Point
    effects: tuple[Effect, ...]
    signs: tuple[tuple[Effect, Point], ...] = ()

    @property
    def css(self) -> str:
        return " ".join(["fiber", *(effect.css for effect in self.effects)])

    def at(self, share: float) -> Point:
        """Return the point of the curve at ``share``, 0 to 1 from its start to its end."""
        near, far = 1 - share, share
        return Point(
            near * near * self.start.x + 2 * near * far * self.control.x + far * far * self.end.x,
            near * near * self.start.y + 2 * near * far * self.control.y + far * far * self.end.y,
        )


@dataclass(frozen=True)
class KeyLine:
    """What a number of the drawing stands for."""

    number: int
    name: str
    facts: str
    faults: str
    effects: tuple[Effect, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """``size`` is ``wide``, ``medium`` or ``narrow``: the pages that it is for.

    Where text has no room, numbers stand for sites or links, and the keys say which.
    """

    size: str
    title: str
    width: float
    height: float
    fibers: tuple[Fiber, ...]
    sites: tuple[SiteShape, ...]
    labels: tuple[Label, ...]
    site_key: tuple[KeyLine, ...] = ()
    link_key: tuple[KeyLine, ...] = ()

    @property
    def dense(self) -> bool:
        """Whether the fibers are so many that those without a fault are drawn thin."""
        return len(self.fibers) > _MANY_FIBERS

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Return those that its legend explains."""
        return tuple(each for each in Effect if any(each in fiber.effects for fiber in self.fibers))


def text_width(text: str, size: float) -> float:
    return len(text) * size * _OF_A_LETTER[size]


def wrapped(text: str, css: str, size: float, room: float) -> tuple[Line, ...]:
    """Break ``text`` into lines of at most ``room``: at spaces and after hyphens, within a word only if it must be."""
    most = max(1, int(room / (size * _OF_A_LETTER[size])))
    lines = [""]
    # A number stays with its unit.
    for part in re.findall(r"(?:[^ -]|(?<=[0-9]) (?=[a-zA-Z%]))*(?:-+| +|$)", text):
        while len((lines[-1] + part).rstrip()) > most:
            if lines[-1]:
                lines[-1] = lines[-1].rstrip()
                lines.append("")
            else:
                lines[-1], part = part[:most], part[most:]
                lines.append("")
        lines[-1] += part
    return tuple(Line(line.rstrip(), css, size) for line in lines if line.strip())


def boxed(lines: tuple[Line, ...], center: Point) -> Label:
    """Return a label with its lines around ``center``."""
    width = max((line.width for line in lines), default=0.0) + 2 * _PADDING
    height = sum(leading(line) for line in lines) + _PADDING
    box = Box(center.x - width / 2, center.y - height / 2, width, height)
    return Label(box, stacked(lines, center.x, box.y))


def leading(line: Line) -> float:
    """Return the height of a line."""
    return round(line.size * 1.3, 1)


def stacked(lines: tuple[Line, ...], x: float, top: float) -> tuple[Line, ...]:
    """Return ``lines`` one below the other from ``top`` on."""
    placed = []
    for line in lines:
        top += leading(line)
        placed.append(replace(line, x=x, y=round(top - 0.22 * line.size, 1)))
    return tuple(placed)
