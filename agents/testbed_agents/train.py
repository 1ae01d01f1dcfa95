"""The trainer: one rank of a job over gloo, by any strategy (``testbed_agents.strategies``).

A step is: draw windows; forward and backward, beside which a strategy may exchange gradients; optimizer; and the
exchange that the strategy has due after the step. Five times are recorded per step, in seconds of CLOCK_MONOTONIC,
which all processes of a host share::

    t_begin ─ forward, backward ─ t_ready ─ rest of the exchange ─ t_sync ─ optimizer ─ t_stepped ─ exchange ─ t_end

``t_ready``: this rank has computed its last gradient. ``t_sync``: gradients are usable. compute = (t_ready - t_begin) +
(t_stepped - t_sync); exposed communication = (t_sync - t_ready) + (t_end - t_stepped), of which the first part may be
waiting for a slower rank. Those times, train_loss and orders to stop or save are exchanged on the ``board``, not over
the network: nothing but the strategy's own exchanges crosses a fiber.

Can also be run as a program, in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)::

    python -m testbed_agents.train --steps 100
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from testbed_agents import breakage, data, evidence, failpoints, strategies, watched
from testbed_agents.board import Board, Order
from testbed_agents.calibration import Meeting, calibrate, time_compute
from testbed_agents.check_log import Checks
from testbed_agents.checkpoint import CheckpointError, Checkpoints, State
from testbed_agents.compute import Compute
from testbed_agents.evaluation import Evaluation, hold_out
from testbed_agents.groups import Groups
from testbed_agents.metrics import InterfaceBytes, RankMetrics
from testbed_agents.model import GPT, fingerprint, parameter_count
from testbed_agents.own_address import own_address
from testbed_agents.patience import Patience
from testbed_agents.records import Records
from testbed_agents.rendezvous import rendezvous
from testbed_agents.strategies import Context, Strategy
from testbed_agents.tcp_info import Connections
from testbed_agents.training_job import Job, Outcome, Seat, TrainingFailed, reason_of

TALK_S = 1.0
"""Minimum interval between two lines of progress."""


ALGORITHM = "gloo ring"
"""How gloo sums gradients: a ring over the rank order, unless asked otherwise (gloo/allreduce.cc)."""


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
    of the declared compute, or of the previous step's real compute (0: not at all). Raises TrainingFailed, CorpusError,
    CheckpointError or RecordsError.
    """
    torch.set_num_threads(1)
    try:
        compute = Compute.from_message(job.compute, rank=seat.rank, seed=job.seed, shape=job.shape, site=seat.site)
    except (KeyError, TypeError, ValueError) as error:
        raise TrainingFailed(f"invalid train message: compute: {error}") from error
    corpus = data.load(job.data)
    held_out = corpus
    if job.evaluate.every:
        corpus, held_out = hold_out(corpus, job.shape.context)
    windows = data.Windows(corpus, batch=job.batch, context=job.shape.context, seed=job.seed, rank=seat.rank)
    torch.manual_seed(job.seed)
    model = compute.model()
    parameters = parameter_count(model)  # before a strategy leaves this rank a part of them
    tokens = job.batch * job.shape.context
    checkpoints = Checkpoints(job.directory / "checkpoints" / f"rank-{seat.rank}", job.fence)
    resumed_from = job.resume[0] if job.resume else 0

    done, talk_t = resumed_from, 0.0
    order: Order = ""
    checks: Checks | None = None
    # Below the checkpoints, because ranks may make files there, and nowhere else in the folder of the job.
    board = Board(job.directory / "checkpoints" / "rank-0" / f"board.a{job.attempt}", seat.rank, job.world_size)
    opened = contextlib.ExitStack()
    try:
        groups = rendezvous(job, seat, board)
        context = Context(
            groups,
            job.timeout_s,
            compute.loss,
            own_address(job.interface),
            steps=job.steps,
            compute=compute,
            speeds=job.speeds,
        )
        fault = breakage.plant(seat.rank) if job.attempt == 1 else None
        broken = breakage.Broken(fault) if fault else None
        strategy = strategies.make(job.strategy, job.options)
        evaluation = None
        if job.evaluate.every and isinstance(model, GPT):  # a model that sleeps learns nothing of the text
            mates = groups.members[groups.site]
            share = groups.local_rank, len(mates)
            evaluation = Evaluation(job.shape, held_out, share)
        optimizer = torch.optim.AdamW(strategy.prepare(model, context), lr=job.learning_rate)
        together = strategy.step_group or tuple(range(job.world_size))
        state = State(model, optimizer, windows, strategy.state())
        if job.resume:
            strategy.rehearse(*windows.draw())
            checkpoints.load(*job.resume, state)
            strategy.loaded()
            metrics.last_step = resumed_from
        if job.calibrate and job.attempt == 1:
            _calibrate(job, groups, board, records, strategy, model)
        checks = Checks(
            Records(job.directory / f"rank-{seat.rank}.checks.jsonl", job.fence),
            rank=seat.rank,
            world_size=job.world_size,
            strategy=strategy,
            optimizer=optimizer,
            seed=job.seed,
            first=resumed_from + 1,
            last=job.steps,
            also_every=job.checkpoint_every,
            timeout_s=job.timeout_s,
            counts_exchanges=type(strategy).outer_version is not Strategy.outer_version,
            observe=metrics.collective_done,
        )
        watched.observe(checks.operations)
        watched.wait_in(context.waiting)
        everyone = range(job.world_size)
        watched.be_patient(Patience(board.entered, lambda: context.step, job.timeout_s, everyone, stop.is_set))
        evidence.install(checks.evidence)
        if broken:
            broken.install(strategy, optimizer)
        began()
        interface = opened.enter_context(contextlib.closing(InterfaceBytes(job.interface)))
        at_first = interface.read()
        connections = Connections(job.interface)
        connections.read()
        records.write(
            "job",
            t=time.monotonic(),
            rank=seat.rank,
            world_size=job.world_size,
            node=seat.node,
            site=seat.site,
            scheme=job.strategy,
            strategy={"name": job.strategy, "options": dict(job.options)},
            algorithm=ALGORITHM,
            parameters=parameters,
            gradient_bytes=4 * parameters,
            tokens_per_step=tokens,
            steps=job.steps,
            resumed_from=resumed_from,
            corpus=corpus.name,
            corpus_bytes=len(corpus),
            seed=job.seed,
            torch=torch.__version__,
            **compute.job_fields(),
        )
        known: dict[str, float] = {}
        """What the board has of the step that is running."""
        losses: list[float] = []
        """Of its inner steps."""

        def before_backward(loss: Tensor | None) -> None:
            compute.before_backward()
            if loss is not None:
                losses.append(loss.item())
                known["loss"] = sum(losses) / len(losses)
            board.note(context.step, **known)

        def told_ready(t: float) -> None:
            known["ready_t"] = t
            board.note(context.step, **known)

        context.before_backward, context.told_ready = before_backward, told_ready
        order = board.enter(done + 1, _wish(stop, save)) if done < job.steps else ""
        while done < job.steps and not order:
            step = done + 1
            context.begin(step)
            checks.begin(step)
            known.clear()
            losses.clear()
            t_begin = began_t = time.monotonic()
            declared: dict[str, float] = {}
            inner_steps, slower = strategy.inner_steps(step), slower_by()
            for inner in range(1, inner_steps + 1):
                compute.begin(step, slower, inner)
                strategy.run(*windows.draw())
                t_sync = time.monotonic()
                if inner < inner_steps:  # of the last one the time of each part is recorded
                    optimizer.step()
                    optimizer.zero_grad()
                    updated_t = time.monotonic()
                    _add(declared, compute.end(began_t, context.ready_t, t_sync, updated_t))
                    context.next_inner_step(t_sync)
                    began_t = updated_t
            train_loss = board.mean_loss(step, together)
            if not math.isfinite(train_loss):  # the mean over ranks that step together, so all of them end here
                raise TrainingFailed(f"step {step}: train_loss is {train_loss}: training diverged", done)
            if strategy.updates(step):
                optimizer.step()
                optimizer.zero_grad()
            t_stepped = time.monotonic()
            known["updated_t"] = t_stepped
            board.note(step, **known)
            strategy.after_step(step)
            if step == job.steps:
                strategy.finish(step)
            t_end = time.monotonic()

            # What forward and backward waited for is not compute.
            compute_s = (context.ready_t - t_begin) - context.waited_s + (t_stepped - t_sync)
            _add(declared, compute.end(began_t, context.ready_t, t_sync, t_stepped))
            waited_s = min(board.later(step, together), t_sync - context.ready_t)
            waited_s += min(board.later_updated(step, range(job.world_size)), t_end - t_stepped)
            exposed_s = (t_sync - context.ready_t) + (t_end - t_stepped) + context.waited_s
            traffic = interface.read()
            across = connections.across
            connections.read()
            records.write(
                "step",
                step=step,
                t_begin=t_begin,
                t_ready=context.ready_t,
                t_sync=t_sync,
                t_stepped=t_stepped,
                t_end=t_end,
                compute_s=compute_s,
                exposed_s=exposed_s,
                train_loss=train_loss,
                tokens=tokens * inner_steps,
                outer_version=strategy.outer_version,
                sent_bytes=traffic.sent - at_first.sent,
                received_bytes=traffic.received - at_first.received,
                **({"blocked_s": context.waited_s} if context.waited_s else {}),
                tcp=connections.across.since(across),
                **({"late_s": context.late_s} if context.late_s else {}),
                **({"retransmitted": resent} if (resent := connections.retransmitted) else {}),
                **({"out_of_order": early} if (early := connections.out_of_order) else {}),
                **declared,
            )
            order = board.enter(step + 1, _wish(stop, save)) if step < job.steps else ""
            due = job.checkpoint_every and step % job.checkpoint_every == 0 and step < job.steps
            saves = order != "stop" and (due or order == "save")
            if saves:
                strategy.settle(step)
            checks.end(last=bool(order))
            metrics.step_done(
                step=step,
                train_loss=train_loss,
                tokens=tokens * inner_steps,
                compute_s=compute_s,
                peer_wait_s=waited_s,
                network_s=exposed_s - waited_s,
            )
            done = step
            if t_end >= talk_t:
                print(f"step {step} of {job.steps}: train_loss {train_loss:.3f}, {t_end - t_begin:.3f} s", flush=True)
                talk_t = t_end + TALK_S
            if saves:
                size = checkpoints.save(step, state)
                checkpoints.confirm(board.saved(step))
                t = time.monotonic()
                records.write("checkpoint", t=t, step=step, bytes=size, took_s=t - t_end)
            if evaluation is not None and job.evaluate.due(step, job.steps):
                with watched.unobserved():  # its operations are no exchange of the strategy's
                    fields = evaluation.run(strategy, step)
                records.write("evaluation", **fields)
        if order == "stop":
            checks.finishing()
            strategy.finish(done)
            if not strategy.updates(done):  # gradients that were added, and are exchanged now
                optimizer.step()
            checks.finished()
        return Outcome(_STATUS[order], done, fingerprint(model))
    except (CheckpointError, ValueError) as error:  # ValueError: of a strategy's options
        raise TrainingFailed(str(error), done) from error
    except RuntimeError as error:  # base class of torch's errors from gloo
        raise TrainingFailed(f"step {done + 1}: {reason_of(error)}", done) from error
    finally:
        watched.observe(None)
        watched.wait_in(None)
        watched.be_patient(None)
        watched.break_by(None)
        failpoints.plant(None)
        evidence.install(None)
        if checks is not None:
            checks.close()
        if seat.rank == 0:
            board.remove_name()  # it has one still if the ranks did not meet
        opened.close()
        board.close()


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0.0) + value


