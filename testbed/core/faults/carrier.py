"""Faults of the carrier: a fiber cut.

A cut takes both plant ends of a link down: both gateways lose the carrier, addresses and routes stay, what was in
flight is lost. Naming a duct cuts every link inside it (its shared-risk group) at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.faults.fault import Compiled, FaultKind, target_links
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.step import Carrier
from testbed.core.topology.model import Topology
from testbed.errors import UserError


def cut(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Both ends of every link that ``target`` names go down. Raises UserError for a single direction."""
    names, toward = target_links(topology, target)
    if toward:
        raise UserError(
            f"a cut of one direction ({target}) is not built yet; cut {names[0]} cuts both, "
            f"'inject impair {target} loss=100%' darkens one"
        )
    steps = tuple(Carrier(PLANT, end, False) for name in names for end in topology.link(name).ends)
    return Compiled(steps, names)


CUT = FaultKind("cut", "fiber cut: loss of carrier at both gateways", "a link, or a duct for every link in it", cut)
