"""The similarity law: what a lab with less of everything says about full scale. Pure.

Compute utilization depends on w kappa = w S / (B T), lambda = c d / T, H, P, tau, K, q, o / T, and on TCP. With
phi = T_full / T_lab, a lab therefore shows phi times its distance; and for the same declared model its payload rate
stands for B_full = B_lab x scale / phi, where ``scale`` divides rates and payloads alike. TCP's loss and windows are
not similar: a window counts packets, of which there are ``scale`` times as many at full scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.physics.fiber import DEFAULT_FIBER, propagation_s
from testbed.core.prediction.collective_times import Pattern
from testbed.core.prediction.inputs import Inputs

__all__ = ["Equivalent", "Groups", "full_scale", "groups", "length_m"]


def length_m(delay_s: float) -> float:
    """Return the fiber whose one-way delay is ``delay_s``, in metres: 5 us per km.

    >>> length_m(200e-6)
    40000.0
    """
    return delay_s / propagation_s(1.0, DEFAULT_FIBER)


@dataclass(frozen=True)
class Groups:
    """The dimensionless groups of one workload: serialization, propagation and software, each against compute."""

    wire_kappa: float
    propagation: float
    software: float


@dataclass(frozen=True)
class Equivalent:
    """Full scale of a lab: one-way delay in seconds, fiber in metres at 5 us/km, payload rate in bit/s."""

    delay_s: float
    length_m: float
    rate_bps: float


def groups(inputs: Inputs, pattern: Pattern) -> Groups:
    """Return w kappa, lambda and o / T of ``inputs``; of tiers the sums of what each adds to a step."""
    bits = pattern.wire_factor * inputs.payload_bits
    if inputs.tiers:
        return Groups(
            sum(bits / (it.rate_bps * inputs.step_s) / it.every for it in inputs.tiers),
            sum(pattern.delays * it.delay_s / inputs.step_s / it.every for it in inputs.tiers),
            sum(inputs.operation_s / inputs.step_s / it.every for it in inputs.tiers),
        )
    return Groups(
        bits / (inputs.rate_bps * inputs.step_s),
        pattern.delays * inputs.delay_s / inputs.step_s,
        inputs.operation_s / inputs.step_s,
    )


def full_scale(delay_s: float, rate_bps: float, step_s: float, full_step_s: float, scale: float = 1.0) -> Equivalent:
    """Return what a lab stands for whose step takes ``step_s`` where the full model's takes ``full_step_s``.

    >>> full_scale(200e-6, 753e6, 0.05, 0.8, 1000)  # 40 km and 0.75 Gb/s, a step 16 times as long
    Equivalent(delay_s=0.0032, length_m=640000.0, rate_bps=47062500000.0)
    """
    phi = full_step_s / step_s
    return Equivalent(delay_s * phi, length_m(delay_s * phi), rate_bps * scale / phi)
