"""Held-out loss of the outer parameters after 300 steps, by strategy, against ddp of the same seed: toy scale.

The strategies as a library, outside a lab: forked ranks over loopback. Same model (478,272 parameters), data, global
batch (16 windows of 64 bytes, in two streams of 8), inner optimizer and seeds for all; the small GPT really computes.
Ranks that share a stream take equal parts of each draw, so that jobs of 2 and of 4 ranks see the same windows. A loss
does not depend on the load; only the strategies whose sites go at their own paces (async-diloco, decoupled) depend on
it, because it decides the order of pushes. Takes about 15 s a run on two idle cores, of which there are 75: in parts,
by ``--json FILE --seconds 500``, repeated. Needs torch.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

# The first optimizer of a process imports it, which takes a second: once here, not in every rank.
import torch._dynamo
import torch.distributed as dist
from testbed_agents import strategies
from testbed_agents.training import data
from testbed_agents.training.evaluation import Evaluation, hold_out
from testbed_agents.training.model import GPT, Shape, parameter_count

from benchmarks.common import Parts, command_by_parts

STEPS, QUICK_STEPS, SEEDS = 300, 20, (0, 1, 2)
SHAPE, RATE = Shape(), 1e-3
STREAMS, STREAM_BATCH = 2, 8
SITES = ("a", "b")
MORE_SITES = {"hierarchical": ("a", "a", "b", "b"), "multi-tier": ("a", "b", "c", "d")}
"""Of strategies for which one rank at each of two sites would be another one."""
BOUND_S = 570.0
BASE = "ddp"
STREAMING = {"every": 20, "fragments": 4, "overlap": 2}

WAYS: dict[str, tuple[str, Mapping[str, Any]]] = {
    BASE: ("ddp", {}),
    "ddp, 16 bits": ("ddp", {"bits": 16}),
    "ddp, accumulate 4": ("ddp", {"accumulate": 4}),
    "hierarchical": ("hierarchical", {}),
    **{f"local-sgd, H = {h}": ("local-sgd", {"every": h}) for h in (10, 20, 50)},
    **{f"diloco, H = {h}": ("diloco", {"every": h}) for h in (10, 20, 50)},
    **{f"diloco, H = {h}, momentum 0.9": ("diloco", {"every": h, "outer_momentum": 0.9}) for h in (10, 20, 50)},
    **{f"streaming-diloco, {bits} bits": ("streaming-diloco", {**STREAMING, "bits": bits}) for bits in (32, 8, 4)},
    "sparse-loco, H = 10": ("sparse-loco", {"every": 10}),
    "sparse-loco, H = 10, top 512": ("sparse-loco", {"every": 10, "top": 512}),
    "multi-tier, H = 10, H' = 50": ("multi-tier", {"every": 10, "every_regions": 50}),
    "async-diloco, H = 10": ("async-diloco", {"every": 10}),
    "async-diloco, H = 20": ("async-diloco", {"every": 20}),
    "decoupled, H = 20": ("decoupled", {"every": 20}),
    "decoupled, H = 20, P = 4, 4 bits": ("decoupled", {"every": 20, "fragments": 4, "bits": 4}),
    "pipeline": ("pipeline", {}),
}
"""Strategy and arguments of its constructor, by what the table says. Not here: fsdp, hsdp and tensor, which are ddp up
to rounding (tests/unit/agents/strategies), and moe, which is another model."""


def run(way: str, seed: int, steps: int) -> dict[str, Any]:
    """Train one way in forked ranks; return the held-out loss of each site's outer parameters. Raises RuntimeError."""
    sites = MORE_SITES.get(WAYS[way][0], SITES)
    context, began = multiprocessing.get_context("fork"), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ends, ranks = [], []
        for rank in range(len(sites)):
            mine, theirs = context.Pipe(duplex=False)
            arguments = (rank, sites, *WAYS[way], seed, steps, str(Path(folder, "store")), theirs)
            ranks.append(context.Process(target=_rank, args=arguments, daemon=True))
            ranks[-1].start()
            theirs.close()
            ends.append(mine)
        try:
            found = [_answer(rank, end, began + BOUND_S) for rank, end in enumerate(ends)]
        finally:
            for process in ranks:
                process.kill()
                process.join()
    losses = {
        site: sum(loss * count for loss, count in of) / sum(count for _, count in of)
        for site in dict.fromkeys(sites)
        if (of := [it for it, at in zip(found, sites, strict=True) if at == site and it[0] is not None])
    }
    return {"losses": losses, "took_s": round(time.monotonic() - began, 1)}


