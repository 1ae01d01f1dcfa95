"""fsdp: parameters, gradients and AdamW's moments sharded over all ranks, by torch's fully_shard.

Each decoder block is gathered before its forward pass, freed after it, gathered again before its backward pass, and its
gradient is reduce-scattered; what lies outside the blocks is gathered once. Tensors are sharded along their first
dimension, padded to a multiple of the ranks. Zhao et al. 2023, PyTorch FSDP, arXiv:2304.11277.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from testbed_agents.groups import Groups
from testbed_agents.model import local
from testbed_agents.strategies.strategy import Context, Strategy

__all__ = ["Fsdp"]

if torch.__version__ < "2.8":
    raise ImportError(f"expected torch 2.8 or newer, which shards on CPUs, got {torch.__version__}")
from torch.distributed.fsdp import fully_shard


class Fsdp(Strategy):
    """Sharded over all ranks: no rank has a whole model."""

    def prepare(self, model: nn.Module, context: Context) -> list[nn.Parameter]:
        self.context, self.module = context, model
        mesh = self._mesh(context.groups)
        blocks: Any = model.blocks
        for block in blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return list(model.parameters())

    def _mesh(self, groups: Groups) -> DeviceMesh:
        world: Any = groups.world
        return DeviceMesh.from_group(world, "cpu", mesh_dim_names=("rank",))

    def run(self, inputs: Tensor, targets: Tensor) -> Tensor:
        loss = self.context.loss(self.module(inputs), targets)
        self.context.before_backward(loss.detach())
        loss.backward()  # type: ignore[no-untyped-call]
        # Blocks before the last one are reduced while backward runs, and it waits for each: `waited_s` has that.
        self.context.gradients_ready()
        return loss.detach()

    def fingerprints(self) -> dict[str, Iterable[Tensor]]:
        return {"shard": [local(parameter.detach()) for parameter in self.module.parameters()]}

    def outer_parameters(self) -> list[Tensor]:
        """Return the whole parameters, gathered over the ranks that share them: a collective call of all ranks."""
        with torch.no_grad():
            sharded: Iterable[Any] = self.module.parameters()
            return [parameter.full_tensor() for parameter in sharded]
