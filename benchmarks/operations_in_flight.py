"""Operations in flight: how many all_reduces of torch.distributed with gloo are under way at once, over 1000 km.

All_reduces of 64 KiB are begun together, 1, 2, 4 and 8 of them, and the next ones when all are done; over a long fiber
each takes its one-way delays and hardly anything else. With q slots, k of them take ceil(k / q) times as long as one.
Needs root and torch.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import testbed
from benchmarks.common import command, median, spread

TOPOLOGY = "longhaul-1000km"
TOGETHER = (1, 2, 4, 8)
MOST = 16
"""Slots that are told apart from any number."""

PROGRAM = """
import json, os, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.set_num_threads(1)
repeats, rounds = int(sys.argv[1]), 5
times = {}
for together in map(int, sys.argv[2:]):
    tensors = [torch.ones(16_384) for _ in range(together)]
    taken = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        for _ in range(rounds):  # without a barrier, which ranks leave at different times
            for work in [dist.all_reduce(it, async_op=True) for it in tensors]:
                work.wait()
        if repeat:  # the first makes connections
            taken.append((time.perf_counter() - began) / rounds)
    times[together] = taken
if dist.get_rank() == 0:
    print("TIMES " + json.dumps(times), flush=True)
dist.destroy_process_group()
"""


def slots(times_s: dict[int, float]) -> int | None:
    """Return the q that fits the times by the number of operations best; None for any number."""
    one_s = times_s[1]

    def wrong(q: int) -> float:
        return sum(math.log(it / (math.ceil(k / q) * one_s)) ** 2 for k, it in times_s.items())

    best = min(range(1, MOST + 1), key=wrong)
    return None if best >= max(times_s) else best


def measure(quick: bool) -> dict[str, Any]:
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(folder, "together.py")
        program.write_text(PROGRAM)
        topology = testbed.load(TOPOLOGY, {"sites.*.nodes": 2})
        with testbed.up(topology, name="in-flight", agents=False) as lab:
            repeats = "5" if quick else "20"
            job = lab.launch(
                [sys.executable, str(program), repeats, *map(str, TOGETHER)], directory=Path(folder), echo=said.append
            )
            if job.exit_status():
                raise SystemExit("the program failed:\n" + "\n".join(said[-20:]))
    line = next(it for it in said if "TIMES " in it)
    times = {int(k): it for k, it in json.loads(line.partition("TIMES ")[2]).items()}
    return {
        "times_s": {str(k): it for k, it in times.items()},
        "in_flight": slots({k: median(it) for k, it in times.items()}),
    }


def table(result: dict[str, Any]) -> str:
    one_s = median(result["times_s"]["1"])
    lines = ["| all_reduces at once | ms | times one |", "|---|---|---|"]
    for together, times_s in result["times_s"].items():
        shown = spread([1e3 * it for it in times_s], digits=1)
        lines.append(f"| {together} | {shown} | {median(times_s) / one_s:.2f} |")
    return "\n".join([*lines, "", f"Operations in flight that fit best: {result['in_flight'] or 'any number'}."])


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
