"""Train a small GPT by a strategy on ranks over loopback, and the same on one process, written independently."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from builders.replica_jobs import Job, Result, interrupted
from testbed_agents.process_groups.groups import Groups
from testbed_agents.training.model import GPT, Shape, cross_entropy
from torch import Tensor, nn

SHAPE = Shape(layers=3, heads=2, width=16, context=16)
BATCH = 2


@dataclass(frozen=True)
class Case:
    """One job: strategy with options, inner optimizer, steps."""

    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: str = "adamw"
    steps: int = 7
    seed: int = 0
    speeds: dict[str, float] = field(default_factory=dict)


def windows(rank: int, seed: int) -> Callable[[], Tensor]:
    """Return what draws a rank's next windows, (batch, context) int64."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    return lambda: torch.randint(64, (BATCH, SHAPE.context), generator=generator)


def make_model(seed: int) -> GPT:
    torch.manual_seed(seed)
    return GPT(SHAPE)


def make_optimizer(kind: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    found = list(parameters)
    return torch.optim.AdamW(found, lr=3e-3, fused=True) if kind == "adamw" else torch.optim.SGD(found, lr=0.03)


class GptJob(Job):
    """One rank's job of ``case``, as the loop of the agents trains it; ``offset`` of the model's seed."""

    def __init__(self, groups: Groups, case: Case, offset: int = 0) -> None:
        self.case, self.draw_windows = case, windows(groups.rank, case.seed)
        context: dict[str, Any] = {"seed": case.seed + offset, "speeds": case.speeds, "loss": cross_entropy}
        super().__init__(groups, case.strategy, case.options, case.steps, **context)

    def make_model(self) -> GPT:
        return make_model(self.seed)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.case.optimizer, self.parameters)

    def draw(self, step: int, inner: int = 0) -> tuple[Tensor, Tensor]:
        inputs = self.draw_windows()
        return inputs, inputs


def train(groups: Groups, cases: Iterable[Case]) -> list[Result]:
    """Train one case after the other."""
    return [GptJob(groups, case).run().result() for case in cases]


def interrupt(groups: Groups, case: Case, after: int) -> tuple[Result, Result]:
    """Return the results of an undisturbed job, and of one restored from its checkpoint after a step."""
    whole, again = interrupted(lambda seed: GptJob(groups, case, seed), after, settles=True)
    return whole.result(), again.result()


class Reference:
    """Sites of ranks in one process: the mean gradient of a site's windows, and what a test does between steps."""

    def __init__(self, case: Case, sites: Sequence[Sequence[int]]) -> None:
        first = make_model(case.seed)
        self.models = [copy.deepcopy(first) for _ in sites]
        self._sites = sites
        self._optimizers = [make_optimizer(case.optimizer, it.parameters()) for it in self.models]
        self._draws = {rank: windows(rank, case.seed) for site in sites for rank in site}

    def step(self) -> None:
        for model, optimizer, site in zip(self.models, self._optimizers, self._sites, strict=True):
            optimizer.zero_grad()
            for rank in site:
                inputs = self._draws[rank]()
                (cross_entropy(model(inputs), inputs) / len(site)).backward()
            optimizer.step()

    def vectors(self) -> list[Tensor]:
        """Return all parameters of each model as a vector."""
        return [torch.cat([each.detach().flatten() for each in model.parameters()]) for model in self.models]

    def set(self, vectors: Sequence[Tensor]) -> None:
        for model, vector in zip(self.models, vectors, strict=True):
            torch.nn.utils.vector_to_parameters(vector.clone(), model.parameters())  # it makes views
