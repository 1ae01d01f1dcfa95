"""Faults of the light: a fiber that goes on working, worse than before."""

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
    """The named directions get these values; what is not named keeps the link's own. Raises UserError."""
    directions = target_directions(topology, target)
    if not parameters:
        raise UserError("impair needs at least one of " + ", ".join(f"{key}=…" for key in PARAMETERS))
    reader = Reader(parameters)
    steps: list[Shape] = []
    for link, direction in directions:
        impairment, misread = read(parameters, link.impairment(direction), link.mtu)
        steps.append(Shape(direction, impairment))
        for it in misread:
            reader.note(it.key, it.why)  # directions that differ may have mistakes of their own
    reader.finish()
    return Compiled.at_once("impaired", tuple(steps), target_links(topology, target)[0])


def silenced(directions: Iterable[tuple[Link, str]], flush: bool = False) -> tuple[Shape, ...]:
    """Each direction loses everything that enters it from now on; no port loses its carrier.

    What is under way has passed the place of the cut, at the sender's end, and arrives; with ``flush`` that is at the
    receiver's end, and what is under way is lost.
    """
    # Doubled packets must not be left: a double may be made before chance decides over the original.
    return tuple(
        Shape(direction, dataclasses.replace(lay({"loss": 1.0}, link.impairment(direction)), duplicate=0.0), flush)
        for link, direction in directions
    )


IMPAIR = FaultKind(
    "impair",
    "a fiber that goes on, worse: any of the values below replaced",
    "a link, one direction of it (north:west), or a duct",
    impair,
    {key: parameter.words for key, parameter in PARAMETERS.items()},
)
