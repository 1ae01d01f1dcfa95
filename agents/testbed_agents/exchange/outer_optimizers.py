"""Outer optimizers: they apply pseudo-gradients, g = Θ - θ, to a slice of the outer parameters Θ.

Each step is recorded for the checkers, which compute it again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from testbed_agents.checksums import crc32
from testbed_agents.evidence import Delayed, Evidence
from testbed_agents.hooks import Hooks

__all__ = ["DelayedNesterov", "Nesterov"]


class _OuterOptimizer(ABC):
    """``name`` distinguishes the outer optimizers of one rank in records, which go to the evidence of ``hooks``."""

    values: Tensor
    """Θ, (elements,)."""
    momentum: Tensor

    def __init__(self, rate: float, momentum: float, hooks: Hooks, name: str) -> None:
        self._rate, self._beta, self._hooks, self.name = rate, momentum, hooks, name
        self._chain: Evidence | None = None  # in which this optimizer's last step was recorded

    @abstractmethod
    def _update(self, gradient: Tensor) -> None:
        """Apply ``gradient``, (elements,), to Θ."""

    def _tensors(self) -> list[Tensor]:
        """Return Θ, m, and what else a step changes."""
        return [self.values, self.momentum]

    def _details(self, before: list[Tensor]) -> dict[str, Any]:
        """Return further arguments of ``Evidence.outer_step``; ``before``: drawn elements of the tensors."""
        return {}

    def _lines(self, gradient: Tensor) -> list[dict[str, object]]:
        """Apply ``gradient``; return what is to be recorded of it."""
        lines = [self._recorded(gradient) for _ in range(1 + self._hooks.failpoint("applied-twice"))]
        return [line for line in lines if line is not None]

    def _recorded(self, gradient: Tensor) -> dict[str, object] | None:
        evidence = self._hooks.evidence
        if not evidence.recording:
            self._update(gradient)
            return None
        drawn = evidence.outer_positions(self.name, self.values.numel())
        before, before_crc32 = [tensor[drawn] for tensor in self._tensors()], crc32(self._tensors())
        self._update(gradient)
        line = evidence.outer_step(
            self.name,
            before=before[0],
            momentum_before=before[1],
            gradient=gradient,
            after=self.values,
            momentum_after=self.momentum,
            rate=self._rate,
            momentum=self._beta,
            before_crc32=before_crc32,
            restarted=self._chain is not evidence,
            **self._details(before),
        )
        self._chain = evidence
        return line


class Nesterov(_OuterOptimizer):
    """torch's SGD, with Nesterov momentum unless it is 0: m ← momentum m + g; Θ ← Θ - rate (g + momentum m).

    ``values``: Θ, (elements,); changed in place.
    """

    def __init__(self, values: Tensor, rate: float, momentum: float, hooks: Hooks, name: str = "outer") -> None:
        super().__init__(rate, momentum, hooks, name)
        parameter = nn.Parameter(values, requires_grad=True)
        self.values, self._parameter = parameter.data, parameter
        self._optimizer = torch.optim.SGD([parameter], lr=rate, momentum=momentum, nesterov=momentum > 0)
        # SGD makes the buffer in its first step; a checkpoint must be able to fill it before. Zeros are the same.
        self.momentum = torch.zeros_like(values)
        if momentum:
            self._optimizer.state[parameter]["momentum_buffer"] = self.momentum

    def step(self, gradient: Tensor) -> None:
        for line in self._lines(gradient):
            self._hooks.evidence.outer_taken(line)

    def _update(self, gradient: Tensor) -> None:
        self._parameter.grad = gradient
        self._optimizer.step()
        self._parameter.grad = None

    def restart(self, values: Tensor) -> None:
        """Adopt ``values`` and forget the momentum."""
        self._chain = None
        self.values.copy_(values)
        self.momentum.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"values": self.values, "momentum": self.momentum}


class DelayedNesterov(_OuterOptimizer):
    """Nesterov for pseudo-gradients that come one at a time, each pushed by one site (arXiv:2401.09135, Algorithm 3).

    Nesterov momentum on every push would apply the momentum once per site, and amplify whatever is stale. So the
    momentum moves only once in ``delay`` pushes, by their mean, and between those each push is applied as plain descent
    with a share ``activation`` of the momentum::

        Δ ← Δ + g
        every N-th push:  m ← β m + Δ/N;  Θ ← Θ - ε ((1 - cN + c) β m + g/N);  Δ ← 0
        otherwise:        Θ ← Θ - ε (c β m + g/N)

    ε ``rate``, β ``momentum``, N ``delay``, c ``activation`` from 0 to 1/N; ``values``: Θ, (elements,), copied.
    """

    def __init__(
        self, values: Tensor, rate: float, momentum: float, hooks: Hooks, delay: int, activation: float = 0.0
    ) -> None:
        super().__init__(rate, momentum, hooks, "outer")
        self.values = values.clone()
        self.momentum, self.gathered = torch.zeros_like(values), torch.zeros_like(values)
        self.pushes = 0
        self._delay, self._activation = delay, activation

    def step(self, gradient: Tensor) -> list[dict[str, object]]:
        """Apply one push, (elements,), to ``values``, which is another tensor afterwards: old ones may be on a wire.

        Returns what is to be recorded of it (``Evidence.outer_taken``): a server's thread does not write records.
        """
        return self._lines(gradient)

    def _tensors(self) -> list[Tensor]:
        return [self.values, self.momentum, self.gathered]

    def _details(self, before: list[Tensor]) -> dict[str, Any]:
        return {"delayed": Delayed(self.pushes, self._delay, self._activation, before[2], self.gathered)}

    def _update(self, gradient: Tensor) -> None:
        share = gradient / self._delay
        self.gathered += gradient
        self.pushes += 1
        active = self._activation
        if self.pushes % self._delay == 0:
            self.momentum.mul_(self._beta).add_(self.gathered / self._delay)
            self.gathered.zero_()
            active = 1.0 - self._activation * self._delay + self._activation
        if self._hooks.failpoint("wrong-outer"):
            share = share.clone()
            share[: len(share) // 2] = 0
        self.values = self.values - self._rate * (active * self._beta * self.momentum + share)
