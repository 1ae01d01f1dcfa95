"""Train a small GPT by a strategy on ranks over loopback, and the same on one process, written independently."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from testbed_agents import strategies
from testbed_agents.groups import Groups
from testbed_agents.model import GPT, Shape, cross_entropy
from testbed_agents.strategies import Context, Strategy
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
    return torch.optim.AdamW(found, lr=3e-3) if kind == "adamw" else torch.optim.SGD(found, lr=0.03)


def crc(tensors: Iterable[Tensor]) -> int:
    value = 0
    for each in tensors:
        value = zlib.crc32(each.detach().contiguous().numpy().tobytes(), value)
    return value


@dataclass
class Trained:
    """What one rank had: fingerprints by step, counts of updates, parameters at the end."""

    fingerprints: list[dict[str, int]]
    outer_versions: list[int]
    updates: list[int]
    parameters: list[Tensor]
    outer: list[Tensor]


def train(rank: int, case: Case, sites: Sequence[str], after: Callable[[int, Strategy], None] | None = None) -> Trained:
    """Train ``case`` as the loop of the agents does."""
    context = Context(Groups(rank, sites), steps=case.steps, speeds=case.speeds)
    strategy = strategies.make(case.strategy, case.options)
    optimizer = make_optimizer(case.optimizer, strategy.prepare(make_model(case.seed), context))
    draw = windows(rank, case.seed)
    found = Trained([], [], [], [], [])
    updated = 0
    for step in range(1, case.steps + 1):
        context.step = step
        for _ in range(strategy.inner_steps(step)):
            inputs = draw()
            strategy.run(inputs, inputs)
            if strategy.updates(step):
                optimizer.step()
                optimizer.zero_grad()
                updated += 1
        strategy.after_step(step)
        if step == case.steps:
            strategy.finish(step)
        found.fingerprints.append({name: crc(them) for name, them in strategy.fingerprints().items()})
        found.outer_versions.append(strategy.outer_version)
        found.updates.append(updated)
        if after is not None:
            after(step, strategy)
    found.parameters = [each.detach().clone() for each in strategy.module.parameters()]
    found.outer = [each.detach().clone() for each in strategy.outer_parameters()]
    return found


@dataclass
class Saved:
    """All that a checkpoint keeps, copied."""

    step: int
    parameters: list[Tensor]
    strategy: dict[str, Tensor]
    optimizer: dict[str, Any]


def train_interrupted(rank: int, case: Case, sites: Sequence[str], at: int) -> tuple[int, int]:
    """Return the parameters' fingerprint of a job, and that of one restored from a checkpoint after step ``at``."""
    saved: list[Saved] = []
    drawn = 0
    context = Context(Groups(rank, sites), steps=case.steps, speeds=case.speeds)
    strategy = strategies.make(case.strategy, case.options)
    parameters = strategy.prepare(make_model(case.seed), context)
    optimizer = make_optimizer(case.optimizer, parameters)

    def go_on(first: int, draw: Callable[[], Tensor]) -> int:
        nonlocal drawn
        for step in range(first, case.steps + 1):
            context.step = step
            for _ in range(strategy.inner_steps(step)):
                inputs = draw()
                strategy.run(inputs, inputs)
                drawn += not saved
                if strategy.updates(step):
                    optimizer.step()
                    optimizer.zero_grad()
            strategy.after_step(step)
            if step == case.steps:
                strategy.finish(step)
            if step == at and not saved:
                strategy.settle(step)
                state = copy.deepcopy(strategy.state())
                saved.append(Saved(step, copy.deepcopy(parameters), state, copy.deepcopy(optimizer.state_dict())))
        return crc(strategy.module.parameters())

    whole = go_on(1, windows(rank, case.seed))

    context = Context(Groups(rank, sites), steps=case.steps, speeds=case.speeds)
    strategy = strategies.make(case.strategy, case.options)
    parameters = strategy.prepare(make_model(case.seed + 1), context)  # of another process, so not yet equal
    optimizer = make_optimizer(case.optimizer, parameters)
    draw = windows(rank, case.seed)
    inputs = windows(rank, 7)()
    strategy.rehearse(inputs, inputs)
    with torch.no_grad():
        for into, value in zip(parameters, saved[0].parameters, strict=True):
            into.copy_(value)
        for name, tensor in strategy.state().items():
            tensor.copy_(saved[0].strategy[name])
    optimizer.load_state_dict(saved[0].optimizer)
    strategy.loaded()
    for _ in range(drawn):
        draw()
    return whole, go_on(at + 1, draw)


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


def difference(found: Iterable[Tensor], expected: Tensor) -> float:
    """Return the relative norm of the difference."""
    vector = torch.cat([each.flatten() for each in found])
    return float((vector - expected).norm() / expected.norm())
