"""ddp: the mean gradient of all ranks in each step, by torch's DistributedDataParallel.

The baseline of every comparison. ``bits=16`` halves its bytes as torch's bf16_compress_hook does, and ``accumulate``
exchanges after several steps: what a fair comparison gives it too.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from testbed_agents.exchange.gradients import BUCKETS, BucketedGradients, Reduce, Reduced, mean_over, reduce_gradients
from testbed_agents.strategies.strategy import Context, Strategy

__all__ = ["Ddp"]


class Ddp(Strategy):
    """``accumulate``: steps whose gradients are added before one exchange. ``bits``: 32, or 16 for bfloat16."""

    def __init__(self, accumulate: int = 1, bits: int = 32, buckets: int = BUCKETS) -> None:
        self._accumulate, self._bits, self._buckets = accumulate, bits, buckets

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.context = context
        self._reduce = self.make_reduce(context)
        self._gradients = BucketedGradients(model, context, context.groups.world, self._reduce, self._buckets)
        self.module = self._gradients.wrapped
        self._parameters = list(model.parameters())
        # What has been added since the last exchange; a checkpoint may be taken in between.
        self._added = [torch.zeros_like(parameter) for parameter in self._parameters] if self._accumulate > 1 else []
        return self._parameters

    def make_reduce(self, context: Context) -> Reduce:
        """Return how the mean of a bucket over all ranks is taken; a collective call."""
        world, size = context.groups.world, context.groups.world_size
        return mean_over(world, size) if self._bits == 32 else _bfloat16_mean_over(world, size)

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        self._gradients.rehearse(inputs, targets)

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        exchanges = self.updates(self.context.step)
        with contextlib.nullcontext() if exchanges else self._gradients.wrapped.no_sync():
            loss = self.context.loss(self.module(inputs), targets)
            self.context.before_backward(loss.detach())
            (loss / self._accumulate).backward()  # type: ignore[no-untyped-call]
        if not exchanges:
            self.context.gradients_ready()
        return loss.detach()

    def updates(self, step: int) -> bool:
        return step % self._accumulate == 0 or step == self.context.steps

    def finish(self, step: int) -> None:
        """Exchange what has been added so far, if the job was stopped between two exchanges."""
        if not self.updates(step):
            reduce_gradients(self._parameters, lambda flat: self._reduce(flat).wait())

    def settle(self, step: int) -> None:
        for added, parameter in zip(self._added, self._parameters, strict=False):
            added.zero_() if parameter.grad is None else added.copy_(parameter.grad)

    def state(self) -> dict[str, Tensor]:
        return {f"gradient.{index}": added for index, added in enumerate(self._added)}

    def loaded(self) -> None:
        if any(added.any() for added in self._added):
            for added, parameter in zip(self._added, self._parameters, strict=True):
                parameter.grad = added.clone()


def _bfloat16_mean_over(group: object, size: int) -> Reduce:
    """Return the mean of bfloat16 values, as torch.distributed.algorithms.ddp_comm_hooks.default_hooks does."""

    def reduce(bucket: Tensor) -> Reduced:
        small = bucket.to(torch.bfloat16).div_(size)
        if size == 1:
            return mean_over(group, 1)(bucket.copy_(small))

        def widen(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            bucket.copy_(future.value()[0])
            return bucket

        reduced: Reduced = dist.all_reduce(small, group=group, async_op=True).get_future().then(widen)
        return reduced

    return reduce
