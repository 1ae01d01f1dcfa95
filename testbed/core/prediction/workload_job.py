"""The job of a workload: on a topology, or on sites that are alike. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from testbed.core.prediction.library_costs import GLOO, Library
from testbed.core.prediction.network import Network
from testbed.core.prediction.predicted_job import Job, Tcp, represented
from testbed.core.topology.model import Topology
from testbed.core.training.strategies_built import twin_class
from testbed.core.workload import workload_layout
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
from testbed.errors import UserError

__all__ = ["COMPUTE_S", "DELAY_S", "MODEL", "RATE_BPS", "SCALE", "job_alike", "job_on"]

MODEL: Final = 10e9
COMPUTE_S: Final = 0.8
"""Parameters at full scale, and compute of a step in seconds, if neither a workload nor a caller declares them."""
RATE_BPS: Final = 100e9
DELAY_S: Final = 200e-6
SCALE: Final = 1000.0
"""Payload rate at full scale, delay and scale of sites that no topology describes."""
LEAST_SCALE: Final = 1e-3
MOST_SCALE: Final = 1e9
"""As of a topology."""
MOST_SITES: Final = 256
MOST_RANKS: Final = 10**9
_HEAD_WIDTH: Final = 128
_HEADS: Final = 16
"""More heads are a multiple of that, so that 2, 4, 8 or 16 ranks can split them."""
_ENDLESS: Final = 10**12
"""Steps of a job whose steady state is of interest."""


_NO_LIMITS: Final = Tcp()


def job_on(
    workload: AgentWorkload,
    topology: Topology,
    network: Network | None = None,
    *,
    rate_bps: float | None = None,
    delay_s: float | None = None,
    library: Library = GLOO,
    tcp: Tcp = _NO_LIMITS,
) -> Job:
    """Return the job of ``workload``, which declares its compute, in the lab of ``topology``.

    Args:
        network: in place of the topology's.
        rate_bps: payload rate at full scale, and delay_s: one-way delay, in place of those of all fibers.

    Raises:
        UserError: impossible numbers, or mistakes of the workload, all at once.
    """
    _refuse(rate_bps, delay_s)
    ranks = {site.name: site.nodes for site in topology.sites if site.nodes}
    network = network or Network.of_topology(topology)
    if rate_bps is not None:
        network = network.with_rate(rate_bps / topology.scale)
    if delay_s is not None:
        network = network.with_delay(delay_s)
    return _job(workload, ranks, network, topology.scale, library, tcp)


def job_alike(
    workload: AgentWorkload,
    *,
    sites: int = 2,
    ranks_per_site: int = 1,
    rate_bps: float,
    delay_s: float,
    scale: float = SCALE,
    library: Library = GLOO,
    tcp: Tcp = _NO_LIMITS,
) -> Job:
    """Return the job of ``workload``, which declares its compute, on ``sites`` that have a fiber to each other.

    Args:
        rate_bps: payload rate of a fiber at full scale.
        scale: of the lab whose messages are simulated.

    Raises:
        UserError: impossible numbers, or mistakes of the workload, all at once.
    """
    _refuse(rate_bps, delay_s)
    wrong = [
        f"--{name} must be from 1 to {most}, got {value if abs(value) < 10**12 else 'a number of more digits'}"
        for name, value, most in (("sites", sites, MOST_SITES), ("ranks-per-site", ranks_per_site, MOST_RANKS))
        if not 1 <= value <= most
    ]
    if not LEAST_SCALE <= scale <= MOST_SCALE:
        wrong.append(f"--lab-scale must be from {LEAST_SCALE:g} to {MOST_SCALE:g}, got {scale:g}")
    if wrong:
        raise UserError("; ".join(wrong))
    names = [f"site-{number}" for number in range(1, sites + 1)]
    network = Network.alike(names, rate_bps / scale, delay_s)
    return _job(workload, dict.fromkeys(names, ranks_per_site), network, scale, library, tcp)


def _refuse(rate_bps: float | None, delay_s: float | None) -> None:
    wrong = []
    if rate_bps is not None and not rate_bps > 0:
        wrong.append(f"--rate must be greater than 0, got {rate_bps:g}")
    if delay_s is not None and not 0 <= delay_s < math.inf:
        wrong.append(f"--delay must be 0 or more and finite, got {delay_s:g}")
    if wrong:
        raise UserError("; ".join(wrong))


def _job(
    workload: AgentWorkload, ranks: Mapping[str, int], network: Network, scale: float, library: Library, tcp: Tcp
) -> Job:
    compute = workload.compute
    assert compute is not None
    workload = replace(workload, steps=_ENDLESS)
    message_scale = 1.0
    if compute.model is not None and not twin_class(workload.strategy).asleep:
        # Matrices are split, and those of a smaller model would have other shapes: so bytes are those of full scale.
        workload, network = _with_matrices(workload, compute), network.times(scale)
        scale, message_scale = 1.0, scale
    sites, stands_for = represented(ranks)
    if workload.asleep and workload.elements(scale) < workload.layers:
        raise UserError(f"--model: {workload.refused(scale)}")
    twin = workload_layout.twin_on(workload, sites, scale)
    workload_layout.refuse_mistakes_of(twin, "--strategy")
    steps_s = {site: compute.seconds / compute.speeds.get(site, 1.0) for site in ranks}
    return Job(twin, network, steps_s, stands_for, scale, message_scale, library, tcp)


def _with_matrices(workload: AgentWorkload, compute: DeclaredCompute) -> AgentWorkload:
    """Return ``workload`` with a GPT of about as many parameters: 12 L width^2, heads of 128 as of GPT-3."""
    heads = math.sqrt((compute.model or 0.0) / (12 * workload.layers)) / _HEAD_WIDTH
    heads = _HEADS * max(1, round(heads / _HEADS)) if heads > _HEADS else max(1, round(heads))
    real = DeclaredCompute(compute.seconds, True, speeds=compute.speeds)
    return replace(workload, heads=heads, width=heads * _HEAD_WIDTH, compute=real)
