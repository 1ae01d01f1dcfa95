"""A small model, and jobs of strategies whose replicas exchange: for tests over loopback against references.

The model has blocks, tied weights, and parameters of no block. Data depend on rank and step only, so a reference in one
process computes what each rank computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from testbed_agents.groups import Groups
from testbed_agents.strategies import Context, Strategy
from torch import Tensor, nn

WIDTH = 24


class Tiny(nn.Module):
    """Four residual blocks between an embedding and itself, transposed: (batch,) int64 to (batch, 7)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.offset = nn.Parameter(torch.zeros(7))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return x @ self.embedding.weight.T + self.offset


def tiny() -> Tiny:
    torch.manual_seed(7)
    return Tiny()


def drawn(rank: int, step: int, inner: int = 0) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a rank's step, or of one of its inner steps."""
    generator = torch.Generator().manual_seed(1_000_000 * inner + 1000 * step + rank)
    return torch.randint(7, (6,), generator=generator), torch.randint(7, (6,), generator=generator)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets)


class Job:
    """One rank's job: a model, a strategy and an inner optimizer, SGD with momentum.

    Jobs that follow one another may share their ``groups``, which take long to make.
    """

    def __init__(
        self, groups: Groups, strategy: Strategy, steps: int, rate: float, speeds: Mapping[str, float] | None = None
    ) -> None:
        self.rank, self.strategy, self.steps = groups.rank, strategy, steps
        self.model = tiny()
        self.context = Context(groups, loss=loss, steps=steps, speeds=speeds or {})
        self.optimizer = torch.optim.SGD(strategy.prepare(self.model, self.context), lr=rate, momentum=0.5)
        self.done = 0

    def run(self, until: int | None = None, after: Callable[[int], None] = lambda step: None) -> Job:
        for step in range(self.done + 1, (until or self.steps) + 1):
            self.context.step = step
            for inner in range(self.strategy.inner_steps(step)):
                self.strategy.run(*drawn(self.rank, step, inner))
                if self.strategy.updates(step):
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            self.strategy.after_step(step)
            if step == self.steps:
                self.strategy.finish(step)
            self.done = step
            after(step)
        return self

    def parameters(self) -> Tensor:
        return torch.cat([it.detach().reshape(-1) for it in self.model.parameters()])

    def saved(self) -> Mapping[str, Any]:
        """Return a copy of all that a checkpoint has."""
        moments = [self.optimizer.state[it]["momentum_buffer"].clone() for it in self.model.parameters()]
        return {
            "step": self.done,
            "parameters": [it.detach().clone() for it in self.model.parameters()],
            "moments": moments,
            "strategy": {name: it.clone() for name, it in self.strategy.state().items()},
        }

    def load(self, saved: Mapping[str, Any]) -> Job:
        self.strategy.rehearse(*drawn(self.rank, 0))
        with torch.no_grad():
            for parameter, value, moment in zip(
                self.model.parameters(), saved["parameters"], saved["moments"], strict=True
            ):
                parameter.copy_(value)
                self.optimizer.state[parameter]["momentum_buffer"] = moment.clone()
            for name, value in self.strategy.state().items():
                value.copy_(saved["strategy"][name])
        self.done = saved["step"]
        self.strategy.loaded()
        return self


def distance(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference relative to that of ``other``."""
    return float((one.double() - other.double()).norm() / other.double().norm())
