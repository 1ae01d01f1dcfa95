"""The trainer: one rank of a DistributedDataParallel job over gloo.

A step is: draw windows, forward, backward (in which DDP averages the gradients over all ranks, bucket by bucket, while
earlier layers are still computing), optimizer. Four times are recorded per step, in seconds of CLOCK_MONOTONIC, which
all processes of a host share::

    t_begin ── forward, backward ── t_ready ── what is left of the all-reduce ── t_sync ── optimizer ── t_end

``t_ready``: this rank's last bucket of gradients was ready for its all-reduce. ``t_sync``: backward returned, gradients
are usable. compute = (t_ready - t_begin) + (t_end - t_sync); exposed communication = t_sync - t_ready, of which the
first part may be waiting for a slower rank (``sync`` exchanges these times, and states the cost on the wire).

Can also be run as a program, in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)::

    python -m testbed_agents.train --steps 100
"""

from __future__ import annotations

import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from testbed_agents import breakage, data
from testbed_agents.check_log import Checks
from testbed_agents.checkpoint import CheckpointError, Checkpoints, State
from testbed_agents.fence import Fence
from testbed_agents.metrics import RankMetrics, interface_bytes
from testbed_agents.model import GPT, Shape, cross_entropy, fingerprint, parameter_count
from testbed_agents.records import Records
from testbed_agents.sync import TimedAllReduce
from testbed_agents.tcp_info import retransmitted

TALK_S = 1.0
"""Minimum interval between two lines of progress."""


ALGORITHM = "gloo ring"
"""How gloo sums gradients: a ring over the rank order, unless asked otherwise (gloo/allreduce.cc)."""


class TrainingFailed(Exception):
    """The job cannot continue; the message is one sentence for the user. ``step``: the last completed step."""

    def __init__(self, reason: str, step: int = 0) -> None:
        super().__init__(reason)
        self.step = step


@dataclass(frozen=True)
class Seat:
    """The number of this rank, and where it runs."""

    rank: int
    node: str
    site: str


@dataclass(frozen=True)
class Job:
    """Parameters of a job, the same for all ranks; fields as in the message ``train`` (docs/design.md).

    Attributes:
        master: address and port of the store at rank 0.
        interface: network interface for gloo.
        timeout_s: timeout of a wait inside a collective.
        attempt: number of the attempt, from 1.
        resume: (step, attempt) of the checkpoint to resume from, which all ranks have; None: start from the beginning.
        checkpoint_every: steps between two checkpoints; 0: none.
    """

    job: str
    world_size: int
    master: tuple[str, int]
    interface: str
    directory: Path
    steps: int
    seed: int = 0
    timeout_s: float = 30.0
    batch: int = 4
    shape: Shape = field(default_factory=Shape)
    data: str | None = None
    learning_rate: float = 1e-3
    attempt: int = 1
    resume: tuple[int, int] | None = None
    checkpoint_every: int = 0

    @property
    def fence(self) -> Fence:
        return Fence(self.directory, self.attempt)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Job:
        """Parse a message. Raises TrainingFailed if a field is missing or invalid."""
        try:
            address, port = message["master"]
            return cls(
                job=str(message["job"]),
                world_size=int(message["world_size"]),
                master=(str(address), int(port)),
                interface=str(message["interface"]),
                directory=Path(message["directory"]),
                steps=int(message["steps"]),
                seed=int(message.get("seed", 0)),
                timeout_s=float(message.get("timeout_s", 30.0)),
                batch=int(message.get("batch", 4)),
                shape=Shape(context=int(message.get("context", 64)), **message.get("model", {})),
                data=message.get("data"),
                learning_rate=float(message.get("learning_rate", 1e-3)),
                attempt=int(message.get("attempt", 1)),
                resume=(int(resume[0]), int(resume[1])) if (resume := message.get("resume")) else None,
                checkpoint_every=int(message.get("checkpoint_every", 0)),
            )
        except KeyError as error:
            raise TrainingFailed(f"the train message has no {error}") from error
        except (TypeError, ValueError) as error:
            raise TrainingFailed(f"invalid train message: {error}") from error


@dataclass(frozen=True)
class Outcome:
    """How a job ended on this rank.

    Attributes:
        status: ok; stopped; or saved, which is stopped with a checkpoint of the last step.
        step: last completed step.
        fingerprint: of the final parameters.
    """

    status: str
    step: int
    fingerprint: str


