"""DiLoCo by torchft: each node is a replica group, and a cut of all fibers costs a group, not the job.

Local steps are taken alone; every 20 steps the groups average what they have learned (an outer step), over the fibers.
Install torchft where torch is: pip install torchft-nightly
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

RANK, WORLD_SIZE, NODE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["TESTBED_NODE"]
LIGHTHOUSE = f"http://{os.environ['MASTER_ADDR']}:29999"
# torchft counts ranks inside a replica group, and each group here is one process, which serves the group's store.
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR=NODE, TORCHFT_LIGHTHOUSE=LIGHTHOUSE)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torchft import Manager, ProcessGroupGloo  # noqa: E402
from torchft.local_sgd import DiLoCo  # noqa: E402

EVERY = 20
"""Local steps between outer steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-ms", type=float, default=50.0, help="stands for the computing of a larger model")
    arguments = parser.parse_args()

    with contextlib.ExitStack() as stack:
        if RANK == 0:  # it knows which groups are there: torchft's own program, beside the first rank
            program = Path(sys.executable).with_name("torchft_lighthouse")
            options = ["--min_replicas", "1", "--join_timeout_ms", "10000", "--heartbeat_timeout_ms", "1000"]
            lighthouse = subprocess.Popen([program, *options, "--bind", LIGHTHOUSE.removeprefix("http://")])
            stack.callback(lighthouse.terminate)
        train(arguments.steps, arguments.step_ms / 1e3)


def train(steps: int, step_s: float) -> None:
    store = dist.TCPStore(NODE, int(os.environ["MASTER_PORT"]), 1, is_master=True, wait_for_workers=False)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 256))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=8)),
        load_state_dict=lambda state: (model.load_state_dict(state["model"]), inner.load_state_dict(state["inner"])),
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        min_replica_size=1,
        use_async_quorum=False,  # DiLoCo needs it
        replica_id=f"group-{RANK}",
        hostname=NODE,  # where other groups fetch a state from, by its name on the fabric
        timeout=timedelta(seconds=8),
        quorum_timeout=timedelta(seconds=60),
        connect_timeout=timedelta(seconds=30),
    )
    torch.manual_seed(RANK)
    with DiLoCo(manager, [model], inner, outer, sync_every=EVERY):
        # Outer steps are the job's own count: a group that was away takes the others' state, and their count with it.
        taken = 0
        while manager.current_step() * EVERY < steps:
            batch = torch.randn(16, 256)
            loss = nn.functional.mse_loss(model(batch), batch.flip(1))
            inner.zero_grad()
            loss.backward()
            inner.step()  # each EVERY-th step waits for the other groups
            time.sleep(step_s)
            taken += 1
            step = manager.current_step() * EVERY + taken % EVERY
            print(f"step {step}: loss {loss.item():.4f}, {manager.num_participants()} groups", flush=True)
    manager.shutdown(wait=False)
    del store


if __name__ == "__main__":
    main()
