"""Slices of parameters that replicas exchange, and the outer optimizer of a slice.

Rank i of each site holds slice i of the outer parameters and of their momentum, exchanges it with the ranks i of the
other sites, and all slices are gathered inside the site: so no parameter crosses a fiber twice, and the outer state is
divided among the ranks of a site.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from testbed_agents.aggregation import begin_sum_at
from testbed_agents.checksums import crc32
from testbed_agents.evidence import Evidence
from testbed_agents.exchange import Exchange, begin_sum, gather_into
from testbed_agents.groups import Replicas
from testbed_agents.hooks import Hooks
from testbed_agents.strategies.strategy import flatten, unflatten
from testbed_agents.weighted_mean import mean_of, weighted

__all__ = ["Nesterov", "Slice"]


class Slice:
    """This rank's slice of ``parameters``: (elements,) each, padded so that all slices have the same size.

    A rank without a slice (its site has more ranks than another) has an empty one, and takes part inside the site only.
    ``at``: the rank of ``replicas.across_ranks`` that adds (``aggregation.py``); None: as ``exchange.py`` says.
    ``order``: place in the flat parameters of each element of what is cut into slices, (elements,) int64; None: as is.
    """

    def __init__(
        self, parameters: Sequence[Tensor], replicas: Replicas, at: int | None = None, order: Tensor | None = None
    ) -> None:
        self._parameters, self.replicas, self._at, self._order = tuple(parameters), replicas, at, order
        self.elements = sum(each.numel() for each in self._parameters)
        self.size = -(-self.elements // replicas.slices)
        self.holds = replicas.slice is not None

    @property
    def own(self) -> int:
        """The index of this rank among those that exchange its slice; 0 if it has none."""
        ranks = self.replicas.across_ranks
        return ranks.index(dist.get_rank()) if ranks else 0

    def of_parameters(self) -> Tensor:
        """Return this rank's slice of the parameters as they are now, copied."""
        return self.of(flatten(self._parameters))

    def of(self, flat: Tensor) -> Tensor:
        """Return this rank's slice of (elements,) values, copied."""
        if self.replicas.slice is None:
            return flat.new_zeros(0)
        begin = self.replicas.slice * self.size
        part = flat[begin : begin + self.size]
        if self._order is not None:
            part = flat[self._order[begin : begin + self.size]]
        return torch.cat((part, part.new_zeros(self.size - part.numel())))

    def begin_sum(self, values: Tensor) -> Exchange:
        """Begin to sum this rank's slice over all replicas."""
        if not self.holds:
            return Exchange((), (values,))
        if self._at is not None:
            return begin_sum_at(values, self.replicas.across, self.replicas.across_ranks, self._at)
        return begin_sum(values, self.replicas.across, self.replicas.across_ranks)

    def mean(self, values: Tensor, shares: Sequence[float] = ()) -> Tensor:
        """Return the mean of this rank's slice over all replicas, each with its share; empty for equal shares."""
        return self.mean_of("outer", self.begin_mean(values, shares).wait(), values, shares)

    def begin_mean(self, values: Tensor, shares: Sequence[float] = ()) -> Exchange:
        """Begin a mean; its sum goes to :meth:`mean_of`. ``values`` must not change until then."""
        return self.begin_sum(weighted(values, self.replicas.across_ranks, shares))

    def mean_of(
        self, name: str, total: Tensor, values: Tensor, shares: Sequence[float], taken: int | None = None
    ) -> Tensor:
        """Return the mean whose sum is ``total`` (``weighted_mean.py``)."""
        return mean_of(name, total, values, self.replicas.across_ranks, shares, self.replicas.hooks.evidence, taken)

    def gather(self, values: Tensor) -> Tensor:
        """Return all slices of ``values`` as flat parameters, (elements,): a collective call of a replica's ranks."""
        ranks = len(self.replicas.inside_ranks)
        whole = values
        if ranks > 1:
            mine = values if self.holds else values.new_zeros(self.size)
            whole = mine.new_empty(ranks * self.size)
            gather_into(whole, mine, group=self.replicas.inside)
        whole = whole[: self.elements]  # those without a slice come last
        return whole if self._order is None else torch.empty_like(whole).scatter_(0, self._order, whole)

    def spread(self, values: Tensor, keep: float = 0.0) -> None:
        """Gather all slices of ``values`` into the parameters: θ ← keep θ + (1 - keep) values.

        A collective call of the ranks of a replica.
        """
        if not self.holds:
            self.replicas.hooks.await_all()  # its mates wait for the other replicas
        whole = self.gather(values)
        if keep:
            local = flatten(self._parameters)
            whole = local.lerp_(whole, 1.0 - keep)
        unflatten(whole, self._parameters)


class Nesterov:
    """The outer optimizer of a slice: torch's SGD, with Nesterov momentum unless it is 0.

    m ← momentum m + g; Θ ← Θ - rate (g + momentum m), where g is the mean pseudo-gradient, Θ - θ.

    ``name`` distinguishes the outer optimizers of one rank, in records, which go to the evidence of ``hooks``.
    """

    def __init__(self, values: Tensor, rate: float, momentum: float, hooks: Hooks, name: str = "outer") -> None:
        self._rate, self._momentum, self._hooks, self.name = rate, momentum, hooks, name
        self._chain: Evidence | None = None  # in which this optimizer's last step was recorded
        self._values = nn.Parameter(values, requires_grad=True)
        self._optimizer = torch.optim.SGD([self._values], lr=rate, momentum=momentum, nesterov=momentum > 0)
        # SGD makes the buffer in its first step; a checkpoint must be able to fill it before. Zeros are the same.
        self.momentum = torch.zeros_like(values)
        if momentum:
            self._optimizer.state[self._values]["momentum_buffer"] = self.momentum

    @property
    def values(self) -> Tensor:
        """Θ, (elements,); changed in place."""
        return self._values.data

    def step(self, gradient: Tensor) -> None:
        for _ in range(1 + self._hooks.failpoint("applied-twice")):
            self._step(gradient)

    def _step(self, gradient: Tensor) -> None:
        checks = self._hooks.evidence
        if not checks.recording:
            self._update(gradient)
            return
        at = checks.outer_positions(self.name, self.values.numel())
        before, momentum_before = self.values[at], self.momentum[at]
        crc_before = crc32([self.values, self.momentum])
        self._update(gradient)
        line = checks.outer_step(
            self.name,
            before=before,
            momentum_before=momentum_before,
            gradient=gradient,
            after=self.values,
            momentum_after=self.momentum,
            rate=self._rate,
            momentum=self._momentum,
            before_crc32=crc_before,
            restarted=self._chain is not checks,
        )
        checks.outer_taken(line)
        self._chain = checks

    def _update(self, gradient: Tensor) -> None:
        self._values.grad = gradient
        self._optimizer.step()
        self._values.grad = None

    def restart(self, values: Tensor) -> None:
        """Adopt ``values`` and forget the momentum."""
        self._chain = None
        self._values.data.copy_(values)
        self.momentum.zero_()

    def state(self) -> dict[str, Tensor]:
        return {"values": self.values, "momentum": self.momentum}
