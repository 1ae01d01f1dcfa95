"""Faults of ranks: killed, paused, slower than the others.

A killed rank's peers see its connections closed, or reset, at once; a paused one's see only silence, which is how
a machine that swaps, a stuck driver or a debugger looks. A straggler goes on working, later than all others, who wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, parse_duration_s, parse_number, parse_probability
from testbed.core.user_text import shown
from testbed.errors import UnknownName

__all__ = [
    "MOST_SLOWDOWN",
    "RANK_KILL",
    "RANK_PAUSE",
    "STRAGGLER",
    "rank_kill",
    "rank_pause",
    "straggler",
    "target_ranks",
]

MOST_SLOWDOWN: Final = 100.0

LEAST_CPU: Final = 0.05
"""The kernel gives no less than 1 ms at once; in periods of 20 ms that is 5 %."""

SHORTEST_S: Final = 1e-3
"""A fault has a beginning and an end: nothing is over before it began."""

_TARGETS: Final = "a rank by its number (3), a node, or a site for all ranks in it"


def target_ranks(topology: Topology, target: str) -> tuple[int, ...]:
    """Numbers of the ranks that ``target`` names: a number, a node, or a site. Raises UnknownName."""
    nodes = topology.node_names
    if target in map(str, range(len(nodes))):
        return (int(target),)
    if target in nodes:
        return (nodes.index(target),)
    for site in topology.sites:
        if site.name == target:
            return tuple(nodes.index(node) for node in site.node_names)
    raise UnknownName(
        "rank, node or site", target, [f"0 to {len(nodes) - 1}", *(it.name for it in topology.sites), *nodes]
    )


def rank_kill(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Killed, and kept away for ``away``; a job may begin again after that. Raises UserError."""
    reader = Reader(parameters)
    away_s = reader.read("away", parse_duration_s, 0.0)
    reader.finish()
    ranks = target_ranks(topology, target)
    killed = Phase(0.0, "killed", tuple(Killed(rank) for rank in ranks))
    return Compiled((killed,), (), lasts_s=max(away_s, SHORTEST_S), nodes=_nodes(topology, ranks))


def rank_pause(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Stopped where it is, until it is healed. Raises UserError."""
    Reader(parameters).finish()
    ranks = target_ranks(topology, target)
    paused = Phase(0.0, "paused", tuple(Paused(rank, True) for rank in ranks))
    return Compiled((paused,), (), nodes=_nodes(topology, ranks))


def straggler(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Its compute takes longer by the share ``slower``, or it gets no more than ``cpu`` of a CPU. Raises UserError."""
    reader = Reader(parameters)
    by, cpu = reader.read("slower", _slower, 0.5), reader.read("cpu", _cpu, None)
    if "slower" in reader and "cpu" in reader:
        reader.note("cpu", "either slower=, by which the rank sleeps, or cpu=, by which the kernel holds it back")
    reader.finish()
    ranks = target_ranks(topology, target)
    if cpu is not None:
        held_back = tuple(Throttled(rank, topology.node_names[rank], cpu) for rank in ranks)
        return Compiled((Phase(0.0, f"{cpu:.3g} CPU", held_back),), (), nodes=_nodes(topology, ranks))
    slowed = Phase(0.0, f"compute x {1 + by:.4g}", tuple(Slowed(rank, by) for rank in ranks))
    return Compiled((slowed,), (), nodes=_nodes(topology, ranks))


def _nodes(topology: Topology, ranks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(topology.node_names[rank] for rank in ranks)


def _slower(value: object) -> float:
    """``50%`` (half as long more) or ``3x`` (three times as long)."""
    fix = f"write how much longer its compute takes, as 50%, or 3x; at most {MOST_SLOWDOWN:g}x"
    text = str(value).strip()
    try:
        if text.endswith("x"):
            by = parse_number(text[:-1], low=1.0, high=MOST_SLOWDOWN) - 1.0
        elif text.endswith("%"):
            by = parse_number(text[:-1], low=0.0, high=100 * (MOST_SLOWDOWN - 1)) / 100
        else:
            by = parse_probability(text)
    except Unreadable as error:
        raise Unreadable(f"{shown(value)} is no slowdown", fix) from error
    if by <= 0:
        raise Unreadable(f"{shown(value)} slows nothing", fix)
    return by


def _cpu(value: object) -> float | None:
    """``30%`` of one CPU. Parsed to a share."""
    fix = f"write which share of one CPU it may use, from {LEAST_CPU:.0%} to 99%"
    try:
        cpu = parse_probability(str(value).strip())
    except Unreadable as error:
        raise Unreadable(f"{shown(value)} is no share of a CPU", fix) from error
    if not LEAST_CPU <= cpu < 1.0:
        raise Unreadable(
            f"{shown(value)} is {'too little' if cpu < LEAST_CPU else 'no limit: a rank has one thread'}", fix
        )
    return cpu


RANK_KILL = FaultKind(
    "rank-kill",
    "the process of a rank is killed (SIGKILL)",
    _TARGETS,
    rank_kill,
    {"away": "how long no fresh process may come in its place (0s)"},
    frozenset({"away"}),
)

RANK_PAUSE = FaultKind(
    "rank-pause",
    "the process of a rank stands still (SIGSTOP); its peers see only silence",
    _TARGETS,
    rank_pause,
)

STRAGGLER = FaultKind(
    "straggler",
    "a rank whose compute takes longer than that of the others",
    _TARGETS,
    straggler,
    {
        "slower": "how much longer each step's compute takes: 50%, or 3x for three times as long (50%)",
        "cpu": "instead: the share of one CPU that the kernel gives it at most, by its control group: 30%",
    },
)
