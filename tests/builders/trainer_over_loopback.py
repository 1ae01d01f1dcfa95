"""A whole job of the agents' trainer over loopback, without a lab: its records, checkpoints and planted bugs.

``train(folder, "diloco", {"every": 5}, broken="unsent:step=8")`` forks four ranks at two sites, each of which runs
``testbed_agents.train.train``, and judges their records by the strategy's twin.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# The first optimizer of a process imports it, which takes a second: once here, not in every rank.
import torch._dynamo
from testbed_agents import breakage, data
from testbed_agents.metrics import RankMetrics
from testbed_agents.model import Shape
from testbed_agents.records import Records
from testbed_agents.train import train as train_rank
from testbed_agents.training_job import Job, Seat

from testbed.core.checkers.checks import check
from testbed.core.records.check_record import read_checks
from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, gpt_tensors

SITES = ("a", "a", "b", "b")
LAYERS, WIDTH, CONTEXT, BATCH = 3, 32, 32, 2
BOUND_S = 40.0


@dataclass(frozen=True)
class Ended:
    """How each rank ended (status and the fingerprint of its parameters, or the error), and what the checkers say."""

    ranks: tuple[str, ...]
    holds: Mapping[str, bool | None]
    texts: tuple[str, ...]


def train(
    folder: Path,
    strategy: str,
    options: Mapping[str, Any],
    steps: int = 21,
    broken: str = "",
    told: int = 0,
    slow_s: float = 0.0,
    saves: bool = False,
    **job: Any,
) -> Ended:
    """Train by ``strategy``; ``options`` by the names of its constructor's arguments. ``broken``: as of ``breakage``.

    ``slow_s``: by how much the ranks of site b are later in each step. ``told``: the step in which rank 0 is told to
    stop, or with ``saves`` to save its state and leave; 0: never. With ``attempt=2, resume=(8, 1)`` a second attempt
    continues in the folder of the first one.
    """
    data.load(None)  # once, before ranks are forked
    of = strategies_built.twin_class(strategy)
    for rank in range(len(SITES)):
        (folder / "checkpoints" / f"rank-{rank}").mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Job(
        job="j1",
        world_size=len(SITES),
        master=("127.0.0.1", port),
        interface="lo",
        directory=folder,
        steps=steps,
        batch=BATCH,
        shape=Shape(layers=LAYERS, heads=2, width=WIDTH, context=CONTEXT),
        sites=SITES,
        strategy=strategy,
        options={it.argument: options.get(it.argument, it.default) for it in of.options},
        **{"timeout_s": 8.0, **job},
    )
    sys.stdout.flush()
    pids = [_forked(rank, made, broken, told, slow_s, saves) for rank in range(len(SITES))]
    until = time.monotonic() + BOUND_S
    for pid in pids:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    written = {it.argument: it.name for it in of.options}
    tensors = gpt_tensors(LAYERS, WIDTH, CONTEXT)
    layout = Layout(SITES, tensors, BATCH * CONTEXT, CONTEXT, WIDTH, LAYERS, steps, speeds=made.speeds)
    twin = strategies_built.make(strategy, {written[name]: value for name, value in options.items()}, layout)
    assert not twin.mistakes()
    checked = check([_log(folder, rank) for rank in range(len(SITES))], twin)
    return Ended(
        tuple(_end(folder, rank) for rank in range(len(SITES))),
        {it.id: it.holds for it in checked.checkers},
        tuple(finding.text for it in checked.checkers for finding in it.findings),
    )


def _forked(rank: int, job: Job, broken: str, told: int, slow_s: float, saves: bool) -> int:
    end = job.directory / f"rank-{rank}.end"
    end.unlink(missing_ok=True)
    if pid := os.fork():
        return pid
    try:
        if broken:
            os.environ[breakage.VARIABLE] = broken
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # of the fork, which ends here
        metrics = RankMetrics(site=SITES[rank], node="", rank=rank, torch_version=torch.__version__)
        records = Records(job.directory / f"rank-{rank}.jsonl")
        seat = Seat(rank, f"node-{rank}", SITES[rank])
        stop, save, begun = threading.Event(), threading.Event(), itertools.count(1)

        def slower_by() -> float:  # asked at the beginning of each step
            if next(begun) == told and rank == 0:
                (save if saves else stop).set()
            if SITES[rank] == "b":
                time.sleep(slow_s)
            return 0.0

        outcome = train_rank(job, seat, records, metrics, stop, slower_by=slower_by, save=save.is_set)
        end.write_text(f"{outcome.status} {outcome.fingerprint}")
    except BaseException as error:
        end.write_text(repr(error))
    finally:
        os._exit(0)


def _end(folder: Path, rank: int) -> str:
    end = folder / f"rank-{rank}.end"
    return end.read_text() if end.exists() else "killed"


def _log(folder: Path, rank: int) -> Any:
    file = folder / f"rank-{rank}.checks.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    # Of a rank that was killed, the last line may be cut off.
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    log, malformed = read_checks(rank, whole)
    assert malformed == 0
    return log
