"""The fault ``impair``: a fiber that stays up with other impairments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from testbed.core.faults.fault_kind import Compiled, FaultKind, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.physics.parameters import PARAMETERS, lay, read
from testbed.core.plan.properties import Shape
from testbed.core.topology.model import Link, Topology
from testbed.errors import UserError

__all__ = ["IMPAIR", "impair", "silenced"]


def impair(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Set the given values on the target's directions; others keep the link's own. Raises UserError."""
    directions = target_directions(topology, target)
    if not parameters:
        keys = ", ".join(f"{key}=…" for key in PARAMETERS)
        raise UserError(f"expected at least one parameter, got none; write one of {keys}")
    reader = Reader(parameters)
    steps: list[Shape] = []
    for link, direction in directions:
        impairment, misread = read(parameters, link.impairment(direction), link.mtu)
        steps.append(Shape(direction, impairment))
        for it in misread:
            reader.note(it.key, it.why)  # a mistake may depend on the direction
    reader.finish()
    return Compiled.at_once("impaired", tuple(steps), target_links(topology, target)[0])


def silenced(directions: Iterable[tuple[Link, str]], flush: bool = False) -> tuple[Shape, ...]:
    """Return Steps with which each direction loses every packet that enters it, while ports keep their carrier.

    The cut is at the sender's end, so packets in flight still arrive; with ``flush`` it is at the receiver's end, and
    packets in flight are lost.
    """
    # Disable duplication: the emulator may duplicate a packet before it draws the loss of the original.
    return tuple(
        Shape(direction, dataclasses.replace(lay({"loss": 1.0}, link.impairment(direction)), duplicate=0.0), flush)
        for link, direction in directions
    )


IMPAIR = FaultKind(
    "impair",
    "a fiber stays up with other impairments: any of the values below",
    "a link, one direction of it (north:west), or a duct",
    impair,
    {key: parameter.words for key, parameter in PARAMETERS.items()},
)
