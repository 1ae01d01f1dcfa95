"""torchft's ProcessGroupGloo: gloo that is configured again, with other ranks or the same, after an error.

Only the process group, without torchft's Manager and lighthouse: here the testbed decides which ranks remain. It has no
reduce_scatter and no reduce (torchft/process_group.py). Its traps are gloo's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torchft import ProcessGroupGloo  # type: ignore[import-not-found, unused-ignore]

from testbed_agents.adapters.helper import WORLD, Call, Offer, World, main
from testbed_agents.adapters.torch_gloo import REDUCTIONS, TensorAdapter


class TorchFt(TensorAdapter):
    offers: Mapping[str, Offer] = {
        "all_reduce": Offer(reductions=("sum", "max", "avg"), same_bits=True),
        "all_gather": Offer(),
        "broadcast": Offer(),
        "all_to_all": Offer(),
        "send": Offer(),
        "barrier": Offer(),
    }
    groups = True
    rebuilds = True

    def __init__(self) -> None:
        self.library, self.version = "torchft ProcessGroupGloo", f"{version('torchft')}, torch {torch.__version__}"
        self._store: Any = None
        self._address, self._rank = "", 0
        self._timeout = timedelta()
        self._groups: dict[str, Any] = {}

    def join(self, world: World) -> None:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = world.interface
        self._timeout = timedelta(seconds=world.timeout_s)
        self._rank = world.rank
        self._address = f"{world.master}:{world.port}"
        if world.rank == 0:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                world.master, world.port, is_master=True, wait_for_workers=False, timeout=self._timeout
            )
        everyone = self._groups.pop(WORLD, None)
        self.leave()
        self._groups = {WORLD: everyone or ProcessGroupGloo(timeout=self._timeout)}
        self._configure(WORLD, tuple(range(world.size)))

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        if self._rank in ranks:
            self._groups[name] = ProcessGroupGloo(timeout=self._timeout)
            self._configure(name, ranks)

    def _configure(self, name: str, ranks: tuple[int, ...]) -> None:
        group = self._groups[name]
        group.set_timeout(self._timeout)
        group.configure(f"{self._address}/{name}", f"rank-{self._rank}", ranks.index(self._rank), len(ranks))

    def leave(self) -> None:
        for group in self._groups.values():
            group.abort(errored=False)

    def all_reduce(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        options = dist.AllreduceOptions()
        # ReduceOp(...): the stubs of torch before 2.14 take no bare RedOpType here.
        options.reduceOp = dist.ReduceOp(REDUCTIONS[call.reduction])
        self._groups[call.group].allreduce([given], options).wait()
        return given

    def all_gather(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        blocks = list(room.view(call.size, -1).unbind())
        options = distributed_c10d.AllgatherOptions()  # type: ignore[attr-defined]
        self._groups[call.group].allgather([blocks], [given], options).wait()
        return room

    def broadcast(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        buffer = given if call.rank == call.root else room
        options = dist.BroadcastOptions()
        options.rootRank = call.root
        self._groups[call.group].broadcast([buffer], options).wait()
        return buffer

    def all_to_all(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
        options = dist.AllToAllOptions()
        self._groups[call.group].alltoall_base(room, given, [], [], options).wait()
        return room

    def send(self, call: Call, given: torch.Tensor, room: torch.Tensor) -> torch.Tensor | None:
        if call.rank == call.root:
            self._groups[call.group].send([given], call.to, 0).wait()
            return None
        self._groups[call.group].recv([room], call.root, 0).wait()
        return room

    def barrier(self, call: Call) -> None:
        self._groups[call.group].barrier().wait()


if __name__ == "__main__":
    main(TorchFt())
