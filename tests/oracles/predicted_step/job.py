"""What is predicted, and the rules of the page that a test may break on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Lane = tuple[int, int]
"""A direction of a fiber: from one site to the next."""


def ring_share(ranks: int) -> float:
    """Return the share of an operation that each rank of a ring sends in one turn."""
    return (ranks - 1) / ranks


@dataclass(frozen=True)
class Rules:
    """Rules of bytes, gates, slots and directions, as the page has them by default."""

    # Bytes
    reduced_share: Callable[[int], float] = lambda ranks: 2 * ring_share(ranks)
    gathered_share: Callable[[int], float] = ring_share
    scale_bytes: int = 4
    """Of each 256 values at 8 and 4 bits, and of a block of sparse-loco."""
    token_values: int = 1
    """Times the width of the model, of an activation."""
    # Gates
    starts_with_last_site: bool = True
    stages_follow: bool = True
    """A part begins a stage when it has ended the stage before."""
    landing_delay: int = 0
    """Steps that a fragment lands after its own step."""
    waits_for_all_answers: bool = True
    unanswered_more: int = 0
    unmerged_pushes: int = 4
    merges_at_quorum: bool = True
    """Else a merge begins when all sites have delivered."""
    in_flight_more: int = 0
    blocks: bool = True
    """Whether sites wait for the blocking exchanges of an outer loop, or go on with the next step."""
    # Slots
    collective_slots: int = 2
    site_slots: int = 1
    """Of stages inside the sites of hierarchical."""
    messages_take_slots: bool = False
    interleaves: bool = True
    """Whether two collectives that wait most of the time share a lane."""
    # Directions
    ring_turn: int = -1
    """Ranks send their parts of an all_reduce to the rank before them."""
    gather_turn: int = 1
    backward_turn: int = -1
    """A stage sends gradients to the stage before it."""
    merges_return: bool = True
    """Whether the home site sends answers and merges, or receives them."""


@dataclass(frozen=True)
class Fiber:
    """Payload rate of each direction at full scale, and one-way delay."""

    rate_bps: float
    delay_s: float


@dataclass(frozen=True)
class Job:
    """What is predicted. Sites are numbered from 0, also in options that name a site.

    Attributes:
        fibers: by pairs of sites (first, second), first < second.
        parameters: at full scale.
        speeds: of each site; empty: all are alike.
    """

    strategy: str
    options: Mapping[str, Any]
    ranks: Sequence[int]
    fibers: Mapping[tuple[int, int], Fiber]
    compute_s: float
    parameters: float
    layers: int
    scale: float
    speeds: Sequence[float] = ()


@dataclass(frozen=True)
class Step:
    """A mean step of the fastest site in steady cycles.

    Attributes:
        bits: on each lane, at full scale.
        steady: whether cycles repeat.
    """

    step_s: float
    bits: Mapping[Lane, float]
    steady: bool
