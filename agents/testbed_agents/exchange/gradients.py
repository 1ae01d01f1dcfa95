# No `from __future__ import annotations` here: DDP compares the annotations of a hook with the types themselves.
"""Mean gradients: in buckets beside the backward pass, or all at once after it.

In buckets they are torch's DistributedDataParallel with a hook, which decides how a bucket is reduced. ``mean_over`` is
the plain all-reduce.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from testbed_agents.model import local
from testbed_agents.strategies.strategy import Context
from testbed_agents.watched import WatchedGroup

Reduced = torch.futures.Future[Tensor]
Reduce = Callable[[Tensor], Reduced]
"""Begins to reduce a bucket, (elements,); the future has its mean, of the same size."""

LEAST_BUCKET_BYTES = 100_000
"""Below that, the cost of an operation outweighs its overlap (239 ms against 202 ms a step at a delay of 5 ms)."""
BUCKETS = 8
FULL_ENOUGH = 0.99
"""DDP closes a bucket that has reached its size, and equal tensors differ by an element."""
_NO_SYNC: dict[str, Any] = (
    {"init_sync": False} if "init_sync" in inspect.signature(DistributedDataParallel).parameters else {}
)


class BucketedGradients:
    """Reduces the gradients of a module bucket by bucket. ``wrapped`` is what forward is called on.

    ``reduce`` may be replaced between steps.
    """

    def __init__(
        self, module: nn.Module, context: Context, group: object, reduce: Reduce, buckets: int = BUCKETS
    ) -> None:
        self._context = context
        self.reduce, self._local = reduce, False
        payload = sum(
            parameter.numel() * parameter.element_size() for parameter in module.parameters() if parameter.requires_grad
        )
        # A declared model is cut as often as at full scale, so that as many delays follow one another as there.
        least = 0 if getattr(module, "declared", False) else min(payload, LEAST_BUCKET_BYTES)
        size_mib = max(FULL_ENOUGH * payload / buckets, least) / 2**20
        with context.groups.hooks.unobserved():  # torch 2.4 broadcasts the parameters, which are equal already
            self.wrapped = DistributedDataParallel(module, process_group=group, bucket_cap_mb=size_mib, **_NO_SYNC)
        self.wrapped.register_comm_hook(self, BucketedGradients._hook)

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        """Run one pass whose gradients stay where they are, before a checkpoint is loaded.

        After its first pass DDP rebuilds its buckets in the order in which gradients became ready. Other buckets are
        summed in another order and rounded differently: a resumed job would not end with the same parameters.
        """
        self._local = True
        self._context.loss(self.wrapped(inputs), targets).backward()  # type: ignore[no-untyped-call]
        self._local = False
        self.wrapped.zero_grad()

    def _hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        if bucket.is_last():
            self._context.gradients_ready()
        return done(bucket.buffer()) if self._local else self.reduce(bucket.buffer())


def done(value: Tensor) -> Reduced:
    """Return a future that has its value already."""
    future: Reduced = torch.futures.Future()
    future.set_result(value)
    return future


def mean_over(group: object, size: int) -> Reduce:
    """Return the plain mean over the ``size`` ranks of ``group``, divided before the sum as DDP does."""

    def reduce(bucket: Tensor) -> Reduced:
        if size == 1:
            return done(bucket)
        divided = bucket.div_(size)
        if isinstance(group, WatchedGroup):
            return group.all_reduce_of(divided)
        work = dist.all_reduce(divided, group=group, async_op=True)
        reduced: Reduced = work.get_future().then(lambda future: future.value()[0])
        return reduced

    return reduce


def reduce_gradients(parameters: Sequence[nn.Parameter], reduce: Callable[[Tensor], Tensor]) -> None:
    """Replace the gradients, or this rank's shards of them, by ``reduce`` of all of them as one vector."""
    gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    begin = 0
    for gradient in gradients:
        gradient.copy_(flat[begin : begin + gradient.numel()].view_as(gradient))
        begin += gradient.numel()
