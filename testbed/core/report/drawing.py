"""The topology as an SVG drawing: sites, their nodes, the fibers between them, and where they were cut.

Two sites stand side by side, more on a circle. Colours are the page's (CSS classes): the drawing follows its theme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.report import formats
from testbed.core.report.document import Fault
from testbed.core.report.markup import Markup, element
from testbed.core.topology.model import Link, Site, Topology

__all__ = ["draw"]

_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _GAP = 920.0, 200.0, 132.0, 96.0
_DRAWN_NODES = 8


@dataclass(frozen=True)
class _Point:
    x: float
    y: float


def draw(topology: Topology, faults: Sequence[Fault] = ()) -> Markup:
    """``faults`` mark the links that they touched."""
    touched: dict[str, list[Fault]] = {}
    for fault in faults:
        for name in fault.links:
            touched.setdefault(name, []).append(fault)
    pairs: dict[frozenset[str], list[Link]] = {}
    for link in topology.links:
        pairs.setdefault(frozenset(link.between), []).append(link)
    places, height = _places(topology.sites, max((len(links) for links in pairs.values()), default=1))
    fibers = [
        _fiber(link, places, index - (len(links) - 1) / 2, touched.get(link.name, ()))
        for links in pairs.values()
        for index, link in enumerate(links)
    ]
    boxes = [_site(site, places[site.name]) for site in topology.sites]
    said = ", ".join(f"{link.name} {' – '.join(link.between)} {link.length_m / 1e3:g} km" for link in topology.links)
    return element(
        "svg",
        element("title", f"Topology {topology.name}: {said}"),
        *fibers,
        *boxes,
        viewBox=f"0 0 {_WIDTH:.0f} {height:.0f}",
        role="img",
        class_="topology",
    )


def _places(sites: Sequence[Site], parallel: int) -> tuple[Mapping[str, _Point], float]:
    """Centers of the sites' boxes, and the height of the drawing."""
    if len(sites) <= 2:
        height = max(_BOX_HEIGHT + 24, (parallel - 1) * _GAP + 128)
        xs = (_BOX_WIDTH / 2 + 10, _WIDTH - _BOX_WIDTH / 2 - 10) if len(sites) == 2 else (_WIDTH / 2,)
        return {site.name: _Point(x, height / 2) for site, x in zip(sites, xs, strict=True)}, height
    radius = max(190.0, len(sites) * 48.0)
    turn = 2 * math.pi / len(sites)
    wide = (_WIDTH - _BOX_WIDTH - 40) / 2
    circle = [_Point(wide * math.sin(index * turn), -radius * math.cos(index * turn)) for index in range(len(sites))]
    top = min(point.y for point in circle) - _BOX_HEIGHT / 2 - 12
    height = max(point.y for point in circle) + _BOX_HEIGHT / 2 + 12 - top
    return {site.name: _Point(_WIDTH / 2 + at.x, at.y - top) for site, at in zip(sites, circle, strict=True)}, height


def _site(site: Site, center: _Point) -> Markup:
    left, top = center.x - _BOX_WIDTH / 2, center.y - _BOX_HEIGHT / 2
    parts = [
        element("rect", x=left, y=top, width=_BOX_WIDTH, height=_BOX_HEIGHT, rx=12, class_="site"),
        element("text", site.name, x=left + 16, y=top + 28, class_="name"),
        element("text", f"gateway {site.gateway}", x=left + 16, y=top + 47, class_="small"),
    ]
    drawn = site.nodes if site.nodes <= _DRAWN_NODES else 0
    columns = max(1, min(4, drawn))
    width = (_BOX_WIDTH - 32 - 8 * (columns - 1)) / columns
    for index in range(drawn):
        rows = math.ceil(drawn / columns)
        height = 54.0 if rows == 1 else 24.0
        x, y = left + 16 + index % columns * (width + 8), top + 62 + index // columns * (height + 6)
        label = site.node_names[index] if columns <= 2 else str(index)
        parts += [
            element("rect", x=x, y=y, width=width, height=height, rx=6, class_="node"),
            element("text", label, x=x + width / 2, y=y + height / 2 + 4, class_="small middle"),
        ]
    if not drawn:
        parts.append(element("text", formats.plural(site.nodes, "node"), x=left + 16, y=top + 92, class_="small"))
    return element("g", *parts)


def _fiber(link: Link, places: Mapping[str, _Point], offset: float, faults: Sequence[Fault]) -> Markup:
    """A curve that bows by ``offset`` (parallel links: …, -0.5, 0.5, …), under its name, length and delay."""
    first, last = sorted(link.between, key=lambda name: (places[name].x, places[name].y))
    start, end = places[first], places[last]
    length = math.hypot(end.x - start.x, end.y - start.y) or 1.0
    across = _Point(-(end.y - start.y) / length, (end.x - start.x) / length)
    # A quadratic curve passes its control point at half the distance.
    bow = 2 * offset * _GAP
    control = _Point((start.x + end.x) / 2 + across.x * bow, (start.y + end.y) / 2 + across.y * bow)
    middle = _Point((start.x + 2 * control.x + end.x) / 4, (start.y + 2 * control.y + end.y) / 4)
    rate = f" · {formats.bits_per_s(link.rate_bps)}" if link.rate_bps else ""
    facts = f"{link.length_m / 1e3:g} km · {formats.duration(link.delay_s)}{rate}"
    parts = [
        element(
            "path",
            d=f"M {start.x:.1f} {start.y:.1f} Q {control.x:.1f} {control.y:.1f} {end.x:.1f} {end.y:.1f}",
            class_="fiber touched" if faults else "fiber",
        ),
        element("text", link.name, x=f"{middle.x:.1f}", y=f"{middle.y - 14:.1f}", class_="link middle"),
        element("text", facts, x=f"{middle.x:.1f}", y=f"{middle.y + 22:.1f}", class_="small middle halo"),
    ]
    if faults:
        parts.append(
            element(
                "path",
                d=f"M {middle.x - 8:.1f} {middle.y - 8:.1f} l 16 16 m 0 -16 l -16 16",
                class_="mark",
            )
        )
        said = "; ".join(_when(fault) for fault in faults[:2]) + (" …" if len(faults) > 2 else "")
        parts.append(
            element("text", said, x=f"{middle.x:.1f}", y=f"{middle.y + 40:.1f}", class_="small bad middle halo")
        )
    return element("g", *parts)


def _when(fault: Fault) -> str:
    began = f"{fault.type} at {formats.duration(fault.began_s)}"
    return began if fault.ended_s is None else f"{began} for {formats.duration(fault.ended_s - fault.began_s)}"
