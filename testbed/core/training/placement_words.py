"""Placement in sentences: before a run, in ``show``, and in the report."""

from __future__ import annotations

from testbed.core.topology.model import Topology
from testbed.core.training.placement import Dimension, place
from testbed.core.training.twin import Twin
from testbed.core.units import format_rate, format_size

__all__ = ["lines", "tiers"]

_MOST_FIBERS = 4


def lines(twin: Twin, topology: Topology) -> tuple[str, ...]:
    """Return a line per dimension, and what aggregation at a site saves or costs; payload, without headers."""
    placed = place(twin, topology)
    if not placed.dimensions:
        return (f"{twin.name}: nothing is exchanged",)
    found = [_line(each, twin) for each in placed.dimensions]
    site = twin.values.get("aggregate_at")
    if site:
        ring = place(type(twin)({**twin.values, "aggregate_at": ""}, twin.layout), topology)
        found.append(
            f"sums at {site}: {_bytes(placed.largest)} a step on the busiest direction,"
            f" {_bytes(ring.largest)} without aggregate_at"
        )
    return tuple(found)


def tiers(topology: Topology) -> tuple[str, ...]:
    """Return the rates of the tiers node, site and fiber, at full scale, one line each; empty without a fabric."""
    with_fabric = [site for site in topology.sites if site.fabric_bps]
    if not with_fabric:
        return ()
    scale = topology.scale
    by_rate: dict[float, list[str]] = {}
    for site in with_fabric:
        by_rate.setdefault(site.fabric_bps, []).append(site.name)
    nodes = [format_rate(rate_bps * scale) + f" at {_some(names)}" for rate_bps, names in by_rate.items()]
    cores = [
        f"{site.name} {format_rate(site.core_bps * scale)}"
        f" ({site.nodes} node{'s' * (site.nodes > 1)}, {site.oversubscription:g}:1)"
        for site in with_fabric
    ]
    fibers = [f"{link.name} {format_rate(link.rate_bps * scale)}" for link in topology.links]
    none = [site.name for site in topology.sites if not site.fabric_bps]
    return (
        f"tier node: {_some(nodes)}, each way" + (f"; no limit at {', '.join(none)}" if none else ""),
        f"tier site: {_some(cores)}",
        f"tier fiber: {_some(fibers) or 'none'}",
    )


def _line(each: Dimension, twin: Twin) -> str:
    count = len(each.groups)
    groups = f"{count} groups" if count > 1 else "1 group"
    ranks = f"{groups} of {_sizes(each)} ranks"
    if not each.directions:
        where = ", ".join(each.inside)
        return f"{each.name}: {ranks}, inside {where}; crosses no fiber"
    crossed = [
        f"{direction} {_bytes(byte_count)} ({byte_count / twin.layout.payload_bytes:.3g} n)"
        for direction, byte_count in each.directions.items()
    ]
    pairs = ", ".join(f"{one} - {other}" for one, other in each.between)
    inside = f", and inside {', '.join(each.inside)}" if each.inside else ""
    return f"{each.name}: {ranks}, between {pairs}{inside}; a step on {_some(crossed)}"


def _sizes(each: Dimension) -> str:
    sizes = sorted({len(ranks) for ranks in each.groups})
    return " or ".join(str(it) for it in sizes)


def _some(items: list[str]) -> str:
    more = len(items) - _MOST_FIBERS
    return ", ".join(items[:_MOST_FIBERS]) + (f" and {more} more" if more > 0 else "")


def _bytes(byte_count: float) -> str:
    return format_size(byte_count, 3)
