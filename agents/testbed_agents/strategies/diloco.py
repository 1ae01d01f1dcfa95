"""diloco and local-sgd: replicas train alone for H steps, exchange all parameters, and wait for it.

Inside a replica, gradients are averaged in each step over the site's fabric (``ReplicaTraining``).

diloco: g = mean of Θ - θ; m ← 0.9 m + g; Θ ← Θ - 0.7 (g + 0.9 m); θ ← Θ (Douillard et al. 2023, arXiv:2311.08105).
The default momentum here is 0.5: with 0.9 the small model learns worse than by averaging (docs/strategies.md).

local-sgd: θ ← mean θ; the inner optimizer's moments stay local (Stich 2019, arXiv:1805.09767).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from testbed_agents.aggregation import rank_at
from testbed_agents.bucketed_gradients import BucketedGradients, mean_over
from testbed_agents.outer import Nesterov, Slice
from testbed_agents.site_pace import InnerSteps
from testbed_agents.strategies.strategy import Context, Strategy, unflatten

__all__ = ["Diloco", "LocalSgd", "ReplicaTraining"]


class ReplicaTraining(Strategy):
    """Average gradients inside each replica in every step: a ``site``, or each ``rank`` by itself.

    ``pace``: ``steps``, or ``time`` for inner steps by the declared speed of a site. ``weigh``: ``equal``, or
    ``tokens`` for replicas weighted by what they trained on since their last exchange.
    """

    def __init__(self, replica: str = "site", pace: str = "steps", weigh: str = "equal") -> None:
        self._replica, self._by_time, self._by_tokens = replica, pace == "time", weigh == "tokens"

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.context = context
        self.model = model
        self.replicas = context.groups.replicas(self._replica, apart=True)
        self.step_group = self.replicas.inside_ranks
        size = len(self.replicas.inside_ranks)
        self._gradients = BucketedGradients(model, context, self.replicas.inside, mean_over(self.replicas.inside, size))
        self.module = self._gradients.wrapped
        self.parameters = list(model.parameters())
        self.inner = InnerSteps(context.groups, context.speeds, self._by_time)
        return self.parameters

    def inner_steps(self, step: int) -> int:
        return self.inner.within(step, self.context.groups.rank)

    def shares(self, since: int, step: int, members: Sequence[Sequence[int]] = ()) -> tuple[float, ...]:
        """Return the share of each replica in a mean of what they trained in the steps after ``since``, until ``step``.

        Empty for equal shares. ``members``: ranks of each that is averaged, where these are not the replicas.
        """
        groups = self.context.groups
        alone = [(rank,) for rank in range(groups.world_size)]
        replicas = members or (alone if self._replica == "rank" else list(groups.members.values()))
        return self.inner.shares(replicas, since, step) if self._by_tokens else ()

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        self._gradients.rehearse(inputs, targets)


class LocalSgd(ReplicaTraining):
    """``every``: H, steps between two exchanges. ``replica``: ``site`` or ``rank``.

    ``aggregate_at``: the site that adds what all send to it; empty: they exchange with each other. ``pace``, ``weigh``:
    as of :class:`ReplicaTraining`.
    """

    exchange_shares: tuple[float, ...] = ()
    """Of the replicas in the exchange that is being made; empty for equal ones."""

    def __init__(
        self,
        every: int = 50,
        replica: str = "site",
        aggregate_at: str = "",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(replica, pace, weigh)
        self._every, self._aggregate_at = every, aggregate_at
        self._version = torch.zeros((), dtype=torch.int64)

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        trained = super().prepare(model, context)
        at = rank_at(self._aggregate_at, context.groups.sites, self.replicas.across_ranks)
        self.slice = self.make_slice(trained, at)
        self.outer = self.make_outer(self.slice.of_parameters())
        return trained

    def make_slice(self, trained: list[nn.Parameter], at: int | None) -> Slice:
        return Slice(trained, self.replicas, at)

    def make_outer(self, values: Tensor) -> Nesterov:
        """Return the outer optimizer: of plain averaging, rate 1 without momentum, which is only a place for Θ."""
        return Nesterov(values, 1.0, 0.0, self.replicas.hooks)

    def after_step(self, step: int) -> None:
        if step % self._every == 0:
            self._exchange(step)

    def finish(self, step: int) -> None:
        if step % self._every:
            self._exchange(step)

    def _exchange(self, step: int) -> None:
        self.exchange_shares = self.shares((step - 1) // self._every * self._every, step)
        self.combine(self.slice.of_parameters())
        self.slice.spread(self.outer.values)
        self._version += 1

    def combine(self, local: Tensor) -> None:
        """Set Θ to the mean of the replicas' parameters."""
        self.outer.values.copy_(self.slice.mean(local, self.exchange_shares))

    def state(self) -> dict[str, Tensor]:
        return {"outer_version": self._version, **{f"outer.{name}": it for name, it in self.outer.state().items()}}

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {**super().fingerprints(), "outer": [self.outer.values, self.outer.momentum]}

    def outer_parameters(self) -> list[Tensor]:
        found = [torch.empty_like(each) for each in self.parameters]
        unflatten(self.slice.gather(self.outer.values), found)
        return found

    @property
    def outer_version(self) -> int:
        return int(self._version)


class Diloco(LocalSgd):
    """``outer_rate`` and ``outer_momentum``: of the outer optimizer, SGD with Nesterov momentum."""

    def __init__(
        self,
        every: int = 50,
        outer_rate: float = 0.7,
        outer_momentum: float = 0.5,
        replica: str = "site",
        aggregate_at: str = "",
        pace: str = "steps",
        weigh: str = "equal",
    ) -> None:
        super().__init__(every, replica, aggregate_at, pace, weigh)
        self._rate, self._momentum = outer_rate, outer_momentum

    def make_outer(self, values: Tensor) -> Nesterov:
        return Nesterov(values, self._rate, self._momentum, self.replicas.hooks)

    def combine(self, local: Tensor) -> None:
        """Apply the mean of the replicas' pseudo-gradients, Θ - θ."""
        self.outer.step(self.slice.mean(self.outer.values - local, self.exchange_shares))
