"""A training script as anyone's: torch, DistributedDataParallel, a line of output every few steps.

It knows nothing of the testbed: ``torchrun --nproc-per-node 4 examples/own_script/train.py`` runs it as well.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=256, help="width of the network, and so the bytes of a step")
    parser.add_argument("--step-ms", type=float, default=50.0, help="stands for the computing of a larger model")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")  # rank, world size and master come from the environment
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = arguments.width
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())

    for step in range(1, arguments.steps + 1):
        batch = torch.randn(16, width)
        loss = nn.functional.mse_loss(model(batch), batch.mean(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()  # the sum over all ranks crosses the fibers here
        optimizer.step()
        time.sleep(arguments.step_ms / 1e3)
        if step % 2 == 0:
            print(f"step {step}/{arguments.steps} loss {loss.item():.4f}", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
