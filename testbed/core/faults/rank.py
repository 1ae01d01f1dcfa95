"""Faults of ranks: killed, paused, slower than the others.

The peers of a killed rank see its connections closed or reset at once; those of a paused rank see only silence, as
with a swapping machine, a stuck driver or a debugger. A straggler keeps working, and all others wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, parse_duration_s, parse_number, parse_probability
from testbed.core.user_text import expected, shown
from testbed.errors import UnknownName

__all__ = [
    "KILLED",
    "MOST_SLOWDOWN",
    "RANK_KILL",
    "RANK_PAUSE",
    "STRAGGLER",
    "rank_kill",
    "rank_pause",
    "straggler",
    "target_ranks",
]

KILLED: Final = "killed"
"""Name of the phase in which ranks are killed."""

MOST_SLOWDOWN: Final = 100.0

LEAST_CPU: Final = 0.05
"""The smallest CPU quota of the kernel is 1 ms; in periods of 20 ms that is 5 %."""

SHORTEST_S: Final = 1e-3
"""The shortest duration, so that the end of a fault is after its beginning."""

_TARGETS: Final = "a rank by its number (3), a node, or a site for all ranks in it"


def target_ranks(topology: Topology, target: str, ranks_per_node: int = 1) -> tuple[int, ...]:
    """Return the ranks of ``target``: a rank's number, a node, or a site. Raises UnknownName."""
    nodes = topology.node_names
    ranks = len(nodes) * ranks_per_node
    if target.isdecimal() and target.isascii() and str(int(target)) == target and int(target) < ranks:
        return (int(target),)
    meant = (target,) if target in nodes else next((it.node_names for it in topology.sites if it.name == target), ())
    if meant:
        begins = (nodes.index(node) * ranks_per_node for node in meant)
        return tuple(begin + local for begin in begins for local in range(ranks_per_node))
    raise UnknownName("rank, node or site", target, [f"0 to {ranks - 1}", *(it.name for it in topology.sites), *nodes])


def rank_kill(topology: Topology, target: str, parameters: Mapping[str, str], ranks_per_node: int = 1) -> Compiled:
    """Kill ranks, and block their replacement for ``away``; then the job may restart. Raises UserError."""
    reader = Reader(parameters)
    away_s = reader.read("away", parse_duration_s, 0.0)
    reader.finish()
    ranks = target_ranks(topology, target, ranks_per_node)
    killed = Phase(0.0, KILLED, tuple(Killed(rank) for rank in ranks))
    return Compiled((killed,), (), lasts_s=max(away_s, SHORTEST_S), nodes=_nodes(topology, ranks, ranks_per_node))


def rank_pause(topology: Topology, target: str, parameters: Mapping[str, str], ranks_per_node: int = 1) -> Compiled:
    """Stop ranks (SIGSTOP) until healed. Raises UserError."""
    Reader(parameters).finish()
    ranks = target_ranks(topology, target, ranks_per_node)
    paused = Phase(0.0, "paused", tuple(Paused(rank, True) for rank in ranks))
    return Compiled((paused,), (), nodes=_nodes(topology, ranks, ranks_per_node))


def straggler(topology: Topology, target: str, parameters: Mapping[str, str], ranks_per_node: int = 1) -> Compiled:
    """Slow ranks down: compute takes longer by ``slower``, or is limited to ``cpu`` of a CPU. Raises UserError."""
    reader = Reader(parameters)
    by, cpu = reader.read("slower", _slower, 0.5), reader.read("cpu", _cpu, None)
    if "slower" in reader and "cpu" in reader:
        reader.note("cpu", "expected either slower= (the rank sleeps) or cpu= (the kernel throttles it), got both")
    if cpu is not None and ranks_per_node > 1:
        reader.note("cpu", f"a limit is for a whole node, whose {ranks_per_node} ranks would share it; use slower=")
    reader.finish()
    ranks = target_ranks(topology, target, ranks_per_node)
    if cpu is not None:
        nodes = _nodes(topology, ranks, ranks_per_node)
        throttled = tuple(Throttled(rank, topology.node_names[rank // ranks_per_node], cpu) for rank in ranks)
        return Compiled((Phase(0.0, f"{cpu:.3g} CPU", throttled),), (), nodes=nodes)
    slowed = Phase(0.0, f"compute x {1 + by:.4g}", tuple(Slowed(rank, by) for rank in ranks))
    return Compiled((slowed,), (), nodes=_nodes(topology, ranks, ranks_per_node))


def _nodes(topology: Topology, ranks: tuple[int, ...], ranks_per_node: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(topology.node_names[rank // ranks_per_node] for rank in ranks))


def _slower(value: object) -> float:
    """Parse ``50%`` (1.5 times as long) or ``3x`` (3 times as long) to the additional share."""
    fix = f"write 50% for 1.5 times as long, or 3x for 3 times as long, at most {MOST_SLOWDOWN:g}x"
    text = str(value).strip()
    try:
        if text.endswith("x"):
            by = parse_number(text[:-1], low=1.0, high=MOST_SLOWDOWN) - 1.0
        elif text.endswith("%"):
            by = parse_number(text[:-1], low=0.0, high=100 * (MOST_SLOWDOWN - 1)) / 100
        else:
            by = parse_probability(text)
    except Unreadable as error:
        raise Unreadable(*expected("a slowdown", value, fix)) from error
    if by <= 0:
        raise Unreadable(*expected("a slowdown greater than 0", value, fix))
    return by


def _cpu(value: object) -> float | None:
    """Parse a share of one CPU, such as ``30%``."""
    fix = f"write a share from {LEAST_CPU:.0%} to 99%"
    try:
        cpu = parse_probability(str(value).strip())
    except Unreadable as error:
        raise Unreadable(*expected("a share of a CPU", value, fix)) from error
    if not LEAST_CPU <= cpu < 1.0:
        why = "" if cpu < LEAST_CPU else " (a rank has one thread, so one CPU is no limit)"
        raise Unreadable(f"{shown(value)} is out of range{why}", fix)
    return cpu


RANK_KILL = FaultKind(
    "rank-kill",
    "the process of a rank is killed (SIGKILL)",
    _TARGETS,
    rank_kill,
    {"away": "how long its replacement is blocked (0s)"},
    frozenset({"away"}),
    compile_ranks=rank_kill,
)

RANK_PAUSE = FaultKind(
    "rank-pause",
    "the process of a rank is stopped (SIGSTOP); its peers see only silence",
    _TARGETS,
    rank_pause,
    compile_ranks=rank_pause,
)

STRAGGLER = FaultKind(
    "straggler",
    "a rank computes more slowly than the others",
    _TARGETS,
    straggler,
    {
        "slower": "additional compute time of each step: 50%, or 3x for 3 times as long (50%)",
        "cpu": "instead: the kernel's limit on its share of one CPU, by control group: 30%",
    },
    compile_ranks=straggler,
)
