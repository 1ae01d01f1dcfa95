"""torch.distributed with NCCL, one GPU a rank. Written from NCCL's documentation and never run, for lack of GPUs.

NCCL prefers shared memory, peer-to-peer copies and InfiniBand to the fiber; all three are disabled (NCCL user guide,
"Environment variables"). torch's watchdog aborts a collective that fails after the timeout, asynchronously; blocking
waits turn this into an exception of the call.
"""

from __future__ import annotations

import os

import torch

from testbed_agents.adapters.helper import World, everything, main
from testbed_agents.adapters.torch_gloo import TorchDistributed


class Nccl(TorchDistributed):
    backend = "nccl"
    # Rings and trees give the same bits on all ranks, but NCCL does not guarantee it.
    offers = everything()

    def join(self, world: World) -> None:
        os.environ |= {
            "NCCL_SOCKET_IFNAME": f"={world.interface}",  # "=": an exact name, not a prefix
            "NCCL_IB_DISABLE": "1",
            "NCCL_P2P_DISABLE": "1",
            "NCCL_SHM_DISABLE": "1",
            "TORCH_NCCL_BLOCKING_WAIT": "1",
        }
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(self.device)
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        self.version = f"{torch.__version__}, NCCL {'.'.join(map(str, nccl))}"
        super().join(world)


if __name__ == "__main__":
    main(Nccl())
