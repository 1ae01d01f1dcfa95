"""An ordinary torch.distributed program: independent of the testbed, it runs under torchrun just as well.

    testbed launch -- .venv/bin/python examples/torch_allreduce.py
    torchrun --nproc-per-node 4 examples/torch_allreduce.py

Sum a tensor over all ranks several times, print how long that took, and check the sum.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floats", type=int, nargs="+", default=[1, 1_000, 1_000_000], help="sizes of the tensor")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()

    dist.init_process_group("gloo")  # rank, world size and master come from the environment
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} on {os.uname().nodename}", flush=True)

    for floats in arguments.floats:
        took_s = []
        for _ in range(arguments.repeats):
            tensor = torch.full((floats,), float(rank + 1))
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            took_s.append(time.perf_counter() - began)
            expected = world_size * (world_size + 1) / 2
            if not torch.all(tensor == expected):
                raise SystemExit(f"rank {rank}: wrong sum: expected {expected}, got {tensor[:4].tolist()}…")
        if rank == 0:
            print(f"all_reduce of {floats} floats: {statistics.median(took_s) * 1e3:.2f} ms (median)", flush=True)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
