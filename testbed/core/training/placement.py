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
from typing import Final

from testbed.core.topology.model import Topology
from testbed.core.topology.survey import Survey, survey
from testbed.core.training.gloo_bytes import hop_bytes
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["DIMENSIONS", "Dimension", "Placement", "dimension_of", "place"]

DIMENSIONS: Final = ("data", "pipeline", "tensor", "expert")

_MOST_STEPS: Final = 20_000
"""Steps of which operations are averaged, at most; of shorter cycles a few are enough."""
_CYCLES: Final = 2
_FEWEST_STEPS: Final = 200


@dataclass(frozen=True)
class Dimension:
    """One dimension of parallelism.

    Attributes:
        name: one of :data:`DIMENSIONS`.
        groups: ranks of each group that exchanges in it, each once.
        inside: sites that have a group of their own.
        between: pairs of sites, in the order of the topology, whose ranks exchange in it.
        directions: payload in bytes per step, at the mean, of each direction (``link:site``) that it crosses.
        inside_bytes: payload in bytes per step, at the mean, that stays inside each site.
    """

    name: str
    groups: tuple[tuple[int, ...], ...]
    inside: tuple[str, ...]
    between: tuple[tuple[str, str], ...]
    directions: Mapping[str, float] = field(default_factory=dict)
    inside_bytes: Mapping[str, float] = field(default_factory=dict)

    @property
    def links(self) -> tuple[str, ...]:
        """Links that it crosses, each once."""
        return tuple(dict.fromkeys(it.partition(":")[0] for it in self.directions))


@dataclass(frozen=True)
class Placement:
    """All dimensions of a job that exchange anything, in the order of :data:`DIMENSIONS`."""

    dimensions: tuple[Dimension, ...]

    @property
    def directions(self) -> dict[str, float]:
        """Payload in bytes per step of each direction, of all dimensions; directions without any are missing."""
        found = defaultdict[str, float](float)
        for each in self.dimensions:
            for direction, byte_count in each.directions.items():
                found[direction] += byte_count
        return dict(found)

    @property
    def largest(self) -> float:
        """Payload in bytes per step of the busiest direction; 0 if no fiber is crossed."""
        return max(self.directions.values(), default=0.0)


def place(twin: Twin, topology: Topology) -> Placement:
    """Return where the dimensions of a job are. ``topology`` has the sites of the twin's layout."""
    steps = min(max(twin.layout.steps, 1), _MOST_STEPS, max(_FEWEST_STEPS, _CYCLES * twin.cycle))
    by_group = defaultdict[tuple[str, tuple[int, ...]], list[Operation]](list)
    for step in range(1, steps + 1):
        for operation in twin.operations(step):
            by_group[_group(operation)].append(operation)
    sites, facts = twin.layout.sites, survey(topology)
    found: dict[str, list[tuple[tuple[int, ...], list[Operation]]]] = {name: [] for name in DIMENSIONS}
    members = defaultdict[str, list[Operation]](list)
    for (name, _), operations in by_group.items():
        members[name] += operations
    for (name, ranks), operations in by_group.items():
        found[dimension_of(members[name])].append((ranks, operations))
    order = [site.name for site in topology.sites]
    return Placement(
        tuple(_dimension(name, groups, sites, order, facts, steps) for name, groups in found.items() if groups)
    )


def dimension_of(operations: Iterable[Operation]) -> str:
    """Return the dimension of a group from all of its operations."""
    pairs = {(it.kind, it.what) for it in operations}
    if any(kind == "all_to_all" for kind, _ in pairs):
        return "expert"
    forward = {kind for kind, what in pairs if what in ("activations", "tokens")}
    if not forward:
        return "data"
    return "pipeline" if "send" in forward else "tensor"


def _group(operation: Operation) -> tuple[str, tuple[int, ...]]:
    """Return name and ranks of what counts as one group: the two of a message are those of the whole exchange."""
    return operation.group, tuple(sorted(operation.ranks))


def _dimension(
    name: str,
    groups: Sequence[tuple[tuple[int, ...], Sequence[Operation]]],
    sites: Sequence[str],
    order: Sequence[str],
    facts: Survey,
    steps: int,
) -> Dimension:
    directions, inside_bytes = defaultdict[str, float](float), defaultdict[str, float](float)
    for _, operations in groups:
        for operation in operations:
            for (source, destination), byte_count in hop_bytes(operation).items():
                if sites[source] == sites[destination]:
                    inside_bytes[sites[source]] += byte_count / steps
                for direction in _path(facts, sites[source], sites[destination]):
                    directions[direction] += byte_count / steps
    where = [tuple(site for site in order if site in {sites[rank] for rank in ranks}) for ranks, _ in groups]
    between = {
        (one, other) for several in where for number, one in enumerate(several) for other in several[number + 1 :]
    }
    return Dimension(
        name,
        tuple(dict.fromkeys(ranks for ranks, _ in groups)),
        tuple(site for site in order if (site,) in where),
        tuple(sorted(between, key=lambda pair: [order.index(it) for it in pair])),
        dict(directions),
        dict(inside_bytes),
    )


def _path(facts: Survey, here: str, there: str) -> list[str]:
    """Return the directions from one site to another; none inside a site."""
    pair = next((it for it in facts.pairs if set(it.between) == {here, there}), None)
    if pair is None:
        return []
    ends = {link.link: link.between for link in facts.links}
    found, at = [], here
    for link in pair.via if pair.between[0] == here else reversed(pair.via):
        at = ends[link][1 - ends[link].index(at)]
        found.append(f"{link}:{at}")
    return found
