"""This rank's slice of the parameters, or of a fragment of them, that replicas exchange.

Rank i of each site holds slice i of the outer parameters and of their momentum, exchanges it with the ranks i of the
other sites, and all slices are gathered inside the site: so no parameter crosses a fiber twice, and the outer state is
divided among the ranks of a site.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from testbed_agents.exchange.codec import Codec
from testbed_agents.exchange.sums import CodedExchange, Exchange, begin_sum, gather_slices, weighted
from testbed_agents.groups import Replicas
from testbed_agents.strategies.strategy import flatten, unflatten

__all__ = ["Slice"]


class Slice:
    """This rank's slice of ``parameters``: (elements,) each, padded so that all slices have the same size.

    A rank without a slice (its site has more ranks than another) has an empty one, and takes part inside the site only.

    Args:
        aggregator: the rank of ``replicas.across_ranks`` that adds; None: as ``sums.py`` says.
        order: place in the flat parameters of each element of what is cut into slices, (elements,) int64; None: as is.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        replicas: Replicas,
        aggregator: int | None = None,
        order: Tensor | None = None,
    ) -> None:
        self.parameters, self.replicas = tuple(parameters), replicas
        self._aggregator, self._order = aggregator, order
        self.elements = sum(parameter.numel() for parameter in self.parameters)
        self.size = -(-self.elements // replicas.slices)
        self.holds = replicas.slice is not None

    @property
    def own(self) -> int:
        """The index of this rank among those that exchange its slice; 0 if it has none."""
        ranks = self.replicas.across_ranks
        return ranks.index(dist.get_rank()) if ranks else 0

    def of_parameters(self) -> Tensor:
        """Return this rank's slice of the parameters as they are now, (elements,), copied."""
        flat = flatten(self.parameters)
        if self.replicas.slice is None:
            return flat.new_zeros(0)
        begin = self.replicas.slice * self.size
        part = flat[begin : begin + self.size]
        if self._order is not None:
            part = flat[self._order[begin : begin + self.size]]
        return torch.cat((part, part.new_zeros(self.size - part.numel())))

    def begin_sum(
        self, values: Tensor, shares: Sequence[float], codec: Codec, generator: torch.Generator | None = None
    ) -> Exchange:
        """Begin to sum ``values`` over all replicas, each times its share; empty for equal shares.

        ``values`` must not change until then. ``generator``: of the codec's stochastic rounding.
        """
        if not codec.exact:
            return CodedExchange(values, codec, self.replicas, shares, generator)
        ranks = self.replicas.across_ranks
        return begin_sum(weighted(values, ranks, shares), self.replicas.across, ranks, self._aggregator)

    def gather(self, values: Tensor) -> Tensor:
        """Return all slices of ``values`` as flat parameters, (elements,): a collective call of a replica's ranks."""
        ranks = len(self.replicas.inside_ranks)
        padded = values if self.holds or ranks == 1 else values.new_zeros(self.size)
        whole = gather_slices(padded, self.elements, self.replicas.inside, ranks)  # those without a slice come last
        return whole if self._order is None else torch.empty_like(whole).scatter_(0, self._order, whole)

    def spread(self, values: Tensor, keep: float = 0.0) -> None:
        """Gather all slices of ``values`` into the parameters: θ ← keep θ + (1 - keep) values.

        A collective call of the ranks of a replica.
        """
        if not self.holds:
            self.replicas.hooks.await_all()  # its mates wait for the other replicas
        whole = self.gather(values)
        if keep:
            local = flatten(self.parameters)
            whole = local.lerp_(whole, 1.0 - keep)
        unflatten(whole, self.parameters)
