"""A small model, and jobs of strategies whose replicas exchange: for tests over loopback against references and twins.

The model has blocks, tied weights, and parameters of no block. Data depend on rank and step only, so a reference in one
process computes what each rank computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from testbed_agents import strategies
from testbed_agents.checksums import crc32
from testbed_agents.groups import Groups
from testbed_agents.strategies import Context
from torch import Tensor, nn

from testbed.core.training import layout as layouts
from testbed.core.training import strategies_built
from testbed.core.training.twin import Twin

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


def tiny(seed: int = 0) -> Tiny:
    torch.manual_seed(7 + seed)
    return Tiny()


def layout(sites: Sequence[str], steps: int, **fields: Any) -> layouts.Layout:
    """Return the layout of a job that trains the tiny model."""
    tensors = [
        layouts.Tensor(name, values.numel(), int(name.split(".")[1]) if "blocks" in name else None, len(values))
        for name, values in tiny().named_parameters()
    ]
    return layouts.Layout(tuple(sites), tuple(tensors), layers=4, steps=steps, **fields)


def twin_of(strategy: str, options: Mapping[str, Any], job: layouts.Layout) -> Twin:
    """Return the twin of a strategy whose ``options`` are arguments of its constructor; it accepts the job."""
    names = {option.argument: option.name for option in strategies_built.twin_class(strategy).options}
    twin = strategies_built.make(strategy, {names[name]: value for name, value in options.items()}, job)
    assert not twin.mistakes()
    return twin


def drawn(rank: int, step: int, inner: int = 0) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets of a rank's step, or of one of its inner steps."""
    generator = torch.Generator().manual_seed(1_000_000 * inner + 1000 * step + rank)
    return torch.randint(7, (6,), generator=generator), torch.randint(7, (6,), generator=generator)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, targets)


class Step(NamedTuple):
    """What one rank had after a step."""

    version: int
    fingerprints: dict[str, str]
    updates: int


class Result(NamedTuple):
    """What one rank had at the end of its job."""

    trace: list[Step]
    parameters: Tensor
    outer: Tensor


class Job:
    """One rank's job: a model, a strategy and an inner optimizer, SGD with momentum.

    Jobs that follow one another may share their ``groups``, which take long to make.
    """

    settles = 0
    """The step of a checkpoint to which strategies bring what is on its way."""

    def __init__(
        self,
        groups: Groups,
        strategy: str,
        options: Mapping[str, Any],
        steps: int,
        rate: float = 0.05,
        seed: int = 0,
        **context: Any,
    ) -> None:
        self.rank, self.steps, self.rate, self.seed = groups.rank, steps, rate, seed
        self.model = self.make_model()
        self.context = Context(groups, **{"loss": loss, "steps": steps, **context})
        self.strategy: Any = strategies.make(strategy, options)
        self.parameters = self.strategy.prepare(self.model, self.context)
        self.optimizer = self.make_optimizer()
        self.state = self.strategy.state()  # as a checkpoint takes it: once, and fills it in place
        self.done = self.draws = self.updates = 0
        self.trace: list[Step] = []
        self.losses: list[Tensor | None] = []
        self.loaded: Mapping[str, Any] = {}

    def make_model(self) -> nn.Module:
        return tiny(self.seed)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters, lr=self.rate, momentum=0.5)

    def draw(self, step: int, inner: int = 0) -> tuple[Tensor, Tensor]:
        return drawn(self.rank, step, inner)

    def before(self, step: int) -> None:
        """Called when a step begins."""

    def run(self, until: int | None = None) -> Self:
        for step in range(self.done + 1, (until or self.steps) + 1):
            self.context.begin(step)
            self.before(step)
            for inner in range(self.strategy.inner_steps(step)):
                self.losses.append(self.strategy.run(*self.draw(step, inner)))
                self.draws += 1
                if self.strategy.updates(step):
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.updates += 1
            self.strategy.after_step(step)
            if step == self.settles:
                self.strategy.settle(step)
            if step == self.steps:
                self.strategy.finish(step)
            self.done = step
            fingerprints = {name: crc32(tensors) for name, tensors in self.strategy.fingerprints().items()}
            self.trace.append(Step(self.strategy.outer_version, fingerprints, self.updates))
        return self

    def result(self) -> Result:
        return Result(self.trace, vector(self.model.parameters()), vector(self.strategy.outer_parameters()))

    def saved(self) -> dict[str, Any]:
        """Return a copy of all that a checkpoint has."""
        return {
            "step": self.done,
            "draws": self.draws,
            "parameters": [values.detach().clone() for values in self.parameters],
            "moments": [
                {name: value.clone() for name, value in self.optimizer.state[values].items()}
                for values in self.parameters
            ],
            "strategy": {name: values.clone() for name, values in self.state.items()},
        }

    def load(self, saved: Mapping[str, Any]) -> Self:
        """Continue from ``saved`` as a rank does: after a rehearsal, which leaves no trace."""
        self.strategy.rehearse(*self.draw(0))
        for _ in range(saved["draws"] - 1):
            self.draw(0)
        with torch.no_grad():
            for values, kept, moments in zip(self.parameters, saved["parameters"], saved["moments"], strict=True):
                values.copy_(kept)
                self.optimizer.state[values] = {name: value.clone() for name, value in moments.items()}
            assert self.state.keys() == saved["strategy"].keys()
            for name, tensor in self.state.items():
                assert tensor.shape == saved["strategy"][name].shape
                tensor.copy_(saved["strategy"][name])
        self.loaded, self.done, self.draws = saved, saved["step"], saved["draws"]
        self.strategy.loaded()
        return self


def interrupted(make: Callable[[int], Job], after: int, settles: bool = False) -> tuple[Job, Job]:
    """Return an undisturbed job, and one that continues from its checkpoint after a step; ``make`` takes a seed."""
    whole, again = make(0), make(1)
    whole.settles = after if settles else 0
    saved = whole.run(after).saved()
    return whole.run(), again.load(saved).run()


def check_steps(twin: Twin, traces: Sequence[Sequence[Step]], first: int = 1) -> int:
    """Check equality and versions after each step against the twin; return how many comparisons there were."""
    compared = 0
    for step, rows in enumerate(zip(*traces, strict=True), first):
        for equal in twin.equal(step):
            assert len({rows[rank].fingerprints[equal.name] for rank in equal.ranks}) == 1, (twin.name, equal, step)
            compared += len(equal.ranks) > 1
        if twin.outer_updates(twin.layout.steps):
            assert {row.version for row in rows} == {twin.outer_updates(step)}, (twin.name, step)
    return compared


def bits(value: Any) -> Any:
    """Return ``value`` with bytes in place of tensors: equal if all bits are."""
    if isinstance(value, Tensor):
        return value.detach().numpy().tobytes()
    if isinstance(value, Mapping):
        return {key: bits(part) for key, part in value.items()}
    return [bits(part) for part in value] if isinstance(value, list | tuple) else value


def vector(tensors: Iterable[Tensor]) -> Tensor:
    """Return all elements as one vector."""
    return torch.cat([values.detach().reshape(-1) for values in tensors])


def distance(one: Tensor, other: Tensor) -> float:
    """Return the norm of the difference relative to that of ``other``."""
    return float((one.double() - other.double()).norm() / other.double().norm())
