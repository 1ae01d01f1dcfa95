"""Faults of the light: a fiber that goes on working, worse than before."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.faults.fault import Compiled, FaultKind, target_links
from testbed.core.physics.parameters import PARAMETERS, read
from testbed.core.plan.step import Shape
from testbed.core.topology.model import Topology
from testbed.errors import UserError


def impair(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """The named directions get these values; what is not named keeps the link's own. Raises UserError."""
    names, toward = target_links(topology, target)
    if not parameters:
        raise UserError("impair needs at least one of " + ", ".join(f"{key}=…" for key in PARAMETERS))
    steps: list[Shape] = []
    wrong: dict[str, None] = {}
    for name in names:
        for direction in topology.link(name).directions:
            if not toward or direction == f"{name}:{toward}":
                impairment, misread = read(parameters, topology.link(name).impairment(direction))
                steps.append(Shape(direction, impairment))
                # Directions that differ may have mistakes of their own; the same one is said once.
                wrong |= dict.fromkeys(f"{it.key}={parameters.get(it.key, '…')}: {it.why}" for it in misread)
    if wrong:
        raise UserError("; ".join(wrong))
    return Compiled(tuple(steps), names)


IMPAIR = FaultKind(
    "impair",
    "a fiber that goes on, worse: any of the values below replaced",
    "a link, one direction of it (north:west), or a duct",
    impair,
    {key: parameter.words for key, parameter in PARAMETERS.items()},
)
