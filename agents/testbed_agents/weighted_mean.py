"""The mean over replicas in which each has its share, of what it trained on, and what the checkers are told of it.

Each replica multiplies its own values before the sum; the sum is an operation like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from testbed_agents.evidence import Evidence
from testbed_agents.exchange import begin_sum

__all__ = ["mean_of", "weighted", "weighted_mean"]


def weighted(values: Tensor, ranks: Sequence[int], shares: Sequence[float]) -> Tensor:
    """Return what this rank, one of ``ranks``, adds to the sum: (elements,); ``values`` for equal shares, empty."""
    return values * shares[ranks.index(dist.get_rank())] if shares and ranks else values


def mean_of(
    name: str,
    total: Tensor,
    values: Tensor,
    ranks: Sequence[int],
    shares: Sequence[float],
    evidence: Evidence,
    taken: int | None = None,
) -> Tensor:
    """Return the mean whose sum over ``ranks`` is ``total``; some elements are recorded if it is weighted.

    Args:
        name: of the optimizer that the mean is for.
        evidence: where they are recorded.
        values: of this rank, (elements,), not multiplied.
        taken: the step after which they were taken; None: the one that is running.
    """
    if not shares or not ranks:
        return total / max(1, len(ranks))
    share = shares[ranks.index(dist.get_rank())]
    evidence.weighed(name, own=values, ranks=ranks, share=share, mean=total, taken=taken)
    return total


def weighted_mean(
    name: str, values: Tensor, group: Any, ranks: Sequence[int], shares: Sequence[float], evidence: Evidence
) -> Tensor:
    """Return the mean of ``values``, (elements,), over ``ranks`` of ``group``; ``shares`` in their order, or empty."""
    total = begin_sum(weighted(values, ranks, shares), group, ranks).wait()
    return mean_of(name, total, values, ranks, shares, evidence)
