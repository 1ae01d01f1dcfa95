"""What a fault's Steps make of directions when no other fault is in force."""

from __future__ import annotations

from collections.abc import Iterable

from testbed.core.physics.fold import fold
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.properties import Changed
from testbed.core.plan.step import Step
from testbed.core.topology.model import Topology


def shapes(topology: Topology, steps: Iterable[Step]) -> dict[str, Impairment]:
    """Impairments by direction; every Step must be of a direction."""
    found = {}
    for step in steps:
        assert isinstance(step, Changed)
        own = topology.link(step.direction.partition(":")[0]).impairment(step.direction)
        found[step.direction] = fold(own, [("f1", step.change)]).impairment
    return found
