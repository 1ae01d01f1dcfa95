"""The ranks of `watched_group`: the bare script, or the agents' trainer. Imports torch, so limit its threads before."""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import torch
import torch.distributed as dist
from testbed_agents.exchange.gradients import FULL_ENOUGH, LEAST_BUCKET_BYTES
from testbed_agents.metrics import RankMetrics
from testbed_agents.model import GPT, Shape
from testbed_agents.records import Records
from testbed_agents.train import Trainer
from testbed_agents.training_job import Control, Job, Seat

from benchmarks import bare_training
from benchmarks.cost_place import METRICS_PORT, WARM_UP, Place


def bare(
    words: argparse.Namespace, places: list[Place], rank: int, port: int, folder: Path, text: Path
) -> dict[str, Any]:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = places[rank].interface
    address = f"tcp://{places[0].address}:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=len(places))
    steps = str(WARM_UP + words.steps)
    argv = ["--text", str(text), "--steps", steps, "--bucket-mib", str(_bucket_mib(words))]
    found = bare_training.train(bare_training.parsed([*argv, "--asleep", str(words.asleep)]), rank)
    dist.barrier()  # no rank leaves while another may still need it
    return found


def _bucket_mib(words: argparse.Namespace) -> float:
    """Return the size of a bucket that the agents tell torch."""
    payload = 4 * (bare_training.ELEMENTS if words.asleep else sum(it.numel() for it in GPT(Shape()).parameters()))
    least = 0 if words.asleep else min(payload, LEAST_BUCKET_BYTES)
    return float(max(FULL_ENOUGH * payload / words.buckets, least) / 2**20)


class _Timed(RankMetrics):
    """Notes t and CPU of the process at the end of each step, by getrusage(2)."""

    def __init__(self, rank: int) -> None:
        super().__init__(site="", node="", rank=rank, torch_version=torch.__version__)
        self.steps: list[tuple[float, float]] = []

    def step_done(self, **values: Any) -> None:
        super().step_done(**values)
        used = getrusage(RUSAGE_SELF)
        self.steps.append((time.monotonic(), used.ru_utime + used.ru_stime))


def job(
    words: argparse.Namespace, places: list[Place], rank: int, port: int, folder: Path, text: Path
) -> dict[str, Any]:
    metrics = _Timed(rank)
    metrics.serve("127.0.0.1", METRICS_PORT + rank)
    (folder / "attempt").write_text("1")
    asleep = {"seconds": words.asleep, "elements": bare_training.ELEMENTS, "layers": bare_training.SLEEPING_LAYERS}
    its = Job(
        job=f"cost{port}",
        world_size=len(places),
        master=(places[0].address, port),
        interface=places[rank].interface,
        directory=folder,
        steps=WARM_UP + words.steps,
        data=str(text),
        sites=tuple(place.site for place in places),
        options={"buckets": words.buckets},
        compute=asleep if words.asleep else None,
    )
    records = Records(folder / f"rank-{rank}.jsonl", its.fence)
    seat = Seat(rank, places[rank].site, places[rank].site)
    if words.profile and rank == 0:
        profile = cProfile.Profile(time.thread_time)
        outcome = profile.runcall(Trainer(its, seat, records, metrics, Control()).run)
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(45)
    else:
        outcome = Trainer(its, seat, records, metrics, Control()).run()
    return {"steps": metrics.steps, "parameters": outcome.fingerprint}
