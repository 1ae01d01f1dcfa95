"""Placement: which dimension of parallelism is on which sites, and how much of it crosses which fiber. Pure.

A dimension is *data* (replicas of parameters exchange gradients, parameters or pseudo-gradients), *pipeline* (stages
send activations and their gradients), *tensor* (parts of a matrix are summed or gathered) or *expert* (tokens go to
experts and back). It follows from the operations of a twin, group by group, so placement and bytes cannot disagree; the
wire check compares the same bytes with what crossed (``gloo_bytes.py`` says how gloo carries out an operation).

Between two sites traffic takes the shortest path over the fibers, as in a healthy lab.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final

from testbed.core.topology.direction import link_of
from testbed.core.topology.model import Topology
from testbed.core.topology.survey import Survey, survey
from testbed.core.training.gloo_bytes import hop_bytes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin
from testbed.core.units import format_rate, format_size

__all__ = ["Dimension", "Parallelism", "Placement", "describe", "describe_tiers", "dimension_of", "place"]

_MOST_STEPS: Final = 20_000
"""Steps of which operations are averaged, at most; of shorter cycles a few are enough."""
_CYCLES: Final = 2
_FEWEST_STEPS: Final = 200

_MOST_FIBERS: Final = 4
"""Fibers that a line lists, at most."""


class Parallelism(StrEnum):
    """Names of dimensions, in the order in which they are shown."""

    DATA = auto()
    PIPELINE = auto()
    TENSOR = auto()
    EXPERT = auto()


@dataclass(frozen=True)
class Dimension:
    """One dimension of parallelism.

    Attributes:
        name: of the dimension.
        groups: ranks of each group that exchanges in it, each once.
        inside: sites that have a group of their own.
        between: pairs of sites, in the order of the topology, whose ranks exchange in it.
        directions: payload in bytes per step, at the mean, of each direction (``link:site``) that it crosses.
        inside_bytes: payload in bytes per step, at the mean, that stays inside each site.
    """

    name: Parallelism
    groups: tuple[tuple[int, ...], ...]
    inside: tuple[str, ...]
    between: tuple[tuple[str, str], ...]
    directions: Mapping[str, float] = field(default_factory=dict)
    inside_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def links(self) -> tuple[str, ...]:
        """Links that it crosses, each once."""
        return tuple(dict.fromkeys(link_of(direction) for direction in self.directions))


@dataclass(frozen=True)
class Placement:
    """All dimensions of a job that exchange anything, in the order of :class:`Parallelism`."""

    dimensions: tuple[Dimension, ...]

    @property
    def directions(self) -> dict[str, float]:
        """Payload in bytes per step of each direction, of all dimensions; directions without any are missing."""
        total = defaultdict[str, float](float)
        for dimension in self.dimensions:
            for direction, byte_count in dimension.directions.items():
                total[direction] += byte_count
        return dict(total)

    @property
    def largest(self) -> float:
        """Payload in bytes per step of the busiest direction; 0 if no fiber is crossed."""
        return max(self.directions.values(), default=0.0)


def place(twin: Twin, topology: Topology) -> Placement:
    """Return where the dimensions of a job are. ``topology`` has the sites of the twin's layout."""
    steps = min(max(twin.layout.steps, 1), _MOST_STEPS, max(_FEWEST_STEPS, _CYCLES * twin.cycle))
    by_group = defaultdict[tuple[str, tuple[int, ...]], list[Operation]](list)
    by_name = defaultdict[str, list[Operation]](list)
    for step in range(1, steps + 1):
        for operation in twin.operations(step):
            # The two ranks of a message are those of the whole exchange.
            by_group[operation.group, tuple(sorted(operation.ranks))].append(operation)
            by_name[operation.group].append(operation)
    groups: dict[Parallelism, list[tuple[tuple[int, ...], list[Operation]]]] = {name: [] for name in Parallelism}
    for (name, ranks), operations in by_group.items():
        groups[dimension_of(by_name[name])].append((ranks, operations))
    order, paths = [site.name for site in topology.sites], survey(topology)
    return Placement(
        tuple(_dimension(name, of, twin.layout.sites, order, paths, steps) for name, of in groups.items() if of)
    )


def dimension_of(operations: Iterable[Operation]) -> Parallelism:
    """Return the dimension of a group from all of its operations."""
    pairs = {(operation.kind, operation.what) for operation in operations}
    if any(kind == "all_to_all" for kind, _ in pairs):
        return Parallelism.EXPERT
    forward = {kind for kind, what in pairs if what in ("activations", "tokens")}
    if not forward:
        return Parallelism.DATA
    return Parallelism.PIPELINE if "send" in forward else Parallelism.TENSOR


