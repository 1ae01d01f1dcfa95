"""Judge whether anything goes around the fibers, from probes between sites and their crossings of the plant.

Each probe is a packet with a number of its own. A capture at both ends of every fiber says which directions each probe
entered. A probe that arrives at another site must have entered directions that lead from its site to that one, link by
link; otherwise it came around at least one fiber. Counters would not do: other traffic crosses the fibers meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.topology.direction import Direction
from testbed.core.topology.graph import ShortestPaths
from testbed.core.topology.model import Topology

__all__ = [
    "ADDRESSED",
    "FAMILIES",
    "MANAGEMENT",
    "NEARBY",
    "UNKNOWN",
    "AroundCheck",
    "BypassProbe",
    "Pair",
    "pairs",
    "silent_pairs",
    "strays",
    "why_bypassed",
]

FAMILIES = ("IPv4", "IPv6")

ADDRESSED, MANAGEMENT, NEARBY = "addressed", "management", "nearby"
"""Sorts of probes: to a node's address in its fabric; to a node's address in the management network; and to everybody
in reach of an interface (the link-local multicast group of all nodes, RFC 4291, 2.7.1, or the IPv4 broadcast)."""

MOST_PROBES = 6000
"""Addressed probes of a round. Up to this number each node of a site has its turn; 64 sites have 8064 without that."""

UNKNOWN = "cannot rule out a bypass path"
"""What a check without a result says: it counts against the lab, as nothing passes without a measurement."""

MOST_NAMED = 3
"""Pairs that a sentence names."""


@dataclass(frozen=True)
class AroundCheck:
    """Whether anything goes around the fibers: ``why`` it cannot be ruled out, how many (unordered) ``pairs`` of sites
    were probed in which ``families`` of addresses, and in how many seconds. ``unmeasured``: the host prevented a
    result, and ``why`` is the reason."""

    why: str
    pairs: int
    families: tuple[str, ...]
    took_s: float
    unmeasured: bool = False

    @property
    def ok(self) -> bool:
        return not self.why


@dataclass(frozen=True)
class Pair:
    """A probe to send: from a node of one site to a node of another, by one family of addresses."""

    sender: str
    receiver: str
    family: str


@dataclass(frozen=True)
class BypassProbe:
    """A probe that arrived at another site; ``entered`` are the directions (``link:site``) that it was seen to enter.

    ``interface`` is the sender's, for a probe of the sort :data:`NEARBY`.
    """

    sort: str
    family: str
    sender: str
    receiver: str
    entered: frozenset[str]
    interface: str = ""


def pairs(topology: Topology) -> tuple[Pair, ...]:
    """Return the probes of a round: each ordered pair of sites in both families.

    The nodes of a site take turns, so that a path that only one node of a large site has is found, too.
    """
    ordered = [(a, b) for a in topology.sites for b in topology.sites if a is not b]
    at_least = len(FAMILIES) * len(ordered)
    turns = max(1, min(max((site.nodes for site in topology.sites), default=1), MOST_PROBES // max(1, at_least)))
    distinct: dict[Pair, None] = {}
    for turn in range(turns):
        for number, (a, b) in enumerate(ordered):
            # Also where each pair has a single turn, all nodes of a site take part, with one remote site or another.
            first = turn if turns > 1 else number
            here, there = a.node_names[first % a.nodes], b.node_names[first % b.nodes]
            for family in FAMILIES:
                distinct[Pair(here, there, family)] = None
    return tuple(distinct)


def strays(topology: Topology, arrived: Sequence[BypassProbe]) -> tuple[BypassProbe, ...]:
    """Return the probes that arrived at another site without crossing fibers all the way."""
    directions = topology.directions
    sites = {place: site.name for site in topology.sites for place in (site.gateway, *site.node_names)}
    return tuple(
        probe
        for probe in arrived
        if sites[probe.sender] != sites[probe.receiver]
        and (
            probe.sort == MANAGEMENT
            or not _leads(directions, probe.entered, sites[probe.sender], sites[probe.receiver])
        )
    )


def _leads(directions: Mapping[str, Direction], entered: Collection[str], here: str, there: str) -> bool:
    """Return whether some of the directions ``entered`` form a path from one site to another."""
    edges: dict[str, list[tuple[str, float, Direction]]] = {}
    for direction in filter(None, map(directions.get, entered)):
        edges.setdefault(direction.tail, []).append((direction.head, 0.0, direction))
    return there in ShortestPaths(here, edges)


def silent_pairs(sent: Sequence[Pair], arrived: Sequence[BypassProbe]) -> tuple[Pair, ...]:
    """Return the pairs of which no addressed probe arrived."""
    heard = {(probe.sender, probe.receiver, probe.family) for probe in arrived if probe.sort == ADDRESSED}
    return tuple(pair for pair in sent if (pair.sender, pair.receiver, pair.family) not in heard)


def why_bypassed(astray: Sequence[BypassProbe], silent: Sequence[Pair]) -> str:
    """Return a sentence about what counts against the lab; empty if nothing does."""
    if astray:
        paths = list(dict.fromkeys(_path(probe) for probe in sorted(astray, key=_gravity)))
        return f"{_listed(paths)} without crossing every fiber of the path"
    if not silent:
        return ""
    # One sentence for both directions and both families of two nodes that do not reach each other.
    met: dict[frozenset[str], tuple[Pair, set[str]]] = {}
    for pair in silent:
        met.setdefault(frozenset((pair.sender, pair.receiver)), (pair, set()))[1].add(pair.family)
    names = [
        f"{first.sender} reaches {first.receiver}" + ("" if len(families) > 1 else f" over {first.family}")
        for first, families in met.values()
    ]
    return f"no packet from {_listed(names)}: {UNKNOWN}"


def _gravity(stray: BypassProbe) -> int:
    """A path by the nodes' usual addresses is what a job would take, so it is named first."""
    return (ADDRESSED, MANAGEMENT, NEARBY).index(stray.sort)


def _path(stray: BypassProbe) -> str:
    how = {
        ADDRESSED: f"over {stray.family}",
        MANAGEMENT: "over the management network",
        NEARBY: f"by {'link-local IPv6' if stray.family == 'IPv6' else 'IPv4 broadcast'} from {stray.interface}",
    }[stray.sort]
    return f"{stray.sender} reaches {stray.receiver} {how}"


def _listed(phrases: Sequence[str]) -> str:
    unlisted = len(phrases) - MOST_NAMED
    return ", ".join(phrases[:MOST_NAMED]) + (f" and {unlisted} more" if unlisted > 0 else "")
