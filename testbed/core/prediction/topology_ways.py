"""Which ways of training the fibers of a topology can sustain: the table of ``testbed show``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from testbed.core.prediction.from_topology import from_topology
from testbed.core.prediction.inputs import Inputs
from testbed.core.prediction.required_rate import least_rate_bps
from testbed.core.prediction.strategies import STRATEGIES
from testbed.core.topology.model import Topology

__all__ = ["COMPUTE_S", "GRADIENT_BYTES", "Way", "ways"]

GRADIENT_BYTES: Final = 1e9
"""Default gradient size of a step: half a billion parameters in BF16, a quarter of a billion in FP32."""
COMPUTE_S: Final = 1.0
"""Default compute time of a step, in seconds: our assumption."""
LAYERS: Final = 24
"""Of a model of a billion parameters (arXiv:2501.18512, Table 4)."""
BITS: Final = 16.0

VIABLE: Final = 0.1
COSTLY: Final = 0.5
"""Largest exposed share of a step of a viable, or costly, way of training: our assumption."""

SHOWN: Final[tuple[tuple[str, dict[str, int]], ...]] = (
    ("ddp", {}),
    ("hierarchical", {}),
    ("local-sgd", {"every": 16}),
    ("diloco", {"every": 500}),
    ("streaming-diloco", {"every": 100, "fragments": 8, "overlap": 5}),
)
"""DiLoCo's H is that of arXiv:2311.08105; the others are our choice."""


@dataclass(frozen=True)
class Way:
    """A way of training: exposed communication per step, in seconds and as a share of the step.

    ``every`` is the number of steps per exchange; ``exposed_s`` is the mean over them. ``rate_bps`` is the least
    payload rate between two sites for a compute utilization of 90 %; None if distance forbids it at any rate.
    """

    name: str
    every: int
    exposed_s: float
    share: float
    verdict: str
    rate_bps: float | None


def ways(topology: Topology, gradient_bytes: float = GRADIENT_BYTES, compute_s: float = COMPUTE_S) -> tuple[Way, ...]:
    """Return each way of :data:`SHOWN` over the fibers of ``topology``, at full scale; empty for a single site.

    Args:
        gradient_bytes: gradients of one step, as exchanged.
        compute_s: compute time of a step in seconds, greater than 0.
    """
    if len(topology.sites) < 2:
        return ()
    found = from_topology(topology)
    return tuple(_way(name, own, found, gradient_bytes, compute_s) for name, own in SHOWN)


def _way(name: str, own: dict[str, int], found: dict[str, Any], gradient_bytes: float, compute_s: float) -> Way:
    # A payload of 0 bytes is allowed here, and a model of 0 parameters is not.
    parameters = max(gradient_bytes * 8 / BITS, 1.0)
    inputs = Inputs(step_s=compute_s, parameters=parameters, layers=LAYERS, bits=BITS, **found).but(**own)
    strategy = STRATEGIES[name]
    outcome = strategy.predict(inputs)
    share = outcome.exposed.total_s / outcome.step_s
    return Way(
        name,
        inputs.every,
        outcome.exposed.total_s,
        share,
        "viable" if share <= VIABLE else "costly" if share <= COSTLY else "not viable",
        least_rate_bps(lambda rate: strategy.predict(inputs.but(rate_bps=rate)).utilization, 1 - VIABLE),
    )
