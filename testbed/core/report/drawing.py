"""The geometry of the topology's drawing: sites, their nodes, the fibers between them, and the faults on those fibers.

Two sites stand side by side, more on a circle. The template ``topology.svg`` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.report import formats
from testbed.core.report.document import Fault
from testbed.core.topology.model import Link, Site, Topology

__all__ = ["Drawing", "draw"]

_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _GAP = 920.0, 200.0, 132.0, 96.0
_DRAWN_NODES = 8


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


@dataclass(frozen=True)
class NodeBox(Box):
    label: str


@dataclass(frozen=True)
class SiteBox(Box):
    """``nodes`` is empty if there are too many to draw; ``count`` is shown instead."""

    name: str
    gateway: str
    count: str
    nodes: tuple[NodeBox, ...]


@dataclass(frozen=True)
class FiberCurve:
    """A quadratic curve that passes ``middle``; ``faults`` is empty if no fault touched the link."""

    start: Point
    control: Point
    end: Point
    middle: Point
    name: str
    facts: str
    faults: str


@dataclass(frozen=True)
class Drawing:
    title: str
    width: float
    height: float
    fibers: tuple[FiberCurve, ...]
    sites: tuple[SiteBox, ...]


def draw(topology: Topology, faults: Sequence[Fault] = ()) -> Drawing:
    """Place sites and fibers; ``faults`` mark the links that they touched."""
    touched: dict[str, list[Fault]] = {}
    for fault in faults:
        for name in fault.links:
            touched.setdefault(name, []).append(fault)
    pairs: dict[frozenset[str], list[Link]] = {}
    for link in topology.links:
        pairs.setdefault(frozenset(link.between), []).append(link)
    places, height = _places(topology.sites, max((len(links) for links in pairs.values()), default=1))
    listed = ", ".join(f"{link.name} {' – '.join(link.between)} {link.length_m / 1e3:g} km" for link in topology.links)
    return Drawing(
        title=f"Topology {topology.name}: {listed}",
        width=_WIDTH,
        height=height,
        fibers=tuple(
            _fiber(link, places, index - (len(links) - 1) / 2, touched.get(link.name, ()))
            for links in pairs.values()
            for index, link in enumerate(links)
        ),
        sites=tuple(_site(site, places[site.name]) for site in topology.sites),
    )


def _places(sites: Sequence[Site], parallel: int) -> tuple[Mapping[str, Point], float]:
    """Return the centers of the sites' boxes, and the height of the drawing."""
    if len(sites) <= 2:
        height = max(_BOX_HEIGHT + 24, (parallel - 1) * _GAP + 128)
        xs = (_BOX_WIDTH / 2 + 10, _WIDTH - _BOX_WIDTH / 2 - 10) if len(sites) == 2 else (_WIDTH / 2,)
        return {site.name: Point(x, height / 2) for site, x in zip(sites, xs, strict=True)}, height
    radius = max(190.0, len(sites) * 48.0)
    turn = 2 * math.pi / len(sites)
    wide = (_WIDTH - _BOX_WIDTH - 40) / 2
    circle = [Point(wide * math.sin(index * turn), -radius * math.cos(index * turn)) for index in range(len(sites))]
    top = min(point.y for point in circle) - _BOX_HEIGHT / 2 - 12
    height = max(point.y for point in circle) + _BOX_HEIGHT / 2 + 12 - top
    return {site.name: Point(_WIDTH / 2 + at.x, at.y - top) for site, at in zip(sites, circle, strict=True)}, height


def _site(site: Site, center: Point) -> SiteBox:
    left, top = center.x - _BOX_WIDTH / 2, center.y - _BOX_HEIGHT / 2
    return SiteBox(
        x=left,
        y=top,
        width=_BOX_WIDTH,
        height=_BOX_HEIGHT,
        name=site.name,
        gateway=f"gateway {site.gateway}",
        count=formats.plural(site.nodes, "node"),
        nodes=tuple(_nodes(site, left + 16, top + 62)),
    )


def _nodes(site: Site, left: float, top: float) -> list[NodeBox]:
    drawn = site.nodes if site.nodes <= _DRAWN_NODES else 0
    columns = max(1, min(4, drawn))
    width = (_BOX_WIDTH - 32 - 8 * (columns - 1)) / columns
    height = 54.0 if drawn <= columns else 24.0
    return [
        NodeBox(
            x=left + index % columns * (width + 8),
            y=top + index // columns * (height + 6),
            width=width,
            height=height,
            label=site.node_names[index] if columns <= 2 else str(index),
        )
        for index in range(drawn)
    ]


def _fiber(link: Link, places: Mapping[str, Point], offset: float, faults: Sequence[Fault]) -> FiberCurve:
    """Return a curve that bows by ``offset`` (parallel links: …, -0.5, 0.5, …)."""
    first, last = sorted(link.between, key=lambda name: (places[name].x, places[name].y))
    start, end = places[first], places[last]
    length = math.hypot(end.x - start.x, end.y - start.y) or 1.0
    across = Point(-(end.y - start.y) / length, (end.x - start.x) / length)
    # A quadratic curve passes its control point at half the distance.
    bow = 2 * offset * _GAP
    control = Point((start.x + end.x) / 2 + across.x * bow, (start.y + end.y) / 2 + across.y * bow)
    rate = f" · {formats.bits_per_s(link.rate_bps)}" if link.rate_bps else ""
    return FiberCurve(
        start=start,
        control=control,
        end=end,
        middle=Point((start.x + 2 * control.x + end.x) / 4, (start.y + 2 * control.y + end.y) / 4),
        name=link.name,
        facts=f"{link.length_m / 1e3:g} km · {formats.duration(link.delay_s)}{rate}",
        faults="; ".join(_when(fault) for fault in faults[:2]) + (" …" if len(faults) > 2 else ""),
    )


def _when(fault: Fault) -> str:
    began = f"{fault.at_link} at {formats.duration(fault.began_s)}"
    return began if fault.ended_s is None else f"{began} for {formats.duration(fault.ended_s - fault.began_s)}"
