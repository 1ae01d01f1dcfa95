"""Communication cost per step of training methods: an alpha + beta x n model, to choose a method, not to predict it.

A collective around a ring of R members takes 2 (R - 1) steps: R - 1 of reduce-scatter, R - 1 of all-gather (Patarasuk
and Yuan, J. Parallel Distrib. Comput. 69, 117, 2009). Each member sends 2 (R - 1) / R x n bytes in all. So

    T(R, n) = 2 (R - 1) x 2 d + 2 (R - 1) / R x n x c

with d the one-way delay of the ring's longest hop, c the seconds per byte on the busiest direction of a fiber, and 2 d
per step, as measured: gloo's all-reduce among 4 ranks at 2 sites took 12 d and put 1.5 n on the fiber each way. For
more ranks it is an extrapolation, pessimistic for sites with many ranks, whose hops are short.

=====================  =============================================================  ==================================
method                 exposed seconds per step                                       source
=====================  =============================================================  ==================================
flat DDP               T(ranks, n)                                                    all ranks in one ring
hierarchical (HSDP)    T(sites, n): inside a site first, its shards cross in parallel  Zhao et al., arXiv:2304.11277
local SGD              T(sites, n) / H, H = 16                                        Lin et al., arXiv:1808.07217
DiLoCo                 T(sites, n) / H, H = 500                                       Douillard et al., arXiv:2311.08105
Streaming DiLoCo       P / H x max(0, T(sites, n / P) - tau x compute), H = 100,      Douillard et al., arXiv:2501.18512
                       P = 8 fragments, tau = 5 steps of overlap
=====================  =============================================================  ==================================

The model ignores that DDP hides part of an exchange behind the backward pass (real exposure is lower) and starts one
collective per bucket, each with its own latency (higher); that TCP needs a window of rate x RTT and slows down with
loss (higher); and the cost of fabrics inside a site (higher). It assumes that deltas of local SGD and DiLoCo are as
large as gradients, though Streaming DiLoCo sends 4 bits per value (lower), and that a single path connects two sites,
though `routing: multipath` spreads flows (lower). Model quality with H steps between exchanges does not depend on
fibers and is out of scope. DiLoCo's H is that of its paper; the other H, P, tau and the thresholds of verdicts are
our choice.
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
"""Default gradient size of a step: half a billion parameters in BF16, a quarter of a billion in FP32."""
COMPUTE_S: Final = 1.0
"""Default compute time of a step, in seconds: our assumption."""

LOCAL_SGD_STEPS: Final = 16
DILOCO_STEPS: Final = 500
STREAMING_STEPS: Final = 100
STREAMING_FRAGMENTS: Final = 8
STREAMING_OVERLAP_STEPS: Final = 5

VIABLE: Final = 0.1
COSTLY: Final = 0.5
"""Largest exposed share of a step of a viable, or costly, method: our assumption."""


@dataclass(frozen=True)
class Rings:
    """The rings across the fibers of a lab, at its real rates.

    ``hop_s`` is the one-way delay of the longest hop from a site to the next, in seconds. ``byte_s`` is the time of the
    busiest direction of a fiber per byte that every site sends to the next, in seconds per byte.
    """

    sites: int
    ranks: int
    hop_s: float
    byte_s: float


@dataclass(frozen=True)
class Way:
    """A training method: its exposed communication per step, in seconds and as a share of the step.

    ``every`` is the number of steps per exchange; ``exposed_s`` is the mean over them.
    """

    name: str
    every: int
    exposed_s: float
    share: float
    verdict: str


def ring_s(members: int, size_bytes: float, hop_s: float, byte_s: float) -> float:
    """Return the seconds of one all-reduce of ``size_bytes`` around a ring; 0 for a ring of one.

    >>> ring_s(4, 0, 200e-6, 0) == 12 * 200e-6
    True
    """
    steps = 2 * (members - 1)
    return steps * 2 * hop_s + steps / members * size_bytes * byte_s


def ways(rings: Rings, gradient_bytes: float = GRADIENT_BYTES, compute_s: float = COMPUTE_S) -> tuple[Way, ...]:
    """Return each training method with its exposed communication, in the order of the table above.

    Args:
        gradient_bytes: gradients of one step, as exchanged.
        compute_s: compute time of a step in seconds, greater than 0.
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