def _answer(rank: int, end: Any, until: float) -> tuple[float | None, int]:
    try:
        if end.poll(max(0.0, until - time.monotonic())):
            answer: tuple[float | None, int] = end.recv()
            return answer
    except EOFError:
        pass
    raise RuntimeError(f"rank {rank} failed, or did not end within {BOUND_S:g} s")


def _rank(
    rank: int,
    sites: tuple[str, ...],
    name: str,
    options: Mapping[str, Any],
    seed: int,
    steps: int,
    store: str,
    end: Any,
) -> None:
    """Train as one rank, as any program may with an initialised process group, and send (loss, windows)."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = timedelta(seconds=BOUND_S)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, len(sites)), rank=rank, world_size=len(sites), timeout=limit
    )
    corpus, held_out = hold_out(data.load(None), SHAPE.context)
    sharing = len(sites) // STREAMS
    stream, part = divmod(rank, sharing)
    windows = data.Windows(corpus, batch=STREAM_BATCH, context=SHAPE.context, seed=seed, rank=stream)
    torch.manual_seed(seed)
    model = GPT(SHAPE)
    assert parameter_count(model) == 478_272
    context = strategies.Context.of_default_group(sites[rank], BOUND_S)
    context.steps = steps
    mates = context.groups.members[sites[rank]]
    evaluation = Evaluation(SHAPE, held_out, (context.groups.local_rank, len(mates)))
    strategy = strategies.make(name, options)
    optimizer = torch.optim.AdamW(strategy.prepare(model, context), lr=RATE)
    for step in range(1, steps + 1):
        context.begin(step)
        inputs, targets = windows.draw()
        strategy.run(inputs[part::sharing], targets[part::sharing])
        if strategy.updates(step):
            optimizer.step()
            optimizer.zero_grad()
        strategy.after_step(step)
        if step == steps:
            strategy.finish(step)
    found = evaluation.run(strategy, steps)
    dist.barrier()  # no rank leaves while another may still need it
    end.send((found.get("heldout_loss"), found.get("windows", 0)))


def loss_of(runs: Mapping[str, Any], way: str, seed: int) -> float | None:
    """Return the mean over the sites that have a loss: where parameters are equal at all of them, any one's."""
    losses = runs.get(f"{way} | {seed}", {}).get("losses", {})
    return statistics.fmean(losses.values()) if losses else None


def table(result: Mapping[str, Any]) -> str:
    """Return the loss of ddp by seed, and of all others the paired difference: of each seed, mean and half spread."""
    runs = result["runs"]
    lines = [
        "| toy scale | " + " | ".join(f"seed {seed}" for seed in SEEDS) + " | mean (least to greatest) |",
        "|---|" + "---|" * (len(SEEDS) + 1),
    ]
    for way in WAYS:
        own = [loss_of(runs, way, seed) for seed in SEEDS]
        base = [loss_of(runs, BASE, seed) for seed in SEEDS]
        if way == BASE:
            lines.append(f"| {way}: the loss itself | " + " | ".join("–" if it is None else f"{it:.3f}" for it in own))
            known = [it for it in own if it is not None]
            lines[-1] += f" | {statistics.fmean(known):.3f} |" if known else " | – |"
            continue
        pairs = [(a, b) for a, b in zip(own, base, strict=True)]
        shown = [None if a is None or b is None else a - b for a, b in pairs]
        found = [it for it in shown if it is not None]
        mean = f"{statistics.fmean(found):+.3f} ({min(found):+.3f} to {max(found):+.3f})" if found else "–"
        lines.append(f"| {way} | " + " | ".join("–" if it is None else f"{it:+.3f}" for it in shown) + f" | {mean} |")
    return "\n".join(lines)


def measure(parts: Parts) -> None:
    data.load(None)  # once, before ranks are forked
    for seed in SEEDS[:1] if parts.quick else SEEDS:
        for way in WAYS:
            key = f"{way} | {seed}"
            if not parts.wanted(key):
                continue
            try:
                parts.keep(key, run(way, seed, QUICK_STEPS if parts.quick else STEPS))
            except RuntimeError as error:
                print(f"{key}: {error}", file=sys.stderr)
                continue
            print(f"{key}: {parts.results[key]}", flush=True)


if __name__ == "__main__":
    sys.exit(command_by_parts(__doc__, measure, table, root=False))
