"""hierarchical: the mean gradient of all ranks in each step, in two levels, so that each value crosses a fiber once.

Per bucket: reduce-scatter in the site; slice i is exchanged between the ranks i of all sites and added in the order of
sites; all-gather in the site. The three stages work side by side on different buckets, each in a thread and in process
groups of its own, because operations of one group must be begun in the same order on all ranks.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from testbed_agents import background_work
from testbed_agents.exchange.gradients import BUCKETS, Reduce, Reduced, done
from testbed_agents.exchange.sums import Exchange, begin_sum, gather_slices, rank_at, reduce_scatter_into
from testbed_agents.strategies.ddp import Ddp
from testbed_agents.strategies.strategy import Context

__all__ = ["Hierarchical", "TwoLevelMean"]


_Done = TypeVar("_Done")


class TwoLevelMean:
    """The mean of a bucket over all ranks, in two levels. ``reduce`` is the seam of :class:`BucketedGradients`."""

    def __init__(self, context: Context, aggregate_at: str = "") -> None:
        groups = context.groups
        self._world_size = groups.world_size
        self._replicas = groups.replicas("site", "/gradients")
        ranks = self._replicas.across_ranks
        self._aggregator = rank_at(aggregate_at, groups.sites, ranks)
        self._gather = _second(context)
        self._ranks = len(self._replicas.inside_ranks)
        self._equal = len({len(ranks) for ranks in groups.members.values()}) == 1
        self.failures: list[Exception] = []
        """Why buckets have no mean, the first one first."""
        self._stages = [_Stage(f"stage-{number}", self.failures) for number in range(3)]

    def reduce(self, bucket: Tensor) -> Reduced:
        if self._world_size == 1:
            return done(bucket)
        future: Reduced = torch.futures.Future()
        first, second, third = self._stages
        # The second stage only begins an exchange, so several buckets are on the fiber at once: one after the other,
        # each would take its one-way delay. The third stage waits for them in the same order.
        first.add(future, lambda: self._scatter(bucket), lambda mine: second.add(
            future, lambda: self._across(mine), lambda begun: third.add(
                future, lambda: self._whole(bucket, begun.wait()), future.set_result)))  # fmt: skip
        return future

    def _scatter(self, bucket: Tensor) -> Tensor:
        """Return this rank's slice of the site's sum; empty for a rank without a slice."""
        size = -(-bucket.numel() // self._replicas.slices)
        if self._ranks == 1:
            return bucket.clone()
        padded = torch.cat((bucket, bucket.new_zeros(size * self._replicas.slices - bucket.numel())))
        if self._equal:
            mine = bucket.new_empty(size)
            reduce_scatter_into(mine, padded, group=self._replicas.inside)
            return mine
        dist.all_reduce(padded, group=self._replicas.inside)
        index = self._replicas.slice
        return padded[:0] if index is None else padded[index * size : (index + 1) * size].clone()

    def _across(self, mine: Tensor) -> Exchange:
        """Begin to exchange this rank's slice."""
        return begin_sum(mine, self._replicas.across, self._replicas.across_ranks, self._aggregator)

    def _whole(self, bucket: Tensor, total: Tensor) -> Tensor:
        """Put the mean of all slices into the bucket."""
        if self._ranks > 1 and self._replicas.slice is None:
            total = bucket.new_zeros(-(-bucket.numel() // self._replicas.slices))
        return bucket.copy_(gather_slices(total, bucket.numel(), self._gather, self._ranks)).div_(self._world_size)


def _second(context: Context) -> Any:
    """Return a second group of the ranks of the site, for operations beside those of the first."""
    own = None
    for name, ranks in context.groups.members.items():
        made = context.groups.new(ranks, f"site:{name}/gather")
        own = made if name == context.groups.site else own
    return own


class _Stage:
    """A thread that does one thing after the other. Ends with the process."""

    def __init__(self, name: str, failures: list[Exception]) -> None:
        self._failures = failures
        self._waiting: queue.SimpleQueue[tuple[Reduced, Callable[[], Any], Callable[[Any], None]]]
        self._waiting = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, future: Reduced, work: Callable[[], _Done], then: Callable[[_Done], None]) -> None:
        """Do ``work``, then hand its result over; an error is the future's."""
        background_work.begin()
        self._waiting.put((future, work, then))

    def _run(self) -> None:
        while True:
            future, work, then = self._waiting.get()
            try:
                then(work())
            except Exception as error:
                self._failures.append(error)
                future.set_exception(error)  # type: ignore[arg-type]
            finally:
                background_work.end()


class Hierarchical(Ddp):
    """``buckets``: parts of the gradient, each exchanged when it is ready. ``accumulate``: as of ddp.

    ``aggregate_at``: the site that adds the slices of all sites; empty: they exchange with each other.
    """

    def __init__(self, accumulate: int = 1, buckets: int = BUCKETS, aggregate_at: str = "") -> None:
        super().__init__(accumulate, 32, buckets)
        self._aggregate_at = aggregate_at

    def make_reduce(self, context: Context) -> Reduce:
        self._mean = TwoLevelMean(context, self._aggregate_at)
        return self._mean.reduce

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        try:
            return super().run(inputs, targets)
        except RuntimeError:
            if self._mean.failures:  # DDP says that it cannot use the future's value, not why there is none
                raise self._mean.failures[0] from None
            raise
