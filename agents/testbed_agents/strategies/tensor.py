"""tensor: the matrices of each decoder block split over ranks, by torch's parallelize_module.

The attention is split by heads, the perceptron by its inner width: the first matrix of each by columns, the second by
rows, so each needs one sum of activations in the forward pass and one in the backward pass (Shoeybi et al. 2019,
Megatron-LM, arXiv:1909.08053). The ranks that share matrices train on the windows of all of them together.

Split inside a site, sites are replicas: a rank exchanges its shards with the ranks that hold the same, and its slice of
what is not split, so that no value crosses a fiber twice. ``across`` splits over the sites instead: every sum of
activations crosses the fiber, and computation waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from testbed_agents.exchange.gradients import reduce_gradients
from testbed_agents.exchange.sums import begin_sum, gather_slices
from testbed_agents.groups import equal_sites
from testbed_agents.model import local
from testbed_agents.strategies.strategy import Context, Strategy, flatten

__all__ = ["TensorParallel"]

_PLAN: dict[str, Any] = {
    "attention.inward": ColwiseParallel,
    "attention.outward": RowwiseParallel,
    "inward": ColwiseParallel,
    "outward": RowwiseParallel,
}


class TensorParallel(Strategy):
    """``across``: split over the sites, data-parallel inside each; otherwise the other way around."""

    def __init__(self, across: bool = False) -> None:
        self._across = across

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.context, self.module = context, model
        columns = zip(*context.groups.members.values(), strict=False)
        if self._across and any(list(ranks) != sorted(ranks) for ranks in columns):
            # torch sorts the ranks of a group, so the ranks of a site would hold different shards.
            raise ValueError("expected ranks that are numbered site by site, to split matrices across sites")
        equal_sites(context.groups)
        replicas = context.groups.replicas()
        sites, in_site = (replicas.across, replicas.count), (replicas.inside, len(replicas.inside_ranks))
        split, peers = (sites, in_site) if self._across else (in_site, sites)
        self._group: Any = split[0]
        self._peers: Any = peers[0]
        self._peer_ranks = replicas.across_ranks
        self._size, self._peer_count = split[1], peers[1]
        self._index = dist.get_rank(self._group)
        # One dimension: torch before 2.6 splits only over the last dimension of a mesh.
        group: Any = self._group
        mesh = DeviceMesh.from_group(group, "cpu")
        blocks: Any = model.blocks
        for block in blocks:
            self._split(block, mesh)
        parameters = list(model.parameters())
        self._split_parameters = [parameter for parameter in parameters if _is_split(parameter)]
        self._whole_parameters = [parameter for parameter in parameters if not _is_split(parameter)]
        return parameters

    def _split(self, block: Any, mesh: Any) -> None:
        heads = block.attention.heads
        inner = block.inward.out_features
        for divided, count in (("heads", heads), ("inner width", inner)):
            if count % self._size:
                raise ValueError(
                    f"expected {divided} that are a multiple of the {self._size} ranks that split them, got {count}"
                )
        with torch.no_grad():
            for parameter in (block.attention.inward.weight, block.attention.inward.bias):
                parameter.copy_(_by_rank(parameter, self._size))
        for name, style in _PLAN.items():  # torch 2.4 splits `inward` twice if a plan has both names
            parallelize_module(block.get_submodule(name), mesh, style())
        block.attention.forward = _attend(block.attention, heads // self._size)

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.context.waiting():
            inputs, targets = _exchange_tokens(inputs, targets, self._group, self._size)
        loss = self.context.loss(self.module(inputs), targets)
        self.context.before_backward(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        self.context.gradients_ready()
        if self._peer_count > 1:
            self._average()
        return loss.detach()

    def _average(self) -> None:
        if self._across:  # the ranks of a site hold the same shard of the model
            reduce_gradients([*self._split_parameters, *self._whole_parameters], self._mean_of_peers)
            return
        # What is not split has the same gradient on all ranks of the site, so each exchanges a slice of it.
        whole = flatten(local(parameter.grad) for parameter in self._whole_parameters if parameter.grad is not None)
        size = -(-whole.numel() // self._size)
        padded = torch.cat((whole, whole.new_zeros(size * self._size - whole.numel())))
        mine = padded[self._index * size : (self._index + 1) * size]

        def exchange(shards: Tensor) -> Tensor:
            mean = self._mean_of_peers(torch.cat((shards, mine)))
            mine.copy_(mean[shards.numel() :])
            return mean[: shards.numel()]

        reduce_gradients(self._split_parameters, exchange)
        reduce_gradients(
            self._whole_parameters, lambda flat: gather_slices(mine, flat.numel(), self._group, self._size)
        )

    def _mean_of_peers(self, flat: Tensor) -> Tensor:
        flat = flat.div_(self._peer_count)
        if self._across:
            dist.all_reduce(flat, group=self._peers)
            return flat
        return begin_sum(flat, self._peers, self._peer_ranks).wait()

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {
            "shard": [local(parameter.detach()) for parameter in self._split_parameters],
            "whole": [local(parameter.detach()) for parameter in self._whole_parameters],
        }

    def outer_parameters(self) -> list[Tensor]:
        """Return the whole parameters, gathered over the ranks that share them: a collective call of those."""
        parameters = []
        for name, parameter in self.module.named_parameters():
            tensor = parameter.detach()
            whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            parameters.append(_by_part(whole, self._size) if ".attention.inward." in name else whole)
        return parameters


def _exchange_tokens(inputs: Tensor, targets: Tensor, group: Any, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the windows of all ``ranks`` of ``group`` in their order: each (ranks × batch, time), sent as int32."""
    if ranks == 1:
        return inputs, targets
    own = torch.stack((inputs, targets)).to(torch.int32)
    gathered = gather_slices(own.reshape(-1), ranks * own.numel(), group, ranks).view(ranks, *own.shape)
    windows = gathered.to(inputs.dtype).transpose(0, 1).flatten(1, 2)
    return windows[0], windows[1]


def _is_split(parameter: Tensor) -> bool:
    return any(placement.is_shard() for placement in getattr(parameter, "placements", ()))


def _by_rank(weights: Tensor, ranks: int) -> Tensor:
    """Reorder (3 × width, …), query, key, value of all heads, by rank: query, key, value of its heads."""
    return weights.reshape(3, ranks, -1, *weights.shape[1:]).transpose(0, 1).reshape(weights.shape)


def _by_part(weights: Tensor, ranks: int) -> Tensor:
    """Undo :func:`_by_rank`."""
    return weights.reshape(ranks, 3, -1, *weights.shape[1:]).transpose(0, 1).reshape(weights.shape)


def _attend(attention: Any, heads: int) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of an attention of which this rank has ``heads``: (batch, time, width) to the same."""

    def forward(x: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (heads, -1)).transpose(1, 2) for part in attention.inward(x).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        together: Tensor = attention.outward(mixed.transpose(1, 2).flatten(2))
        return together

    return forward
