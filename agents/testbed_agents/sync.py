# No `from __future__ import annotations` here: DDP compares the annotations of a hook with the types themselves.
"""Gradient synchronisation that also exchanges when each rank was ready, without an extra round trip.

``TimedAllReduce`` is a DDP communication hook. It averages each bucket of gradients over all ranks, as DDP itself does
(torch.distributed.algorithms.ddp_comm_hooks.default_hooks.allreduce_hook). Before the sum it appends a few numbers to
the *last* bucket of a step. So every rank learns, together with the gradients:

* when each rank was ready, as two floats per rank (whole seconds since the job's origin, and the fraction). All ranks
  but one contribute zero, so the sum is exact; one float32 could not resolve milliseconds after some hours;
* the mean train_loss;
* whether any rank was asked to stop, or to save its state and stop, so that all do so after the same step.

This adds 8 bytes per rank plus 8 to the last all-reduce of a step: 40 bytes in about 2 MB for 4 ranks.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from testbed_agents.check_log import Checks

Summed = torch.futures.Future[list[torch.Tensor]]


def all_reduce(tensor: torch.Tensor) -> Summed:
    """Start to sum ``tensor`` over all ranks, in place."""
    # Assigned to a typed name, because get_future() is untyped in torch before 2.15.
    summed: Summed = dist.all_reduce(tensor, async_op=True).get_future()
    return summed


@dataclass(frozen=True)
class Synchronised:
    """Result of a step's synchronisation.

    Attributes:
        ready_t: when this rank's last bucket was ready (CLOCK_MONOTONIC, seconds).
        lag_s: how much later the slowest rank was ready; never negative.
        train_loss: mean over ranks.
        stop: end after this step.
        save: end after this step, with a checkpoint.
    """

    ready_t: float
    lag_s: float
    train_loss: float
    stop: bool
    save: bool


class TimedAllReduce:
    """State and communication hook in one: ``ddp.register_comm_hook(state, TimedAllReduce.hook)``.

    Call ``begin`` before and ``end`` after each backward pass. ``origin_t`` is the same moment on all ranks.
    ``observe`` is called with the duration of each collective, from a thread of gloo. ``checks``, once set, records
    each collective. ``reduce`` computes the sum; tests replace it by a wrong one.
    """

    def __init__(self, rank: int, world_size: int, origin_t: float, observe: Callable[[float], None]) -> None:
        self._rank, self._world_size = rank, world_size
        self._origin_t, self._observe = origin_t, observe
        self.checks: Checks | None = None
        self.reduce: Callable[[torch.Tensor], Summed] = all_reduce
        self._train_loss, self._asked = 0.0, 0
        self._ready_t = 0.0
        self._notes = torch.zeros(0)
        self.rehearsing = False
        """While set, nothing is reduced: gradients do not leave the rank."""

    def begin(self, train_loss: float, stop: bool, save: bool) -> None:
        # Two counts in one number: a request to save weighs more than requests to stop of all ranks together. Exact in
        # float32 for thousands of ranks.
        self._train_loss, self._asked = train_loss, stop + save * (self._world_size + 1)

    def hook(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        if self.rehearsing:
            unchanged: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            unchanged.set_result(bucket.buffer())
            return unchanged
        began = time.monotonic()
        gradients = bucket.buffer().div_(self._world_size)
        size = gradients.numel()
        if last := bucket.is_last():
            self._ready_t = began
            gradients = torch.cat((gradients, self._write_notes()))

        checks = self.checks
        checked = checks.entered(gradients) if checks else None

        def done(future: Summed) -> torch.Tensor:
            summed = future.value()[0]  # raises the collective's exception
            self._observe(time.monotonic() - began)
            if checks and checked:
                checks.left(checked, summed)
            if last:
                self._notes = summed[size:].clone()
            return summed[:size]

        return self.reduce(gradients).then(done)

    def end(self) -> Synchronised:
        """Read the numbers that came with the last bucket of the finished backward pass."""
        whole, rest = self._notes[: 2 * self._world_size].double().view(2, -1)
        ready = whole + rest
        train_loss, asked = self._notes[2 * self._world_size :].tolist()
        saving, stopping = divmod(round(asked), self._world_size + 1)
        return Synchronised(
            ready_t=self._ready_t,
            lag_s=float(ready.max() - ready[self._rank]),
            train_loss=train_loss / self._world_size,
            stop=stopping > 0,
            save=saving > 0,
        )

    def _write_notes(self) -> torch.Tensor:
        rest, whole = math.modf(self._ready_t - self._origin_t)
        notes = torch.zeros(2 * self._world_size + 2)
        notes[self._rank] = whole
        notes[self._world_size + self._rank] = rest
        notes[-2] = self._train_loss
        notes[-1] = float(self._asked)
        return notes
