"""torch.distributed with gloo.

Traps: without GLOO_SOCKET_IFNAME gloo uses the address that the host's name resolves to, usually 127.0.0.1. Its timeout
applies to each wait inside an operation, not to the operation. After an error the content of the tensor is undefined.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from testbed_agents.adapters.helper import TYPES, WORLD, Adapter, Array, Call, Unsupported, World, everything, main

REDUCTIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "avg": dist.ReduceOp.AVG}


class TensorAdapter(Adapter):
    """Buffers are tensors on ``device``; on the CPU they share the memory of the arrays."""

    device = torch.device("cpu")

    def place(self, call: Call, array: Array) -> torch.Tensor:
        if call.type == "bfloat16":
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(self.device)
        return torch.from_numpy(array).to(self.device)

    def fetch(self, call: Call, buffer: torch.Tensor) -> Array:
        if call.type == "bfloat16":
            buffer = buffer.view(torch.int16)
        return buffer.cpu().numpy().view(TYPES[call.type])


class TorchDistributed(TensorAdapter):
    """Any backend of torch.distributed."""

    backend = ""
    groups = True
    rebuilds = True

    def __init__(self) -> None:
        self.library, self.version = f"torch {self.backend}", torch.__version__
        self._timeout = timedelta()
        self._groups: dict[str, Any] = {}  # for groups of other ranks, a placeholder

    def join(self, world: World) -> None:
        torch.set_num_threads(1)
        self.leave()
        self._timeout = timeout = timedelta(seconds=world.timeout_s)
        store = dist.TCPStore(  # type: ignore[attr-defined]
            world.master, world.port, world.size, is_master=world.rank == 0, timeout=timeout
        )
        dist.init_process_group(self.backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout)
        self._groups = {WORLD: dist.group.WORLD}

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        self._groups[name] = dist.new_group(list(ranks), timeout=self._timeout)

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    def perform(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor | None:
        try:
            output: torch.Tensor | None = super().perform(call, given, room)
        except RuntimeError as error:
            if "Cannot use ReduceOp.AVG" in str(error):  # gloo of torch before 2.8
                raise Unsupported(call.reduction) from error
            raise
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # NCCL's calls return once queued
        return output

    def all_reduce(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(given, REDUCTIONS[call.reduction], group=self._groups[call.group])
        return given

    def reduce_scatter(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        dist.reduce_scatter_tensor(room, given, REDUCTIONS[call.reduction], group=self._groups[call.group])
        return room

    def all_gather(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        dist.all_gather_into_tensor(room, given, group=self._groups[call.group])
        return room

    def broadcast(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        buffer = given if call.rank == call.root else room
        dist.broadcast(buffer, call.ranks[call.root], group=self._groups[call.group])
        return buffer

    def reduce(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor | None:
        dist.reduce(given, call.ranks[call.root], REDUCTIONS[call.reduction], group=self._groups[call.group])
        return given if call.rank == call.root else None

    def all_to_all(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        dist.all_to_all_single(room, given, group=self._groups[call.group])
        return room

    def send(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor | None:
        if call.rank == call.root:
            dist.send(given, call.ranks[call.to], group=self._groups[call.group])
            return None
        dist.recv(room, call.ranks[call.root], group=self._groups[call.group])
        return room

    def barrier(self, call: Call) -> None:
        dist.barrier(group=self._groups[call.group])


class TorchGloo(TorchDistributed):
    backend = "gloo"
    offers = everything(same_bits=True)

    def join(self, world: World) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = world.interface
        super().join(world)


if __name__ == "__main__":
    main(TorchGloo())