def train(
    job: Job,
    seat: Seat,
    records: Records,
    metrics: RankMetrics,
    stop: threading.Event,
    began: Callable[[], None] = lambda: None,
    slower_by: Callable[[], float] = lambda: 0.0,
    save: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train until the last step, or until the end of the step in which any rank gets ``stop`` or ``save``.

    Calls ``began`` once all ranks have joined the process group. ``slower_by`` extends a step's compute by this share
    of the previous step's compute (0: not at all). Raises TrainingFailed, CorpusError, CheckpointError or RecordsError.
    """
    torch.set_num_threads(1)
    corpus = data.load(job.data)
    windows = data.Windows(corpus, batch=job.batch, context=job.shape.context, seed=job.seed, rank=seat.rank)
    torch.manual_seed(job.seed)
    model = GPT(job.shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.learning_rate)
    tokens = job.batch * job.shape.context
    state = State(model, optimizer, windows)
    checkpoints = Checkpoints(job.directory / "checkpoints" / f"rank-{seat.rank}", job.fence)
    resumed_from = job.resume[0] if job.resume else 0

    step, talk_t, own_compute_s = resumed_from, 0.0, 0.0
    checks: Checks | None = None
    try:
        origin_t = _meet(job, seat.rank)
        ddp = DistributedDataParallel(model)  # the model has no buffers, so DDP broadcasts nothing per step
        sync = TimedAllReduce(seat.rank, job.world_size, origin_t, metrics.collective_done)
        ddp.register_comm_hook(sync, TimedAllReduce.hook)
        if job.resume:
            _rehearse(ddp, sync, windows)
            checkpoints.load(*job.resume, state)
            metrics.last_step = resumed_from
        sync.checks = checks = Checks(
            Records(job.directory / f"rank-{seat.rank}.checks.jsonl", job.fence),
            rank=seat.rank,
            world_size=job.world_size,
            model=model,
            optimizer=optimizer,
            seed=job.seed,
            first=resumed_from + 1,
            last=job.steps,
            also_every=job.checkpoint_every,
            timeout_s=job.timeout_s,
        )
        if job.attempt == 1:
            breakage.install(sync, model, optimizer, seat.rank, resumed_from)
        began()
        at_first = interface_bytes()[job.interface]
        records.write(
            "job",
            t=time.monotonic(),
            rank=seat.rank,
            world_size=job.world_size,
            node=seat.node,
            site=seat.site,
            scheme="ddp",
            algorithm=ALGORITHM,
            parameters=parameter_count(model),
            gradient_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
            tokens_per_step=tokens,
            steps=job.steps,
            resumed_from=resumed_from,
            corpus=corpus.name,
            corpus_bytes=len(corpus),
            seed=job.seed,
            torch=torch.__version__,
        )
        while step < job.steps:
            checks.begin(step + 1)
            t_begin = time.monotonic()
            inputs, targets = windows.draw()
            optimizer.zero_grad()
            train_loss = cross_entropy(ddp(inputs), targets)
            if extra_s := slower_by() * own_compute_s:
                time.sleep(extra_s)
            sync.begin(train_loss.item(), stop.is_set(), save())
            train_loss.backward()  # type: ignore[no-untyped-call]
            t_sync = time.monotonic()
            told = sync.end()
            if not math.isfinite(told.train_loss):  # the mean over ranks, so every rank ends here
                raise TrainingFailed(f"step {step + 1}: train_loss is {told.train_loss}: training diverged", step)
            optimizer.step()
            t_end = time.monotonic()

            compute_s, exposed_s = (told.ready_t - t_begin) + (t_end - t_sync), t_sync - told.ready_t
            own_compute_s = compute_s - extra_s
            peer_wait_s = min(told.lag_s, exposed_s)
            traffic = interface_bytes()[job.interface]
            records.write(
                "step",
                step=step + 1,
                t_begin=t_begin,
                t_ready=told.ready_t,
                t_sync=t_sync,
                t_end=t_end,
                compute_s=compute_s,
                exposed_s=exposed_s,
                train_loss=told.train_loss,
                tokens=tokens,
                sent_bytes=traffic.sent - at_first.sent,
                received_bytes=traffic.received - at_first.received,
                **({"retransmitted": resent} if (resent := retransmitted()) else {}),
            )
            # Other ranks' requests to save arrive with the gradients, so all ranks leave after the same step.
            leaves = told.save and not told.stop and step + 1 < job.steps
            checks.end(last=leaves)
            step += 1
            metrics.step_done(
                step=step,
                train_loss=told.train_loss,
                tokens=tokens,
                compute_s=compute_s,
                peer_wait_s=peer_wait_s,
                network_s=exposed_s - peer_wait_s,
            )
            if t_end >= talk_t:
                print(
                    f"step {step} of {job.steps}: train_loss {told.train_loss:.3f}, {t_end - t_begin:.3f} s", flush=True
                )
                talk_t = t_end + TALK_S
            if told.stop:
                return Outcome("stopped", step, fingerprint(model))
            due = job.checkpoint_every and step % job.checkpoint_every == 0 and step < job.steps
            if due or leaves:
                size = checkpoints.save(step, state)
                t = time.monotonic()
                records.write("checkpoint", t=t, step=step, bytes=size, took_s=t - t_end)
            if leaves:
                return Outcome("saved", step, fingerprint(model))
        return Outcome("ok", step, fingerprint(model))
    except CheckpointError as error:
        raise TrainingFailed(str(error), step) from error
    except RuntimeError as error:  # base class of torch's errors from gloo
        raise TrainingFailed(f"step {step + 1}: {reason_of(error)}", step) from error
    finally:
        if checks is not None:
            checks.close()


def _rehearse(ddp: DistributedDataParallel, sync: TimedAllReduce, windows: data.Windows) -> None:
    """Run one forward and backward pass before the state of a checkpoint is loaded, without communication.

    After its first pass, DDP rebuilds its buckets in the order in which gradients became ready. Other buckets are
    summed in another order and rounded differently. Without this pass, a resumed job would end with slightly different
    parameters than an undisturbed one.
    """
    sync.rehearsing = True
    inputs, targets = windows.draw()
    cross_entropy(ddp(inputs), targets).backward()  # type: ignore[no-untyped-call]
    sync.rehearsing = False


def _meet(job: Job, rank: int) -> float:
    """Join the default process group; return a time origin, about now, that is the same on all ranks.

    Raises TrainingFailed.
    """
    if job.interface not in (there := interface_bytes()):
        raise TrainingFailed(f"unknown interface {job.interface} (available: {', '.join(there)})")
    os.environ["GLOO_SOCKET_IFNAME"] = job.interface  # else gloo resolves the host name
    limit = timedelta(seconds=job.timeout_s)
    if rank != 0:
        _wait_for_listener(job.master, job.timeout_s)
    try:
        server = TCPStore(*job.master, job.world_size, is_master=rank == 0, timeout=limit)
        # Prefixed by job and attempt, so that a store left over from an earlier attempt cannot answer with its keys.
        store = PrefixStore(f"{job.job}/{job.attempt}", server)
        if rank == 0:
            store.set("origin", repr(time.monotonic()))
        origin = float(store.get("origin"))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=job.world_size, timeout=limit)
    except RuntimeError as error:
        raise TrainingFailed(f"cannot form the process group: {reason_of(error)}") from error
    return origin


def _wait_for_listener(address: tuple[str, int], timeout_s: float) -> None:
    """Return once the address accepts connections, or after ``timeout_s``.

    The store's own client sleeps about a second if rank 0 is not listening yet; this costs milliseconds.
    """
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        try:
            socket.create_connection(address, timeout=max(0.01, until - time.monotonic())).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.02)
        except OSError:
            return  # unreachable: the store will report it


def reason_of(error: BaseException) -> str:
    """Return the first sentence of an exception for users: without source locations, never empty, of bounded length.

    From gloo, for instance: "Connection closed by peer [10.1.1.2]:41234".
    """
    first = str(error).strip().partition("\n")[0]
    # torch wraps one message in another, "… when running the callback: RuntimeError: [/…/pair.cc:545] Read error …"
    first = re.split(r"\[[^\]\s]+\.\w+:\d+\]\s*|when running the callback: ", first)[-1]
    first = first.partition(". ")[0].rstrip(" .")
    return (first or type(error).__name__)[:300]


def main() -> None:
    """Train as one rank in torchrun's environment; prints train_loss about once a second."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m testbed_agents.train", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="a text file or a folder (default: Python's standard library)")
    parser.add_argument("--directory", type=Path, default=Path("ranks"), help="folder for records (default: ranks)")
    parser.add_argument("--timeout", type=float, default=30.0, help="timeout of a wait in seconds (default: 30)")
    words = parser.parse_args()
    environment = os.environ
    rank, node = int(environment.get("RANK", "0")), os.uname().nodename
    job = Job(
        job="train",
        world_size=int(environment.get("WORLD_SIZE", "1")),
        master=(environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "29500"))),
        interface=environment.get("GLOO_SOCKET_IFNAME", "lo"),
        directory=words.directory,
        steps=words.steps,
        seed=words.seed,
        data=words.data,
        timeout_s=words.timeout,
    )
    metrics = RankMetrics(site="", node=node, rank=rank, torch_version=torch.__version__)
    try:
        records = Records(job.directory / f"rank-{rank}.jsonl")
        outcome = train(job, Seat(rank, node, ""), records, metrics, threading.Event())
        records.write("end", t=time.monotonic(), status=outcome.status, reason="", step=outcome.step)
    except Exception as error:
        raise SystemExit(f"rank {rank}: {reason_of(error)}") from error
    print(f"rank {rank}: {outcome.step} steps completed; records in {records.path}")


if __name__ == "__main__":
    main()
