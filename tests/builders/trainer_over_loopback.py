"""A whole job of the agents' trainer over loopback, without a lab: its records, checkpoints and planted bugs.

``train(folder, "diloco", {"every": 5}, broken="unsent:step=8")`` forks four ranks at two sites, each of which runs
``testbed_agents.train.Trainer``, and judges their records by the strategy's twin.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# The first optimizer of a process imports it, which takes a second: once here, not in every rank.
import torch._dynamo
from testbed_agents import data
from testbed_agents.fork_server import planted_errors
from testbed_agents.metrics import RankMetrics
from testbed_agents.model import Shape
from testbed_agents.records import Records
from testbed_agents.train import Trainer
from testbed_agents.training_job import Control, Job, Seat

from builders.replica_jobs import twin_of
from testbed.core.checkers.checks import check
from testbed.core.records.check_record import CheckLog, read_checks
from testbed.core.records.rank_log import read_rank
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

    def check(self, status: str = "ok") -> None:
        """Check that all ranks ended by ``status`` with equal parameters, and that each checker holds."""
        assert {rank.partition(" ")[0] for rank in self.ranks} == {status}, self.ranks
        assert len(set(self.ranks)) == 1, "their parameters differ"
        assert set(self.holds.values()) == {True}, self.texts


def train(
    folder: Path,
    strategy: str,
    options: Mapping[str, Any],
    steps: int = 21,
    broken: str = "",
    stops_at: int = 0,
    slow_s: float = 0.0,
    saves: bool = False,
    sites: Sequence[str] = SITES,
    **job: Any,
) -> Ended:
    """Train by ``strategy``; ``options`` by the names of its constructor's arguments. ``broken``: as of TESTBED_BREAK.

    ``sites``: the site of each rank.
    ``slow_s``: by how much the ranks of site b are later in each step. ``stops_at``: the step in which rank 0 is
    ordered to stop, or with ``saves`` to save its state and leave; 0: never. With ``attempt=2, resume=(8, 1)``
    a second attempt continues in the folder of the first one.
    """
    data.load(None)  # once, before ranks are forked
    accepted = strategies_built.twin_class(strategy).options
    for rank in range(len(sites)):
        (folder / "checkpoints" / f"rank-{rank}").mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Job(
        job="j1",
        world_size=len(sites),
        master=("127.0.0.1", port),
        interface="lo",
        directory=folder,
        steps=steps,
        batch=BATCH,
        shape=Shape(layers=LAYERS, heads=2, width=WIDTH, context=CONTEXT),
        sites=tuple(sites),
        strategy=strategy,
        options={option.argument: options.get(option.argument, option.default) for option in accepted},
        **{"timeout_s": 8.0, **job},
    )
    sys.stdout.flush()
    pids = [_forked(rank, made, broken, stops_at, slow_s, saves) for rank in range(len(sites))]
    until = time.monotonic() + BOUND_S
    for pid in pids:
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
    tensors = gpt_tensors(LAYERS, WIDTH, CONTEXT)
    layout = Layout(tuple(sites), tensors, BATCH * CONTEXT, CONTEXT, WIDTH, LAYERS, steps, speeds=made.speeds)
    checks = check_logs(_lines(folder / f"rank-{rank}.checks.jsonl") for rank in range(len(sites)))
    logs = [read_rank(rank, _lines(folder / f"rank-{rank}.jsonl"))[0] for rank in range(len(sites))]
    checked = check(checks, twin_of(strategy, options, layout), logs)
    return Ended(
        tuple(_end(folder, rank) for rank in range(len(sites))),
        {checker.id: checker.holds for checker in checked.checkers},
        tuple(finding.text for checker in checked.checkers for finding in checker.findings),
    )


def _forked(rank: int, job: Job, broken: str, stops_at: int, slow_s: float, saves: bool) -> int:
    end = job.directory / f"rank-{rank}.end"
    end.unlink(missing_ok=True)
    if pid := os.fork():
        return pid
    try:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # of the fork, which ends here
        metrics = RankMetrics(site=job.sites[rank], node="", rank=rank, torch_version=torch.__version__)
        records = Records(job.directory / f"rank-{rank}.jsonl")
        seat = Seat(rank, f"node-{rank}", job.sites[rank])
        begun = itertools.count(1)

        class Scripted(Control):
            @property
            def slower_by(self) -> float:  # type: ignore[override]  # read at the beginning of each step
                if next(begun) == stops_at and rank == 0:
                    (self.save if saves else self.stop).set()
                if job.sites[rank] == "b":
                    time.sleep(slow_s)
                return 0.0

        planted = planted_errors().plant(rank, broken) if broken and job.attempt == 1 else None
        outcome = Trainer(job, seat, records, metrics, Scripted(), planted=planted).run()
        end.write_text(f"{outcome.status} {outcome.fingerprint}")
    except BaseException as error:
        end.write_text(repr(error))
    finally:
        os._exit(0)


def _end(folder: Path, rank: int) -> str:
    end = folder / f"rank-{rank}.end"
    return end.read_text() if end.exists() else "killed"


def _lines(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text().splitlines() if file.exists() else []
    # Of a rank that was killed, the last line may be cut off.
    return [json.loads(line) for line in lines if line.endswith("}")]


def check_logs(ranks: Iterable[Iterable[Mapping[str, Any]]]) -> list[CheckLog]:
    """Return the logs of ranks whose records are well-formed, each."""
    logs = [read_checks(rank, lines) for rank, lines in enumerate(ranks)]
    assert not any(malformed for _, malformed in logs)
    return [log for log, _ in logs]
