"""The sum over replicas at one of them: all send to it, it adds in the order of replicas, and sends back the sum.

Each fiber of a star with that site in the middle carries the tensor once each way, where a ring moves 2 (S - 1) / S of
it over each hop, and hops between two outer sites cross two fibers. Two one-way delays follow one another, where a ring
has 2 (S - 1). All have the same bits, because one adds and the others copy.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from testbed_agents import background_work, watched
from testbed_agents.exchange import Exchange

__all__ = ["begin_sum_at", "rank_at"]


def rank_at(site: str, sites: Sequence[str], ranks: Sequence[int]) -> int | None:
    """Return the first of ``ranks`` that is at ``site``; None for no site, and for no ranks: a rank without a slice
    takes no part between sites. Raises ValueError if none of them is there.

    ``sites``: of all ranks, in rank order.
    """
    if not site or not ranks:
        return None
    found = [rank for rank in ranks if sites[rank] == site]
    if not found:
        raise ValueError(f"expected aggregate_at to name a site of {', '.join(sites[r] for r in ranks)}, got {site}")
    return found[0]


def begin_sum_at(tensor: Tensor, group: Any, ranks: Sequence[int], at: int) -> Exchange:
    """Begin to sum ``tensor``, (elements,), over ``ranks`` at the rank ``at``; it must not change until then.

    Sums of one group are made in the order in which they begin.
    """
    if len(ranks) == 1:
        return Exchange((), (tensor,))
    mine = dist.get_rank()
    if mine == at:
        return _Aggregated(tensor, group, ranks, at)
    total = torch.empty_like(tensor)
    return _Copied((dist.irecv(total, at, group), dist.isend(tensor, at, group)), (total,), group)


_LAST: weakref.WeakKeyDictionary[Any, threading.Thread] = weakref.WeakKeyDictionary()
"""The thread of the latest sum of each group at this rank."""


class _Copied(Exchange):
    """A sum that another rank makes. Recorded without its parts, so that checkers can compare its bits."""

    def wait(self) -> Tensor:
        total = super().wait()
        watched.added(self._group, (), total)
        return total


class _Aggregated(Exchange):
    """A sum at its aggregator: a thread adds and sends back, so that others do not wait for this rank's ``wait``."""

    def __init__(self, tensor: Tensor, group: Any, ranks: Sequence[int], at: int) -> None:
        parts = [tensor if rank == at else torch.empty_like(tensor) for rank in ranks]
        others = [rank for rank in ranks if rank != at]
        coming: list[Any] = [
            dist.irecv(part, rank, group) for rank, part in zip(ranks, parts, strict=True) if rank != at
        ]
        super().__init__((), parts, group)
        self._error: BaseException | None = None
        self._total: Tensor | None = None
        before = _LAST.get(group)

        def add() -> None:
            try:
                for work in coming:
                    work.wait()
                if before is not None:
                    before.join()
                total = super(_Aggregated, self).wait()
                going: list[Any] = [dist.isend(total, rank, group) for rank in others]
                for work in going:
                    work.wait()
                self._total = total
            except BaseException as error:
                self._error = error
            finally:
                background_work.end()

        background_work.begin()
        self._thread = _LAST[group] = threading.Thread(target=add, name="aggregator", daemon=True)
        self._thread.start()

    def wait(self) -> Tensor:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._total is not None
        return self._total
