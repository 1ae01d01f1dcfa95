"""Faults as they are written on the command line: ``fault("cut north:west carrier=silent")``."""

from __future__ import annotations

import shlex

from oracles.fault_values import shapes

from builders.topologies import METRO
from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.physics.impairment import Impairment
from testbed.core.topology.model import Topology


def fault(line: str, topology: Topology = METRO) -> Compiled:
    """Compile a fault: kind, target and parameters, quoted as for a shell where they have blanks."""
    kind, target, *parameters = shlex.split(line)
    return compile_fault(topology, kind, target, dict(word.split("=", 1) for word in parameters))


def shaped(line: str, topology: Topology = METRO, phase: int = 0) -> dict[str, Impairment]:
    """Return what a phase of a fault makes of each direction that it changes."""
    return shapes(topology, fault(line, topology).phases[phase].steps)
