"""The registry of faults: every kind by name; compile a fault by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from testbed.core.faults import brownout, carrier, impair, power, rank
from testbed.core.faults.fault_kind import Compiled, FaultKind
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName

__all__ = ["compile_fault", "registry"]

_KINDS: Final = (
    *(carrier.CUT, carrier.FLAP, impair.IMPAIR, impair.LATENCY_STEP, brownout.BROWN_OUT),
    *(*impair.PRESETS, *rank.RANK_FAULTS, *power.PLACE_FAULTS),
)


def registry() -> dict[str, FaultKind]:
    """Return every kind of fault, by name."""
    return {kind.name: kind for kind in _KINDS}


def compile_fault(
    topology: Topology, name: str, target: str, parameters: Mapping[str, str], ranks_per_node: int = 1
) -> Compiled:
    """Compile the fault ``name`` to phases; ``ranks_per_node``: of the job that it is for. Changes nothing.

    Raises UnknownName or UserError.
    """
    kinds = registry()
    if name not in kinds:
        raise UnknownName("fault", name, kinds)
    return kinds[name].compile(topology, target, parameters, ranks_per_node)
