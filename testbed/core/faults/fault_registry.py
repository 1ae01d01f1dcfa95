"""The registry of faults: every kind by name; compile a fault by name."""

from __future__ import annotations

from collections.abc import Mapping

from testbed.core.faults import brownout, carrier, impair, latency, power, presets, rank
from testbed.core.faults.causes import with_cause
from testbed.core.faults.fault_kind import Compiled, FaultKind
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName

__all__ = ["compile_fault", "registry"]


def registry() -> dict[str, FaultKind]:
    """Return every kind of fault, by name."""
    kinds = (
        *map(with_cause, (carrier.CUT, carrier.FLAP)),
        *(impair.IMPAIR, latency.LATENCY_STEP, with_cause(brownout.BROWN_OUT)),
        *presets.PRESETS,
        *(rank.RANK_KILL, rank.RANK_PAUSE, rank.STRAGGLER),
        *(power.NODE_KILL, power.GATEWAY_DOWN, power.POWER_LOSS, power.EVACUATION, power.MANAGEMENT_PARTITION),
    )
    return {kind.name: kind for kind in kinds}


def compile_fault(
    topology: Topology, name: str, target: str, parameters: Mapping[str, str], ranks_per_node: int = 1
) -> Compiled:
    """Compile the fault ``name`` to phases; ``ranks_per_node``: of the job that it is for. Changes nothing.

    Raises UnknownName or UserError.
    """
    kinds = registry()
    if name not in kinds:
        raise UnknownName("fault", name, kinds)
    for key in parameters:
        if key not in kinds[name].parameters:
            raise UnknownName(f"{name} parameter", key, kinds[name].parameters)
    if (of_ranks := kinds[name].compile_ranks) is not None:
        return of_ranks(topology, target, parameters, ranks_per_node)
    return kinds[name].compile(topology, target, parameters)