def _dimension(
    name: Parallelism,
    groups: Sequence[tuple[tuple[int, ...], Sequence[Operation]]],
    sites: Sequence[str],
    order: Sequence[str],
    paths: Survey,
    steps: int,
) -> Dimension:
    directions, inside_bytes = defaultdict[str, float](float), defaultdict[str, float](float)
    for _, operations in groups:
        for operation in operations:
            for (source, destination), byte_count in hop_bytes(operation).items():
                if sites[source] == sites[destination]:
                    inside_bytes[sites[source]] += byte_count / steps
                for direction in _path(paths, sites[source], sites[destination]):
                    directions[direction] += byte_count / steps
    where = [tuple(site for site in order if site in {sites[rank] for rank in ranks}) for ranks, _ in groups]
    between = {
        (site, other) for spanned in where for number, site in enumerate(spanned) for other in spanned[number + 1 :]
    }
    return Dimension(
        name,
        tuple(dict.fromkeys(ranks for ranks, _ in groups)),
        tuple(site for site in order if (site,) in where),
        tuple(sorted(between, key=lambda pair: [order.index(site) for site in pair])),
        dict(directions),
        dict(inside_bytes),
    )


def _path(paths: Survey, source: str, destination: str) -> list[str]:
    """Return the directions from one site to another; none inside a site."""
    pair = next((pair for pair in paths.pairs if set(pair.between) == {source, destination}), None)
    if pair is None:
        return []
    ends = {link.link: link.between for link in paths.links}
    directions, site = [], source
    for link in pair.via if pair.between[0] == source else reversed(pair.via):
        site = ends[link][1 - ends[link].index(site)]
        directions.append(f"{link}:{site}")
    return directions


def describe(twin: Twin, topology: Topology) -> tuple[str, ...]:
    """Return a line per dimension, and what aggregation at a site saves or costs; payload, without headers."""
    placed = place(twin, topology)
    if not placed.dimensions:
        return (f"{twin.name}: nothing is exchanged",)
    lines = [_line(dimension, twin) for dimension in placed.dimensions]
    site = twin.values.get("aggregate_at")
    if site:
        ring = place(type(twin)({**twin.values, "aggregate_at": ""}, twin.layout), topology)
        lines.append(
            f"sums at {site}: {_bytes(placed.largest)} a step on the busiest direction,"
            f" {_bytes(ring.largest)} without aggregate_at"
        )
    return tuple(lines)


def describe_tiers(topology: Topology) -> tuple[str, ...]:
    """Return the rates of the tiers node, site and fiber, at full scale, one line each; empty without a fabric."""
    with_fabric = [site for site in topology.sites if site.fabric_bps]
    if not with_fabric:
        return ()
    scale = topology.scale
    by_rate: dict[float, list[str]] = {}
    for site in with_fabric:
        by_rate.setdefault(site.fabric_bps, []).append(site.name)
    nodes = [format_rate(rate_bps * scale) + f" at {_listed(names)}" for rate_bps, names in by_rate.items()]
    cores = [
        f"{site.name} {format_rate(site.core_bps * scale)}"
        f" ({site.nodes} node{'s' * (site.nodes > 1)}, {site.oversubscription:g}:1)"
        for site in with_fabric
    ]
    fibers = [f"{link.name} {format_rate(link.rate_bps * scale)}" for link in topology.links]
    unlimited = [site.name for site in topology.sites if not site.fabric_bps]
    return (
        f"tier node: {_listed(nodes)}, each way" + (f"; no limit at {', '.join(unlimited)}" if unlimited else ""),
        f"tier site: {_listed(cores)}",
        f"tier fiber: {_listed(fibers) or 'none'}",
    )


def _line(dimension: Dimension, twin: Twin) -> str:
    count, sizes = len(dimension.groups), sorted({len(ranks) for ranks in dimension.groups})
    ranks = f"{count} group{'s' * (count > 1)} of {' or '.join(map(str, sizes))} ranks"
    if not dimension.directions:
        return f"{dimension.name}: {ranks}, inside {', '.join(dimension.inside)}; crosses no fiber"
    crossed = [
        f"{direction} {_bytes(byte_count)} ({byte_count / twin.layout.payload_bytes:.3g} n)"
        for direction, byte_count in dimension.directions.items()
    ]
    pairs = ", ".join(f"{site} - {other}" for site, other in dimension.between)
    inside = f", and inside {', '.join(dimension.inside)}" if dimension.inside else ""
    return f"{dimension.name}: {ranks}, between {pairs}{inside}; a step on {_listed(crossed)}"


def _listed(texts: Sequence[str]) -> str:
    remaining = len(texts) - _MOST_FIBERS
    return ", ".join(texts[:_MOST_FIBERS]) + (f" and {remaining} more" if remaining > 0 else "")


def _bytes(byte_count: float) -> str:
    return format_size(byte_count, 3)
