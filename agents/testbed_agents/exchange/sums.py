"""The sum or mean of a tensor over the replicas, equal bit for bit on all of them.

Two replicas send their tensors to each other directly: one one-way delay, and each adds both in the order of replicas.
More replicas use gloo's all-reduce: a ring moves 2 (S - 1) / S of the tensor over each hop where sending all to all
would move S - 1 times as much; each chunk is added at one rank and then copied, so all ranks have the same bits.

Or one of them, the *aggregator*, adds: all send to it, and it sends back the sum. Each fiber of a star with that site
in the middle carries the tensor once each way, where hops of a ring between two outer sites cross two fibers. Two
one-way delays follow one another, where a ring has 2 (S - 1).

Codes are gathered: an all-reduce would have to add codes, and round again at each hop. All replicas decode the same
bytes and add them as float32 in the order of replicas, each its own decoded value too.

In a weighted mean each replica multiplies its own values by its share before the sum.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from testbed_agents import background_work, watched
from testbed_agents.evidence import Evidence
from testbed_agents.exchange.codec import Codec
from testbed_agents.groups import Replicas

__all__ = [
    "CodedExchange",
    "Exchange",
    "begin_sum",
    "gather_into",
    "gather_slices",
    "mean_of",
    "rank_at",
    "reduce_scatter_into",
    "weighted",
    "weighted_mean",
]

# torch 2.13 renamed both, and warns about the former names.
gather_into = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_into = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Exchange:
    """A sum that is on its way. ``wait`` returns it; call it once."""

    def __init__(self, works: Sequence[Any], parts: Sequence[Tensor], group: Any = None) -> None:
        self._works, self._parts, self._group = works, parts, group

    def wait(self) -> Tensor:
        """Return the sum, (elements,), in the order of replicas. Raises RuntimeError if a peer is gone."""
        for work in self._works:
            work.wait()
        total = self._parts[0]
        for part in self._parts[1:]:
            total = total + part
        if len(self._parts) > 1:
            watched.added(self._group, self._parts, total)
        return total


class _SumOfAggregator(Exchange):
    """A sum that another rank makes. Recorded without its parts, so that checkers can compare its bits."""

    def wait(self) -> Tensor:
        total = super().wait()
        watched.added(self._group, (), total)
        return total


class _SumAtAggregator(Exchange):
    """A sum at its aggregator: a thread adds and sends back, so that others do not wait for this rank's ``wait``."""

    _latest: ClassVar[weakref.WeakKeyDictionary[Any, threading.Thread]] = weakref.WeakKeyDictionary()
    """The thread of the latest sum of each group at this rank."""

    def __init__(self, tensor: Tensor, group: Any, ranks: Sequence[int], aggregator: int) -> None:
        parts = [tensor if rank == aggregator else torch.empty_like(tensor) for rank in ranks]
        peers = [(rank, part) for rank, part in zip(ranks, parts, strict=True) if rank != aggregator]
        receives: list[Any] = [dist.irecv(part, rank, group) for rank, part in peers]
        super().__init__((), parts, group)
        self._receives, self._peers = receives, [rank for rank, _ in peers]
        self._error: BaseException | None = None
        self._total: Tensor | None = None
        self._previous = self._latest.get(group)
        background_work.begin()
        self._thread = self._latest[group] = threading.Thread(target=self._add, name="aggregator", daemon=True)
        self._thread.start()

    def _add(self) -> None:
        try:
            for work in self._receives:
                work.wait()
            if self._previous is not None:
                self._previous.join()
            total = super().wait()
            sends: list[Any] = [dist.isend(total, rank, self._group) for rank in self._peers]
            for work in sends:
                work.wait()
            self._total = total
        except BaseException as error:
            self._error = error
        finally:
            background_work.end()

    def wait(self) -> Tensor:
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._total is not None
        return self._total


class CodedExchange(Exchange):
    """Codes of ``values``, (elements,), on their way to the other replicas, and theirs to this one.

    A rank without a slice (``replicas.slice``) exchanges nothing. ``shares``: of the replicas; empty for equal ones.
    """

    decoded: Sequence[Tensor] = ()
    """The values of each replica, in order, once ``wait`` has returned."""

    def __init__(
        self,
        values: Tensor,
        codec: Codec,
        replicas: Replicas,
        shares: Sequence[float] = (),
        generator: torch.Generator | None = None,
    ) -> None:
        self._codec, self._elements = codec, values.numel()
        self._shares = shares if replicas.across_ranks else ()
        code = codec.encode(values, generator)
        # What is gathered comes in the order of torch, which sorts the ranks of a group; replicas have their own.
        self._places = [sorted(replicas.across_ranks).index(rank) for rank in replicas.across_ranks] or [0]
        self._size, self._codes = code.numel(), code
        works = []
        if len(self._places) > 1:
            self._codes = code.new_empty(self._size * len(self._places))
            works = [gather_into(self._codes, code, group=replicas.across, async_op=True)]
        super().__init__(works, ())

    def wait(self) -> Tensor:
        """Return the float32 sum of decoded values in their order; of share times value where there are shares."""
        for work in self._works:
            work.wait()
        codes = torch.split(self._codes, self._size)
        self.decoded = [self._codec.decode(codes[place], self._elements) for place in self._places]
        parts = self.decoded
        if self._shares:
            parts = [part * share for part, share in zip(parts, self._shares, strict=True)]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total


def rank_at(site: str, sites: Sequence[str], ranks: Sequence[int]) -> int | None:
    """Return the first of ``ranks`` that is at ``site``; None for no site, and for no ranks: a rank without a slice
    takes no part between sites. Raises ValueError if none of them is there.

    ``sites``: of all ranks, in rank order.
    """
    if not site or not ranks:
        return None
    at_site = [rank for rank in ranks if sites[rank] == site]
    if not at_site:
        names = ", ".join(sites[rank] for rank in ranks)
        raise ValueError(f"expected aggregate_at to name a site of {names}, got {site}")
    return at_site[0]


def begin_sum(tensor: Tensor, group: Any, ranks: Sequence[int], aggregator: int | None = None) -> Exchange:
    """Begin to sum ``tensor``, (elements,), over ``ranks`` of ``group``; it must not change until then.

    The sum at an ``aggregator``, one of ``ranks``, or among all of them. A rank of no group, with no ``ranks``, has its
    own tensor as the sum. Sums of one group are made in the order in which they begin.
    """
    if len(ranks) < 2:
        return Exchange((), (tensor,))
    own_rank = dist.get_rank()
    if own_rank == aggregator:
        return _SumAtAggregator(tensor, group, ranks, aggregator)
    if aggregator is None and len(ranks) > 2:
        total = tensor.clone()
        return Exchange((dist.all_reduce(total, group=group, async_op=True),), (total,))
    received = torch.empty_like(tensor)
    first = ranks[0] == own_rank
    peer = aggregator if aggregator is not None else ranks[1] if first else ranks[0]
    # gloo sends nothing before the receiver has announced the receipt: first, or that would come behind its own data.
    works = [dist.irecv(received, peer, group), dist.isend(tensor, peer, group)]
    if aggregator is not None:
        return _SumOfAggregator(works, (received,), group)
    return Exchange(works, (tensor, received) if first else (received, tensor), group)


def gather_slices(values: Tensor, size: int, group: Any, ranks: int) -> Tensor:
    """Return the first ``size`` elements of the slices of all ``ranks`` of ``group``, one after the other."""
    if ranks == 1:
        return values[:size]
    whole = values.new_empty(ranks * values.numel())
    gather_into(whole, values.contiguous(), group=group)
    return whole[:size]


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
