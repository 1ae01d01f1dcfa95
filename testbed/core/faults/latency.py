"""The fault ``latency-step``: the optical layer moves a fiber to a longer path.

Routers see restoration in the optical layer (ITU-T G.808) as the same link with another delay, after a gap in which
nothing arrives: protection switching must finish within 50 ms (ITU-T G.841), restoration by a controller takes
seconds. No port loses its carrier, so traffic is not rerouted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.faults.impair import silenced
from testbed.core.faults.overlap import judge_change
from testbed.core.physics.change import Change
from testbed.core.physics.fiber import propagation_s
from testbed.core.plan.properties import Changed
from testbed.core.topology.model import Link, Topology
from testbed.core.units import format_delay, parse_delay_s, parse_length_m
from testbed.errors import UserError

__all__ = ["LATENCY_STEP", "latency_step"]

_WAYS: Final = ("extra", "km", "delay")


def latency_step(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Change the delay of the target's directions, and nothing else: the queue is the router's, not the path's.

    Raises UserError.
    """
    directions = target_directions(topology, target)
    given = [key for key in _WAYS if key in parameters]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        raise UserError(f"expected one of extra=1ms, km=120 and delay=2ms, got {got}; write exactly one")
    reader = Reader(parameters)
    extra_s = reader.read("extra", parse_delay_s, 0.0)
    length_m = reader.read("km", parse_length_m, 0.0)
    delay_s = reader.read("delay", parse_delay_s, 0.0)
    gap_s = reader.read("gap", parse_delay_s, 0.0)
    reader.finish()
    steps: list[Changed] = []
    new_s: list[float] = []
    for link, direction in directions:
        if given[0] == "extra":
            change = Change(extra_s=extra_s)
        else:
            own_s = link.impairment(direction).delay_s
            change = Change(delay_s=_over(link, own_s, length_m) if given[0] == "km" else delay_s)
            new_s.append(change.delay_s or 0.0)
        steps.append(Changed(direction, change))
        for it in judge_change(link, direction, change):
            reader.note(given[0], f"{it.key}: {it.why}")
    reader.finish()
    name = f"delay {format_delay(max(new_s), 4)}" if new_s else f"delay + {format_delay(extra_s, 4)}"
    moved = Phase(gap_s, name, tuple(steps))
    phases = (Phase(0.0, "dark", silenced(directions)), moved) if gap_s else (moved,)
    return Compiled(phases, target_links(topology, target)[0])


def _over(link: Link, own_s: float, length_m: float) -> float:
    """Return the delay over ``length_m`` of the same fiber; the latency of optics and huts stays."""
    return own_s + propagation_s(length_m, link.fiber) - propagation_s(link.length_m, link.fiber)


LATENCY_STEP = FaultKind(
    "latency-step",
    "the optical layer moves a fiber to another path",
    "a link, one direction of it (north:west), or a duct",
    latency_step,
    {
        "extra": "additional one-way delay, on top of all others (1ms); or",
        "km": "length of the new path, of the same fiber (120); or",
        "delay": "new one-way delay (2ms)",
        "gap": "dark for this long before, without loss of carrier (50ms) [0]",
    },
)
