"""A step of latency: the optical layer has moved a fiber to a longer path.

Restoration in the optical layer (ITU-T G.808) is seen by the routers above as the same link with another delay, after a
gap in which nothing arrives: 50 ms is what protection switching is held to (ITU-T G.841), restoration by a controller
takes seconds. No port loses its carrier; routers do not look for another way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.faults.impair import silenced
from testbed.core.physics.fiber import propagation_s
from testbed.core.physics.parameters import judge
from testbed.core.plan.properties import Shape
from testbed.core.topology.model import Link, Topology
from testbed.core.units import format_delay, parse_delay_s, parse_length_m
from testbed.errors import UserError

__all__ = ["LATENCY_STEP", "latency_step"]

_WAYS: Final = ("extra", "km", "delay")


def latency_step(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """The named directions get another delay and keep all else, their queue too: it is the routers', not the path's.

    Raises UserError.
    """
    directions = target_directions(topology, target)
    given = [key for key in _WAYS if key in parameters]
    if len(given) != 1:
        said = "not " + " and ".join(given) if given else "there is none"
        raise UserError(f"latency-step needs one of extra=1ms, km=120 and delay=2ms; {said}")
    reader = Reader(parameters)
    extra_s = reader.read("extra", parse_delay_s, 0.0)
    length_m = reader.read("km", parse_length_m, 0.0)
    delay_s = reader.read("delay", parse_delay_s, 0.0)
    gap_s = reader.read("gap", parse_delay_s, 0.0)
    reader.finish()
    steps: list[Shape] = []
    for link, direction in directions:
        own = link.impairment(direction)
        new_s = {"extra": own.delay_s + extra_s, "km": _over(link, own.delay_s, length_m), "delay": delay_s}[given[0]]
        impairment = dataclasses.replace(own, delay_s=new_s)
        steps.append(Shape(direction, impairment))
        for it in judge(impairment):
            reader.note(given[0], f"{it.key}: {it.why}")
    reader.finish()
    moved = Phase(gap_s, f"delay {format_delay(max(it.impairment.delay_s for it in steps), 4)}", tuple(steps))
    phases = (Phase(0.0, "dark", silenced(directions)), moved) if gap_s else (moved,)
    return Compiled(phases, target_links(topology, target)[0])


def _over(link: Link, own_s: float, length_m: float) -> float:
    """The delay with ``length_m`` of the same fiber in place of the link's own length; optics and huts stay."""
    return own_s + propagation_s(length_m, link.fiber) - propagation_s(link.length_m, link.fiber)


LATENCY_STEP = FaultKind(
    "latency-step",
    "the optical layer moves a fiber to another path",
    "a link, one direction of it (north:west), or a duct",
    latency_step,
    {
        "extra": "so much more, one way (1ms); or",
        "km": "the length of the new path (120), of the same fiber; or",
        "delay": "the new delay, one way (2ms)",
        "gap": "dark for so long before, without loss of carrier (50ms) [0]",
    },
)
