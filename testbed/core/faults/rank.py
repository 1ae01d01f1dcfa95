"""Faults of ranks: killed, paused, slower than the others.

The peers of a killed rank see its connections closed or reset at once; those of a paused rank see only silence, as
with a swapping machine, a stuck driver or a debugger. A straggler keeps working, and all others wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Given, Parameter, Phase
from testbed.core.faults.fault_target import RANKS, Aim
from testbed.core.plan.properties import Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed
from testbed.core.plan.step import Step
from testbed.core.units import Unreadable, parse_duration_s, parse_number, parse_probability
from testbed.core.user_text import expected, shown

__all__ = ["KILLED", "RANK_FAULTS"]

KILLED: Final = "killed"
"""Name of the phase in which ranks are killed."""

MOST_SLOWDOWN: Final = 100.0

LEAST_CPU: Final = 0.05
"""The smallest CPU quota of the kernel is 1 ms; in periods of 20 ms that is 5 %."""

SHORTEST_S: Final = 1e-3
"""The shortest duration, so that the end of a fault is after its beginning."""


def _compiled(aim: Aim, name: str, steps: Iterable[Step], lasts_s: float | None = None) -> Compiled:
    nodes = tuple(dict.fromkeys(aim.ranks().values()))
    return Compiled((Phase(0.0, name, tuple(steps)),), (), lasts_s=lasts_s, nodes=nodes)


def _kill(aim: Aim, given: Given) -> Compiled:
    """Kill ranks, and block their replacement for ``away``; then the job may restart."""
    return _compiled(aim, KILLED, map(Killed, aim.ranks()), max(given["away"], SHORTEST_S))


def _pause(aim: Aim, given: Given) -> Compiled:
    """Stop ranks (SIGSTOP) until healed."""
    return _compiled(aim, "paused", (Paused(rank, True) for rank in aim.ranks()))


def _straggle(aim: Aim, given: Given) -> Compiled:
    """Slow ranks down: compute takes longer by ``slower``, or is limited to ``cpu`` of a CPU."""
    by, cpu = given["slower"], given["cpu"]
    if cpu is None:
        return _compiled(aim, f"compute x {1 + by:.4g}", (Slowed(rank, by) for rank in aim.ranks()))
    if "slower" in given.written:
        given.note("cpu", "expected either slower= (the rank sleeps) or cpu= (the kernel throttles it), got both")
    if aim.ranks_per_node > 1:
        why = f"a limit is for a whole node, whose {aim.ranks_per_node} ranks would share it; use slower="
        given.note("cpu", why)
    return _compiled(aim, f"{cpu:.3g} CPU", (Throttled(rank, node, cpu) for rank, node in aim.ranks().items()))


def _slower(value: str) -> float:
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


def _cpu(value: str) -> float:
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


RANK_FAULTS: Final = (
    FaultKind(
        "rank-kill",
        "the process of a rank is killed (SIGKILL)",
        RANKS,
        _kill,
        {"away": Parameter("how long its replacement is blocked (0s)", parse_duration_s, 0.0)},
        Aim.ranks,
        frozenset({"away"}),
        of_ranks=True,
    ),
    FaultKind(
        "rank-pause",
        "the process of a rank is stopped (SIGSTOP); its peers see only silence",
        RANKS,
        _pause,
        find=Aim.ranks,
        of_ranks=True,
    ),
    FaultKind(
        "straggler",
        "a rank computes more slowly than the others",
        RANKS,
        _straggle,
        {
            "slower": Parameter(
                "additional compute time of each step: 50%, or 3x for 3 times as long (50%)", _slower, 0.5
            ),
            "cpu": Parameter("instead: the kernel's limit on its share of one CPU, by control group: 30%", _cpu),
        },
        Aim.ranks,
        of_ranks=True,
    ),
)