def _calibrate(job: Job, groups: Groups, board: Board, records: Records, strategy: Strategy, model: nn.Module) -> None:
    """Time operations, and the compute of steps on all ranks at once; the job's state is as it was before.

    The optimizer is a part of a step's compute: on shared cores ranks that end a pass together leave it one by one.
    """
    began_t, meeting = time.monotonic(), Meeting(board, job.timeout_s)
    took_s = calibrate(job.calibrate, groups, meeting, strategy, list(model.parameters()))
    inputs = torch.zeros(job.batch, job.shape.context, dtype=torch.int64)
    compute = Compute.from_message(job.compute, rank=groups.rank, seed=job.seed, shape=job.shape).rehearsed()
    with torch.random.fork_rng(devices=[]):
        plain = compute.model()

    optimizer = torch.optim.AdamW(plain.parameters(), lr=job.learning_rate)

    def step(number: int) -> None:
        step_t = time.monotonic()
        compute.begin(number)
        compute.loss(plain(inputs), inputs).backward()  # type: ignore[no-untyped-call]
        ready_t = time.monotonic()
        optimizer.step()
        optimizer.zero_grad()
        compute.end(step_t, ready_t, ready_t, time.monotonic())

    times = time_compute(step, meeting, compute.seconds)
    real = {} if compute.seconds else {"compute_s": statistics.median(times)}
    t = time.monotonic()
    records.write("calibration", t=t, lasted_s=t - began_t, took_s=took_s, compute_times_s=times, **real)


_STATUS: Mapping[Order, str] = {"": "ok", "stop": "stopped", "save": "saved"}


def _wish(stop: threading.Event, save: Callable[[], bool]) -> Order:
    return "stop" if stop.is_set() else "save" if save() else ""


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
