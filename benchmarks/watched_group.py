"""What the watched process group and the records cost a step, in interleaved pairs (docs/checkers.md).

    python -m benchmarks.watched_group [--ranks 2] [--pairs 10] [--steps 10]

Ranks are forked and exchange over loopback. Each trains the default model by DDP, alternately over a plain gloo group
without any records, and over a watched one with all that a job records: operations, fingerprints, traces. A pair is so
many steps of each, one after the other, so both see the same load of the machine. Printed are medians over the pairs
and the ranks: wall time and CPU seconds of a step, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watched_group", description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10, help="steps of each kind in a pair (default: 10)")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        pids = []
        for rank in range(words.ranks):
            pid = os.fork()
            if pid == 0:
                try:
                    _rank(rank, words, port, Path(folder))
                finally:
                    os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        measured = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(words.ranks)]
    load = os.getloadavg()[0]
    print(f"{words.ranks} ranks, {words.pairs} pairs of {words.steps} steps, load {load:.1f}")
    for index, what in enumerate(("wall", "CPU")):
        plain, watched, ratios = [], [], []
        for of_rank in measured:
            for one, other in of_rank:
                plain.append(one[index])
                watched.append(other[index])
                ratios.append(other[index] / one[index])
        medians = [1e3 * statistics.median(each) for each in (plain, watched)]
        quartiles = statistics.quantiles(ratios, n=4)
        print(
            f"{what}: plain {medians[0]:.2f} ms, watched and recorded {medians[1]:.2f} ms a step;"
            f" paired ratio {statistics.median(ratios):.4f} (quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f})"
        )


def _rank(rank: int, words: Any, port: int, folder: Path) -> None:
    import torch
    import torch.distributed as dist
    from testbed_agents import watched
    from testbed_agents.bucketed_gradients import BucketedGradients, mean_over
    from testbed_agents.check_log import Checks
    from testbed_agents.groups import Groups
    from testbed_agents.model import GPT, Shape
    from testbed_agents.records import Records
    from testbed_agents.strategies import Context

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", port, words.ranks, is_master=rank == 0)
    limit = timedelta(seconds=60)
    dist.init_process_group(watched.BACKEND, store=store, rank=rank, world_size=words.ranks, timeout=limit)
    context = Context(Groups(rank, ("here",) * words.ranks))

    class Training:
        """One model, its optimizer and group."""

        outer_version = 0

        def __init__(self, backend: str) -> None:
            torch.manual_seed(0)
            self.model = GPT(Shape(context=64))
            group = dist.new_group(range(words.ranks), backend=backend, group_desc=f"of {backend}")
            self.ddp = BucketedGradients(self.model, context, group, mean_over(group, words.ranks)).wrapped
            self.optimizer = torch.optim.AdamW(self.model.parameters())

        def fingerprints(self) -> dict[str, list[torch.Tensor]]:
            return {"parameters": list(self.model.parameters())}

        def steps(self, checks: Checks | None, first: int) -> tuple[float, float]:
            dist.barrier()
            t, cpu = time.monotonic(), time.process_time()
            for step in range(first, first + words.steps):
                if checks:
                    checks.begin(step)
                inputs = torch.randint(256, (4, 64))
                context.loss(self.ddp(inputs), inputs).backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                if checks:
                    checks.end()
            return (time.monotonic() - t) / words.steps, (time.process_time() - cpu) / words.steps

    plain, recorded = Training("gloo"), Training(watched.BACKEND)
    checks = Checks(
        Records(folder / f"rank-{rank}.checks.jsonl"),
        rank=rank,
        world_size=words.ranks,
        strategy=recorded,
        optimizer=recorded.optimizer,
        seed=0,
        first=1,
        last=10**9,
        also_every=0,
        timeout_s=60.0,
    )

    def watch(step: int) -> tuple[float, float]:
        watched.observe(checks.operations)
        taken = recorded.steps(checks, step)
        watched.observe(None)
        return taken

    found = []
    for pair in range(-1, words.pairs):  # the first one warms up
        step = 2 + (pair + 1) * words.steps
        if pair % 2:
            both = (plain.steps(None, step), watch(step))
        else:
            later = watch(step)
            both = (plain.steps(None, step), later)
        if pair >= 0:
            found.append(both)
    checks.close()
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main()
