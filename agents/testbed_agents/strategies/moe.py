"""moe: a mixture of experts in each decoder block, one expert a rank; tokens travel to their experts and back.

A router gives each token to its ``top_k`` experts. They are the block's own perceptron at first ("upcycling",
Komatsuzaki et al. 2022, arXiv:2212.05055), so nothing but the router is new, and it is seeded. Each takes at most its
equal share of a rank's tokens, times ``capacity``: first choices before second ones, then by position; a token beyond
that passes by its expert (Fedus et al. 2021, Switch Transformer, arXiv:2101.03961). So every all-to-all has the same
size: two in the forward pass of a layer, two in its backward pass.

With ``experts: all`` a rank's expert is the only one of its kind, and its gradient is complete. With ``experts: site``
each site has all experts, tokens stay inside, and an expert's gradient is averaged over the sites. All other gradients
are averaged over all ranks in two levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from testbed_agents.exchange.gradients import reduce_gradients
from testbed_agents.exchange.sums import begin_sum, gather_slices, reduce_scatter_into
from testbed_agents.strategies.strategy import Context, Strategy

__all__ = ["Moe"]


class Moe(Strategy):
    """``experts``: "all" ranks, or those of a "site", have different ones. ``router_seed``: of the router's weights."""

    def __init__(self, experts: str = "all", top_k: int = 1, capacity: float = 1.0, router_seed: int = 0) -> None:
        self._experts, self._top_k, self._capacity, self._seed = experts, top_k, capacity, router_seed

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.context, self.module = context, model
        groups = context.groups
        self._replicas = groups.replicas()
        sizes = {len(ranks) for ranks in groups.members.values()}
        if len(sizes) > 1:
            raise ValueError(f"expected equally many ranks at each site, got {sorted(sizes)}")
        self._world_size = groups.world_size
        in_site = self._experts == "site"
        self._group = self._replicas.inside if in_site else groups.world
        self._count = len(self._replicas.inside_ranks) if in_site else groups.world_size
        if self._top_k > self._count:
            raise ValueError(f"expected a top_k of at most the {self._count} experts, got {self._top_k}")
        blocks: Any = model.blocks
        generator = torch.Generator().manual_seed(self._seed)
        own: list[nn.Parameter] = []
        for block in blocks:
            own += [*block.inward.parameters(), *block.outward.parameters()]
            router = nn.Linear(block.inward.in_features, self._count, bias=False)
            with torch.no_grad():
                router.weight.normal_(std=0.02, generator=generator)
            block.router = router
            block.forward = self._forward_of(block)
        experts = {id(parameter) for parameter in own}
        self._expert_parameters = own
        self._dense_parameters = [parameter for parameter in model.parameters() if id(parameter) not in experts]
        return list(model.parameters())

    def _forward_of(self, block: Any) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            x = x + block.attention(block.before_attention(x))
            seen = block.before_perceptron(x)
            return x + self._mixture(block, seen.flatten(0, 1)).view_as(x)

        return forward

    def _mixture(self, block: Any, tokens: Tensor) -> Tensor:
        """Return the experts' outputs for (tokens, width), weighted by the router; 0 for what no expert took."""
        slots = capacity_of(tokens.shape[0], self._top_k, self._count, self._capacity)
        weights, chosen = block.router(tokens).softmax(-1).topk(self._top_k, dim=-1)
        token, slot, taken = places(chosen, self._count, slots)
        sent = tokens.new_zeros(self._count * slots, tokens.shape[1]).index_copy(0, slot, tokens[token])
        arrived = _all_to_all(sent, self._group, self._count, self.context)
        answered = block.outward(functional.gelu(block.inward(arrived)))
        returned = _all_to_all(answered, self._group, self._count, self.context)
        weight = weights.t().reshape(-1)[taken]
        return torch.zeros_like(tokens).index_add(0, token, returned[slot] * weight[:, None])

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.context.loss(self.module(inputs), targets)
        self.context.before_backward(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        self.context.gradients_ready()
        reduce_gradients(self._dense_parameters, self._mean_of_all)
        reduce_gradients(self._expert_parameters, self._mean_of_expert)
        return loss.detach()

    def _mean_of_all(self, flat: Tensor) -> Tensor:
        """Return the mean over all ranks, in two levels: each value crosses a fiber once."""
        replicas, size = self._replicas, flat.numel()
        flat = flat.div_(self._world_size)
        ranks = len(replicas.inside_ranks)
        mine = flat
        if ranks > 1:
            slice_size = -(-size // ranks)
            mine = flat.new_empty(slice_size)
            padded = torch.cat((flat, flat.new_zeros(slice_size * ranks - size)))
            reduce_scatter_into(mine, padded, group=replicas.inside)
        mine = begin_sum(mine, replicas.across, replicas.across_ranks).wait()
        return gather_slices(mine, size, replicas.inside, ranks)

    def _mean_of_expert(self, flat: Tensor) -> Tensor:
        """Return the mean over all ranks' losses; backward has summed those whose tokens came here."""
        flat = flat.div_(self._world_size)
        if self._experts == "site":
            return begin_sum(flat, self._replicas.across, self._replicas.across_ranks).wait()
        return flat

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {
            "dense": [parameter.detach() for parameter in self._dense_parameters],
            "expert": [parameter.detach() for parameter in self._expert_parameters],
        }

    def outer_parameters(self) -> list[Tensor]:
        """Return all parameters; of an expert's, those of all experts, (experts, …): a collective call."""
        experts = {id(expert) for expert in self._expert_parameters}
        tensors = []
        for parameter in self.module.parameters():
            tensor = parameter.detach()
            if id(parameter) in experts:
                size = tensor.numel() * self._count
                whole = gather_slices(tensor.reshape(-1), size, self._group, self._count)
                tensor = whole.view(self._count, *tensor.shape)
            tensors.append(tensor)
        return tensors


def capacity_of(tokens: int, top_k: int, experts: int, capacity: float) -> int:
    """Return how many of a rank's tokens each expert takes."""
    return math.ceil(capacity * tokens * top_k / experts)


def places(chosen: Tensor, experts: int, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Place tokens, (tokens, k) experts in the order of choice, into ``slots`` of each expert.

    Returns for each of those that found a place: the token, its slot of experts × slots, and its index in the
    choices (k × tokens: first choices of all tokens before second ones).
    """
    wanted = chosen.t().reshape(-1)
    one_hot = functional.one_hot(wanted, experts)
    place = (one_hot.cumsum(0) - 1).gather(1, wanted[:, None])[:, 0]
    taken = (place < slots).nonzero()[:, 0]
    return taken % chosen.shape[0], (wanted * slots + place)[taken], taken


class _AllToAll(torch.autograd.Function):
    """Send the i-th part of (parts × slots, width) to rank i, and receive one of each; the same for the gradient."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: Any, ranks: int, context: Context) -> Tensor:
        ctx.group, ctx.ranks, ctx.context = group, ranks, context
        return _exchange(parts, group, ranks, context)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchange(gradient, ctx.group, ctx.ranks, ctx.context), None, None, None


def _all_to_all(parts: Tensor, group: Any, ranks: int, context: Context) -> Tensor:
    arrived: Tensor = _AllToAll.apply(parts, group, ranks, context)  # type: ignore[no-untyped-call]
    return arrived


def _exchange(parts: Tensor, group: Any, ranks: int, context: Context) -> Tensor:
    if ranks == 1:
        return parts.clone()
    parts = parts.contiguous()
    arrived = torch.empty_like(parts)
    with context.waiting():
        dist.all_to_all_single(arrived, parts, group=group)
    return arrived
