"""Energy of exchanges and of waiting. Pure. All constants are inputs: none is assumed here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testbed.core.physics.facts import RADIUS_CLASSES, radius_class
from testbed.core.prediction.predicted_job import Job
from testbed.core.prediction.simulator import Simulated

__all__ = ["FABRIC", "PATH_CLASSES", "Power", "StepEnergy", "bits_by_class", "exchange_j", "waiting_j"]

FABRIC: Final = "fabric"
PATH_CLASSES: Final = (FABRIC, *(radius.name for radius in RADIUS_CLASSES))
"""Classes of paths: inside a site, and fibers by their length (``core/physics/facts.py``)."""


def exchange_j(bits: Mapping[str, float], joules_per_bit: Mapping[str, float]) -> float:
    """Return the joules of ``bits`` per class of path (fabric, metro, long-haul), at that class's joules per bit.

    >>> round(exchange_j({"metro": 1e12}, {"metro": 50e-12}), 6)
    50.0
    """
    return sum(amount * joules_per_bit[path] for path, amount in bits.items())


def waiting_j(exposed_s: float, ranks: int, idle_watts: float) -> float:
    """Return the joules that ``ranks`` ranks draw while each waits ``exposed_s`` at ``idle_watts``."""
    return exposed_s * ranks * idle_watts


def bits_by_class(job: Job, simulated: Simulated) -> dict[str, float]:
    """Return the bits of a step at full scale by class of path: of each fiber and direction, and inside the sites."""
    bits_by_path: dict[str, float] = {}
    for lane, byte_count in simulated.lane_bytes.items():
        metres = job.network.lengths_m.get(lane)
        path = FABRIC if metres is None else radius_class(metres).name
        if byte_count:
            bits_by_path[path] = bits_by_path.get(path, 0.0) + 8 * byte_count * job.scale
    return bits_by_path


@dataclass(frozen=True)
class StepEnergy:
    """Joules of a step over all sites and ranks: of its bits, by class of path, and of its waiting."""

    by_class: Mapping[str, float]
    waiting_j: float

    @property
    def exchange_j(self) -> float:
        return sum(self.by_class.values())


@dataclass(frozen=True)
class Power:
    """What energy costs: joules per bit of a path, watts of an accelerator that waits.

    ``joules_per_bit``: of every fiber. ``by_class``: of the classes of :data:`PATH_CLASSES`, in place of it; fabrics
    count only where they are named.
    """

    joules_per_bit: float | None = None
    idle_watts: float = 0.0
    by_class: Mapping[str, float] = field(default_factory=dict)

    def mistakes(self) -> list[str]:
        """Return what is impossible, by option."""
        wrong = [
            f"--joules-per-bit: unknown class of path '{path}' (available: {', '.join(PATH_CLASSES)})"
            for path in self.by_class
            if path not in PATH_CLASSES
        ]
        given = (self.joules_per_bit or 0.0, self.idle_watts, *self.by_class.values())
        if not all(0 <= amount < math.inf for amount in given):
            wrong.append("--joules-per-bit and --idle-watts must be 0 or more, and finite")
        return wrong

    def missing(self, bits: Mapping[str, float]) -> list[str]:
        """Return the classes of ``bits`` that have no joules, where some have."""
        if self.joules_per_bit is not None or not self.by_class:
            return []
        return [path for path in bits if path not in self.by_class and path != FABRIC]

    def step(self, job: Job, simulated: Simulated) -> StepEnergy:
        """Return the joules of a step."""
        default, bits = self.joules_per_bit or 0.0, bits_by_class(job, simulated)
        of = {path: self.by_class.get(path, 0.0 if path == FABRIC else default) for path in bits}
        joules = {path: exchange_j({path: amount}, of) for path, amount in bits.items()}
        return StepEnergy(joules, waiting_j(simulated.parts.total_s, job.ranks, self.idle_watts))
