"""Deliberately wrong training, for tests: shows that each checker finds its fault.

The environment variable ``TESTBED_BREAK`` names one fault, ``KIND:rank=R,step=N``, which occurs once, in the first
attempt:

* ``wrong-sum``: rank R flips the lowest bit of one element of the sum; the other ranks have the correct sum.
* ``lost-input``: half of rank R's input is replaced by zeros; all ranks have the same, wrong sum.
* ``stale``: rank R trains step N, and continues, from the parameters of two steps before.
* ``lost-update``: the optimizer of rank R skips step N; without ``rank=``, that of every rank.
* ``hang``: rank R sleeps an hour, or ``seconds=``, before it enters any collective of step N.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from testbed_agents.bucketed_gradients import BucketedGradients, Reduced
from testbed_agents.strategies import Strategy

VARIABLE = "TESTBED_BREAK"
KINDS = ("wrong-sum", "lost-input", "stale", "lost-update", "hang")
AN_HOUR_S = 3600.0


@dataclass(frozen=True)
class Fault:
    """A fault of one rank; ``rank`` None: of every rank."""

    kind: str
    rank: int | None
    step: int
    seconds: float

    @classmethod
    def parse(cls, written: str) -> Fault:
        """Parse ``KIND:rank=R,step=N``. Raises ValueError."""
        kind, _, rest = written.partition(":")
        fields = dict(part.partition("=")[::2] for part in rest.split(","))
        if kind not in KINDS or not fields.keys() <= {"rank", "step", "seconds"} or "step" not in fields:
            raise ValueError(f"{VARIABLE}: expected KIND:rank=R,step=N (kinds: {', '.join(KINDS)}), got {written!r}")
        rank = int(fields["rank"]) if "rank" in fields else None
        return cls(kind, rank, int(fields["step"]), float(fields.get("seconds", 0)))


def install(strategy: Strategy, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, done_steps: int) -> None:
    """Install the fault of TESTBED_BREAK; nothing if it is not set, or names another rank."""
    written = os.environ.get(VARIABLE)
    fault = Fault.parse(written) if written else None
    if fault is not None and fault.rank in (None, rank):
        print(f"broken on purpose: {written}", flush=True)
        _Broken(fault, getattr(strategy, "_gradients", None), model, optimizer, done_steps)


class _Broken:
    def __init__(
        self,
        fault: Fault,
        gradients: BucketedGradients | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        done_steps: int,
    ) -> None:
        self._fault, self._model = fault, model
        self._step, self._sequence = done_steps + 1, 0
        self._before: deque[list[Tensor]] = deque(maxlen=2)
        self._right_step = optimizer.step
        model.register_forward_pre_hook(self._before_forward)
        optimizer.step = self._update  # type: ignore[method-assign]
        if gradients is not None:
            self._right_reduce, gradients.reduce = gradients.reduce, self._reduce

    def _now(self, kind: str) -> bool:
        return self._fault.kind == kind and self._step == self._fault.step

    def _before_forward(self, *_: Any) -> None:
        if self._now("hang"):
            time.sleep(self._fault.seconds or AN_HOUR_S)

    def _reduce(self, tensor: Tensor) -> Reduced:
        self._sequence += 1
        if self._sequence > 1:
            return self._right_reduce(tensor)
        if self._now("lost-input"):
            tensor[: tensor.numel() // 2] = 0.0
        reduced = self._right_reduce(tensor)
        return reduced.then(_flipped) if self._now("wrong-sum") else reduced

    def _update(self, *args: Any, **kwargs: Any) -> Any:
        self._before.append([each.detach().clone() for each in self._model.parameters()])
        if not self._now("lost-update"):
            self._right_step(*args, **kwargs)
        self._step, self._sequence = self._step + 1, 0
        if self._now("stale"):
            with torch.no_grad():
                for parameter, old in zip(self._model.parameters(), self._before[0], strict=True):
                    parameter.copy_(old)


def _flipped(reduced: Reduced) -> Tensor:
    mean = reduced.value()
    mean.view(torch.int32)[0] ^= 1
    return mean
