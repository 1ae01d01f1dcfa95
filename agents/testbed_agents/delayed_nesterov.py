"""Delayed Nesterov: an outer optimizer whose pseudo-gradients come one at a time, each from one site.

Nesterov momentum on every push would apply the momentum once per site, and amplify whatever is stale. So the momentum
moves only once in ``delay`` pushes, by their mean, and between those each push is applied as plain descent with a share
``activation`` of the momentum (Liu et al. 2024, arXiv:2401.09135, Algorithm 3)::

    Δ ← Δ + g
    every N-th push:  m ← β m + Δ/N;  Θ ← Θ - ε ((1 - cN + c) β m + g/N);  Δ ← 0
    otherwise:        Θ ← Θ - ε (c β m + g/N)
"""

from __future__ import annotations

import torch
from torch import Tensor

from testbed_agents.checksums import crc32
from testbed_agents.evidence import Delayed, Evidence
from testbed_agents.hooks import Hooks

__all__ = ["DelayedNesterov"]


class DelayedNesterov:
    """ε ``rate``, β ``momentum``, N ``delay``, c ``activation`` from 0 to 1/N; ``values``: Θ, (elements,), copied."""

    def __init__(
        self, values: Tensor, rate: float, momentum: float, hooks: Hooks, delay: int, activation: float = 0.0
    ) -> None:
        self.values = values.clone()
        self.momentum, self.gathered = torch.zeros_like(values), torch.zeros_like(values)
        self.pushes = 0
        self._rate, self._beta, self._delay, self._activation = rate, momentum, delay, activation
        self._hooks = hooks
        self._chain: Evidence | None = None  # in which the last step was recorded

    def step(self, gradient: Tensor) -> list[dict[str, object]]:
        """Apply one push, (elements,), to ``values``, which is another tensor afterwards: old ones may be on a wire.

        Returns what is to be recorded of it (``Evidence.outer_taken``): a server's thread does not write records.
        """
        return [line for _ in range(1 + self._hooks.failpoint("applied-twice")) for line in self._step(gradient)]

    def _step(self, gradient: Tensor) -> list[dict[str, object]]:
        checks = self._hooks.evidence
        if not checks.recording:
            self._update(gradient)
            return []
        at = checks.outer_positions("outer", self.values.numel())
        before, momentum_before, gathered_before = self.values[at], self.momentum[at], self.gathered[at]
        crc_before = crc32([self.values, self.momentum, self.gathered])
        self._update(gradient)
        line = checks.outer_step(
            "outer",
            before=before,
            momentum_before=momentum_before,
            gradient=gradient,
            after=self.values,
            momentum_after=self.momentum,
            rate=self._rate,
            momentum=self._beta,
            before_crc32=crc_before,
            restarted=self._chain is not checks,
            delayed=Delayed(self.pushes, self._delay, self._activation, gathered_before, self.gathered),
        )
        self._chain = checks
        return [line]

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
