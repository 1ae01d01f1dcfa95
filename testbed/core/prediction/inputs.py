"""Inputs of a prediction: model, compute, sites, fiber, library and strategy, in SI units.

The symbols are those of docs/prediction.md:

======  ========================================================  =====================================
symbol  meaning                                                   field
======  ========================================================  =====================================
T       compute of a step, s                                      ``step_s``
N, L    parameters and layers                                     ``parameters``, ``layers``
B       *payload* rate of the cut between two sites, bit/s        ``rate_bps`` (:func:`payload_rate_bps`)
d       one-way delay, s                                          ``delay_s``
c       one-way delays that one exchange takes in sequence        ``delays``
w       bits on the fiber per bit of payload, each direction      ``wire_factor``
S       payload of one exchange, bit                              :attr:`Inputs.payload_bits`
H       steps between exchanges                                   ``every``
P, tau  fragments; steps that an exchange may take beside compute ``fragments``, ``overlap``
K, q    buckets of an exchange; operations in flight              ``buckets``, ``in_flight``
o       software time per operation, s                            ``operation_s``
-       outer optimizer step after an exchange, s                 ``outer_step_s``
======  ========================================================  =====================================
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

__all__ = ["DEFAULTS", "MSS_BYTES", "PAYLOAD_SHARE", "Inputs", "Tier", "mistakes", "option", "payload_rate_bps"]

MSS_BYTES: Final = 1448
"""TCP payload of one packet at an MTU of 1500, with timestamps."""
PAYLOAD_SHARE: Final = MSS_BYTES / 1538
"""TCP payload per byte on the wire at an MTU of 1500: 1448 bytes of 1500 + 38 (IEEE 802.3; TCP with timestamps)."""

DEFAULTS: Final[Mapping[str, float]] = {
    "parameters": 10e9,
    "layers": 48,
    "step_s": 0.8,
    "rate_bps": 100e9,
    "delay_s": 200e-6,
}
"""Inputs of ``testbed predict`` and of ``testbed.predict`` where neither the caller nor a topology names them."""


def payload_rate_bps(line_rate_bps: float) -> float:
    """Return the payload rate B of a line rate, both in bit/s: 1448 of 1538 bytes.

    >>> round(payload_rate_bps(800e6) / 1e6, 1)
    753.2
    """
    return PAYLOAD_SHARE * line_rate_bps


@dataclass(frozen=True)
class Tier:
    """One tier of training in tiers: an exchange every ``every`` steps over its own payload rate and one-way delay."""

    every: int
    rate_bps: float
    delay_s: float


@dataclass(frozen=True)
class Inputs:
    """What a prediction is made from. Check it with :func:`mistakes` first.

    Attributes:
        step_s: compute of a step without exchanges; the forward pass takes a third of it (2 N of 6 N operations).
        parameters: of the whole model.
        layers: of equal size and time.
        rate_bps: payload rate of the cut, each direction, in bit/s; ``math.inf`` is allowed.
        delay_s: one-way delay in seconds.
        sites, ranks_per_site: replicas, and accelerators of each.
        bits: per exchanged value.
        payload_factor: payload sent per payload declared; 1 unless fitted to a publication.
        site_rate_bps: payload rate of each node inside its site while all of its nodes send, in bit/s; infinite for a
            fabric without a limit.
        wire_factor, delays: w and c of the collective; None takes those of the strategy's pattern.
        operation_s: software time per operation.
        buckets: operations of one exchange; None for one per layer.
        in_flight: operations that the library runs at once; None for any number.
        every, fragments, overlap: H, P, tau.
        accumulate: steps of gradient accumulation between two exchanges of a synchronous job.
        overlap_last_backward: begin an exchange layer by layer during the backward pass before it, as the simulators
            of papers do; False: after that backward pass, as real implementations do. Synchronous training always
            overlaps.
        outer_step_s: outer optimizer step of the whole model after an exchange; fragments take their share of it.
        staleness: rounds that may be on their way when a site begins its next; asynchronous training only. A site
            waits for the rounds of all sites before those, so it is at most as many rounds ahead of the slowest.
        quorum, grace_s: learners that a merge waits for, and the wait for others after that.
        tiers: from near to far, of training in tiers only.
        micro_batches, stages, activation_bits: of a pipeline; activations of one micro-batch at a stage boundary.
        expert_layers, token_bits: of a mixture of experts: layers with experts, and bits that a rank sends per layer.
        fibers_m: lengths of the fibers that all sites together send over, for energy by class of path; empty for one
            fiber of the delay's length per site.
        slowdowns: compute time of each site, relative to ``step_s``; empty for equal sites.
    """

    step_s: float
    parameters: float
    layers: int
    rate_bps: float
    delay_s: float = 0.0
    sites: int = 2
    ranks_per_site: int = 1
    bits: float = 16.0
    payload_factor: float = 1.0
    wire_factor: float | None = None
    delays: float | None = None
    operation_s: float = 0.0
    buckets: int | None = None
    in_flight: int | None = None
    every: int = 1
    fragments: int = 1
    overlap: int = 0
    accumulate: int = 1
    overlap_last_backward: bool = False
    outer_step_s: float = 0.0
    staleness: int = 1
    quorum: int | None = None
    grace_s: float = 0.0
    tiers: tuple[Tier, ...] = ()
    micro_batches: int = 8
    stages: int = 2
    activation_bits: float = 0.0
    expert_layers: int = 0
    token_bits: float = 0.0
    slowdowns: tuple[float, ...] = ()
    fibers_m: tuple[float, ...] = ()
    site_rate_bps: float = math.inf

    @property
    def payload_bits(self) -> float:
        """S: values of the model x bits, times the declared payload factor."""
        return self.parameters * self.bits * self.payload_factor

    @property
    def ranks(self) -> int:
        return self.sites * self.ranks_per_site

    @property
    def bucket_count(self) -> int:
        """K: declared, or one per layer."""
        return self.layers if self.buckets is None else self.buckets

    @property
    def fastest_s(self) -> float:
        """Compute of a step at the fastest site, in seconds: the site that a prediction is about."""
        return self.step_s * min(self.slowdowns, default=1.0)

    @property
    def slowest_s(self) -> float:
        """Compute of a step at the slowest site, in seconds."""
        return self.step_s * max(self.slowdowns, default=1.0)

    def but(self, **changes: Any) -> Inputs:
        """Return these inputs with ``changes``."""
        return replace(self, **changes)


MOST_LAYERS: Final = 10_000
"""Above that a prediction would take seconds; models have hundreds."""
MOST: Final = 10**12
"""Of any other number that counts something."""
MOST_REAL: Final = 1e30
"""Of a number that measures something: products of several must not overflow."""


def mistakes(inputs: Inputs) -> tuple[str, ...]:
    """Return every impossible value: the option by name, what was expected, what was found."""
    return tuple(_mistakes(inputs))


def _mistakes(it: Inputs) -> Iterator[str]:
    for name, low in (
        ("layers", 1), ("sites", 1), ("ranks_per_site", 1), ("every", 1), ("fragments", 1), ("overlap", 0),
        ("accumulate", 1), ("staleness", 0), ("micro_batches", 1), ("stages", 1), ("expert_layers", 0),
    ):  # fmt: skip
        yield from _outside(it, name, low)
    for name in ("buckets", "in_flight", "quorum"):
        if getattr(it, name) is not None:
            yield from _outside(it, name, 1)
    for name in ("step_s", "parameters", "rate_bps", "bits", "payload_factor", "site_rate_bps"):
        if not getattr(it, name) > 0:  # also NaN
            yield f"{option(name)} must be greater than 0, got {getattr(it, name):g}"
    for name in (
        "step_s", "parameters", "bits", "payload_factor", "delay_s", "operation_s", "outer_step_s", "grace_s",
        "activation_bits", "token_bits", "wire_factor", "delays",
    ):  # fmt: skip
        if not math.isfinite(value := getattr(it, name) or 0.0):
            yield f"{option(name)} must be finite, got {value:g}"
        elif value > MOST_REAL:
            yield f"{option(name)} must be at most {MOST_REAL:g}, got {value:g}"
    for name in ("delay_s", "operation_s", "outer_step_s", "grace_s", "activation_bits", "token_bits"):
        if getattr(it, name) < 0:
            yield f"{option(name)} must be 0 or more, got {getattr(it, name):g}"
    for name in ("wire_factor", "delays"):
        if getattr(it, name) is not None and not getattr(it, name) >= 0:
            yield f"{option(name)} must be 0 or more, got {getattr(it, name):g}"
    if it.overlap >= it.every > 0 and it.overlap:
        yield f"--overlap must be less than --every ({it.every}), got {it.overlap}"
    if it.fragments > it.layers >= 1:
        yield f"--fragments must be at most the number of layers ({it.layers}), got {it.fragments}"
    if it.buckets is not None and it.buckets > it.layers >= 1:
        yield f"--buckets must be at most the number of layers ({it.layers}), got {it.buckets}"
    if it.expert_layers > it.layers >= 1:
        yield f"--expert-layers must be at most the number of layers ({it.layers}), got {it.expert_layers}"
    if it.quorum is not None and it.quorum > it.sites:
        yield f"--quorum must be at most the number of sites ({it.sites}), got {it.quorum}"
    if it.slowdowns and len(it.slowdowns) != it.sites:
        yield f"--slow must name each of {it.sites} sites, got {len(it.slowdowns)} values"
    for near, far in itertools.pairwise(it.tiers):
        if near.every >= far.every:
            yield f"--tier must be given from near to far with growing steps, got {near.every} before {far.every}"
    for tier in it.tiers:
        if tier.every < 1 or not tier.rate_bps > 0 or not 0 <= tier.delay_s < math.inf:
            yield f"--tier must have 1 step or more, a rate greater than 0 and a delay, got {tier}"
    if any(not 0 < slow < math.inf for slow in it.slowdowns):
        yield "--slow must be greater than 0 and finite for each site"


def _outside(it: Inputs, name: str, low: int) -> Iterator[str]:
    value, high = getattr(it, name), MOST_LAYERS if name == "layers" else MOST
    if value < low:
        yield f"{option(name)} must be {low} or more, got {value}"
    elif value > high:
        yield f"{option(name)} must be at most {high}, got a greater number"


def option(name: str) -> str:
    """Return the option of the command line that sets the field ``name``."""
    for unit in ("_bps", "_s"):
        name = name.removesuffix(unit)
    names = {"step": "step-time", "tiers": "tier", "slowdowns": "slow"}
    return "--" + names.get(name, name).replace("_", "-")
