"""The similarity law: what a lab with less of everything says about full scale. Pure.

Compute utilization depends on w kappa = w S / (B T), lambda = c d / T, H, P, tau, K, q, o / T, and on TCP. With
phi = T_full / T_lab, a lab therefore shows phi times its distance; and for the same declared model its payload rate
stands for B_full = B_lab x scale / phi, where ``scale`` divides rates and payloads alike. TCP's loss and windows are
not similar: a window counts packets, of which there are ``scale`` times as many at full scale.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.prediction.network import Network, length_m
from testbed.core.prediction.simulator import Costs, Simulated

__all__ = ["Equivalent", "Groups", "full_scale", "groups"]


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


def groups(costs: Costs, network: Network, cycle: int, step_s: float, simulated: Simulated) -> Groups:
    """Return w kappa, lambda and o / T: what the busiest lane sends in a cycle, and the longest exchange takes.

    ``step_s``: compute of a step. ``simulated``: with its transfers.
    """
    busiest_s = max(
        (
            8 * moved / network.rates_bps[lane]
            for lane, moved in simulated.lane_bytes.items()
            if lane in network.rates_bps
        ),
        default=0.0,
    )
    used = {
        id(transfer.exchange): transfer.exchange
        for transfer in simulated.transfers
        if transfer.exchange and transfer.exchange.operations
    }
    crossing = [cost for cost in map(costs.of, used.values()) if any(lane in network.rates_bps for lane in cost.bytes)]
    return Groups(
        busiest_s * cycle / step_s,
        max((cost.propagation_s for cost in crossing), default=0.0) / step_s,
        max((cost.software_s for cost in crossing), default=0.0) / step_s,
    )


def full_scale(delay_s: float, rate_bps: float, step_s: float, full_step_s: float, scale: float = 1.0) -> Equivalent:
    """Return what a lab stands for whose step takes ``step_s`` where the full model's takes ``full_step_s``.

    >>> full_scale(200e-6, 753e6, 0.05, 0.8, 1000)  # 40 km and 0.75 Gb/s, a step 16 times as long
    Equivalent(delay_s=0.0032, length_m=640000.0, rate_bps=47062500000.0)
    """
    phi = full_step_s / step_s
    return Equivalent(delay_s * phi, length_m(delay_s * phi), rate_bps * scale / phi)
