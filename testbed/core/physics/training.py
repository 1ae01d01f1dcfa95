"""What a way of training pays on the fibers of a step: an alpha + beta x n model, to choose a way, not to predict one.

A collective around a ring of R members takes 2 (R - 1) steps: R - 1 of reduce-scatter, R - 1 of all-gather (Patarasuk
and Yuan, J. Parallel Distrib. Comput. 69, 117, 2009). Each member sends 2 (R - 1) / R x n bytes in all. So

    T(R, n) = 2 (R - 1) x 2 d + 2 (R - 1) / R x n x c

with d the one-way delay of the ring's longest hop, c the seconds a byte takes on the busiest direction of a fiber, and
2 d a step, for that is what was measured: gloo's all-reduce among 4 ranks at 2 sites took 12 d and put 1.5 n on the
fiber each way. For more ranks it is an extrapolation, pessimistic where a site has many: their hops are short.

=====================  =============================================================  ==================================
way                    exposed seconds per step                                       source
=====================  =============================================================  ==================================
flat DDP               T(ranks, n)                                                    all ranks in one ring
hierarchical (HSDP)    T(sites, n): inside a site first, its shards cross in parallel  Zhao et al., arXiv:2304.11277
local SGD              T(sites, n) / H, H = 16                                        Lin et al., arXiv:1808.07217
DiLoCo                 T(sites, n) / H, H = 500                                       Douillard et al., arXiv:2311.08105
Streaming DiLoCo       P / H x max(0, T(sites, n / P) - tau x compute), H = 100,      Douillard et al., arXiv:2501.18512
                       P = 8 fragments, tau = 5 steps of overlap
=====================  =============================================================  ==================================

What it leaves out: DDP hides part of an exchange behind the backward pass (less is exposed) and starts one collective
per bucket, each with its own latency (more is); TCP needs a window of rate x RTT and slows down with loss (more);
fabrics inside a site cost nothing (more); deltas of local SGD and DiLoCo are taken to be as large as gradients, though
Streaming DiLoCo sends 4 bits a value (less). A single path joins two sites; `routing: multipath` spreads flows (less).
How well a model learns with H steps between exchanges is no matter of fibers and is not judged. DiLoCo's H is
that of its paper; the other H, P, tau and the verdicts' shares are values we chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = [
    "COMPUTE_S",
    "COSTLY",
    "DILOCO_STEPS",
    "GRADIENT_BYTES",
    "LOCAL_SGD_STEPS",
    "STREAMING_FRAGMENTS",
    "STREAMING_OVERLAP_STEPS",
    "STREAMING_STEPS",
    "VIABLE",
    "Rings",
    "Way",
    "ring_s",
    "ways",
]

GRADIENT_BYTES: Final = 1e9
"""Gradients of a step by default: half a billion parameters in BF16, a quarter of a billion in FP32."""
COMPUTE_S: Final = 1.0
"""Compute of a step by default, in seconds: our assumption."""

LOCAL_SGD_STEPS: Final = 16
DILOCO_STEPS: Final = 500
STREAMING_STEPS: Final = 100
STREAMING_FRAGMENTS: Final = 8
STREAMING_OVERLAP_STEPS: Final = 5

VIABLE: Final = 0.1
COSTLY: Final = 0.5
"""Shares of a step that may be exposed for a way to be called viable, or costly: our assumption."""


@dataclass(frozen=True)
class Rings:
    """The rings that cross the fibers of a lab, at its real rates.

    ``hop_s`` is the one-way delay of the longest hop from a site to the next, in seconds. ``byte_s`` is how long the
    busiest direction of a fiber takes for one byte that every site sends to the next, in seconds per byte.
    """

    sites: int
    ranks: int
    hop_s: float
    byte_s: float


@dataclass(frozen=True)
class Way:
    """A way of training: seconds per step that wait for the fibers, and their share of such a step.

    ``every`` is how many steps lie between two exchanges; ``exposed_s`` is the mean over them.
    """

    name: str
    every: int
    exposed_s: float
    share: float
    verdict: str


def ring_s(members: int, size_bytes: float, hop_s: float, byte_s: float) -> float:
    """Seconds of one all-reduce of ``size_bytes`` around a ring; 0 for a ring of one.

    >>> ring_s(4, 0, 200e-6, 0) == 12 * 200e-6
    True
    """
    steps = 2 * (members - 1)
    return steps * 2 * hop_s + steps / members * size_bytes * byte_s


def ways(rings: Rings, gradient_bytes: float = GRADIENT_BYTES, compute_s: float = COMPUTE_S) -> tuple[Way, ...]:
    """Each way of training by what it exposes, in the order of the table above.

    Args:
        gradient_bytes: gradients of one step, as they are exchanged.
        compute_s: how long a step computes, in seconds, more than 0.
    """
    return tuple(
        Way(name, every, exposed_s, exposed_s / (exposed_s + compute_s), _verdict(exposed_s, compute_s))
        for name, every, exposed_s in _exposed(rings, gradient_bytes, compute_s)
    )


def _exposed(rings: Rings, size_bytes: float, compute_s: float) -> Iterator[tuple[str, int, float]]:
    between_sites_s = ring_s(rings.sites, size_bytes, rings.hop_s, rings.byte_s)
    yield "flat DDP", 1, ring_s(rings.ranks, size_bytes, rings.hop_s, rings.byte_s)
    yield "hierarchical (HSDP)", 1, between_sites_s
    yield "local SGD", LOCAL_SGD_STEPS, between_sites_s / LOCAL_SGD_STEPS
    yield "DiLoCo", DILOCO_STEPS, between_sites_s / DILOCO_STEPS
    fragment_s = ring_s(rings.sites, size_bytes / STREAMING_FRAGMENTS, rings.hop_s, rings.byte_s)
    late_s = max(0.0, fragment_s - STREAMING_OVERLAP_STEPS * compute_s)
    yield "Streaming DiLoCo", STREAMING_STEPS, late_s * STREAMING_FRAGMENTS / STREAMING_STEPS


def _verdict(exposed_s: float, compute_s: float) -> str:
    share = exposed_s / (exposed_s + compute_s)
    return "viable" if share <= VIABLE else "costly" if share <= COSTLY else "not viable"
