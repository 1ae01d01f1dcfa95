"""The trainer: one rank of a job over gloo, by any strategy (``testbed_agents.strategies``).

A step (:meth:`Trainer.run`): draw windows; forward and backward pass, which the strategy's exchange of gradients may
overlap; optimizer; and the exchange that the strategy has due after the step. Five times are recorded per step, in
seconds of CLOCK_MONOTONIC, which all processes of a host share::

    t_begin ─ forward, backward ─ t_ready ─ rest of the exchange ─ t_sync ─ optimizer ─ t_stepped ─ exchange ─ t_end

``t_ready``: this rank has computed its last gradient. ``t_sync``: gradients are usable. compute = (t_ready - t_begin) +
(t_stepped - t_sync); exposed communication = (t_sync - t_ready) + (t_end - t_stepped), of which the first part may be
waiting for a slower rank. Those times, train_loss and orders to stop or save are exchanged by the status file, not over
the network: nothing but the strategy's own exchanges crosses a fiber.

Can also be run as a program, in torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT)::

    python -m testbed_agents.train --steps 100
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from testbed_agents import data, strategies
from testbed_agents.calibration import StartBarrier, write_calibration
from testbed_agents.check_log import Checks
from testbed_agents.checkpoint import CheckpointError, Checkpoints, State
from testbed_agents.compute import Compute
from testbed_agents.evaluation import Evaluation, hold_out
from testbed_agents.groups import join
from testbed_agents.hooks import PlantedError
from testbed_agents.interfaces import InterfaceBytes, address_of
from testbed_agents.metrics import RankMetrics
from testbed_agents.model import GPT, fingerprint, parameter_count
from testbed_agents.records import Records
from testbed_agents.status_file import Order, StatusFile
from testbed_agents.stragglers import Stragglers
from testbed_agents.strategies import Context, Strategy
from testbed_agents.tcp_info import Connections
from testbed_agents.training_job import Control, Job, Outcome, Seat, TrainingFailed, reason_of

PROGRESS_EVERY_S = 1.0
"""Minimum interval between two lines of progress."""

ALGORITHM = "gloo ring"
"""gloo's default all-reduce: a ring in the order of ranks (gloo/allreduce.cc)."""

_STATUS = {"": "ok", "stop": "stopped", "save": "saved"}
"""Status of the job by the order that ended it."""


@dataclass
class _Step:
    """The step that is running. Times are seconds of CLOCK_MONOTONIC; NaN until they are known."""

    number: int
    inner_steps: int = 1
    begin_t: float = field(default_factory=time.monotonic)
    inner_begin_t: float = math.nan
    """When the inner step that is running began."""
    ready_t: float = math.nan
    sync_t: float = math.nan
    stepped_t: float = math.nan
    end_t: float = math.nan
    losses: list[float] = field(default_factory=list)
    """train_loss of each inner step so far."""
    train_loss: float = math.nan
    """The mean over ranks and inner steps."""
    compute_fields: dict[str, float] = field(default_factory=dict)
    """Fields that compute adds to the record, summed over inner steps."""
    compute_s: float = 0.0
    exposed_s: float = 0.0
    peer_wait_s: float = 0.0
    """Of the exposed communication, waiting for slower ranks."""

    @property
    def own_loss(self) -> float | None:
        return sum(self.losses) / len(self.losses) if self.losses else None

    def add_compute(self, fields: dict[str, float]) -> None:
        for name, seconds in fields.items():
            self.compute_fields[name] = self.compute_fields.get(name, 0.0) + seconds


class Trainer:
    """Trains one rank of a job. ``began`` is called once all ranks have joined the process group.

    ``control`` stops the job and slows it down; ``planted``: a deliberate error, in tests. Raises TrainingFailed,
    CorpusError or RecordsError.
    """

    def __init__(
        self,
        job: Job,
        seat: Seat,
        records: Records,
        metrics: RankMetrics,
        control: Control,
        began: Callable[[], None] = lambda: None,
        planted: PlantedError | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self._job, self._seat, self._records, self._metrics = job, seat, records, metrics
        self._control, self._began, self._planted = control, began, planted
        try:
            compute = Compute.from_message(job.compute, rank=seat.rank, seed=job.seed, shape=job.shape, site=seat.site)
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingFailed(f"invalid train message: compute: {error}") from error
        self._compute = compute
        self._corpus = self._held_out = data.load(job.data)
        if job.evaluate_every:
            self._corpus, self._held_out = hold_out(self._corpus, job.shape.context)
        self._windows = data.Windows(
            self._corpus, batch=job.batch, context=job.shape.context, seed=job.seed, rank=seat.rank
        )
        torch.manual_seed(job.seed)
        self._model = compute.model()
        self._parameters = parameter_count(self._model)  # before a strategy leaves this rank a part of them
        self._checkpoints = Checkpoints(job.directory / "checkpoints" / f"rank-{seat.rank}", job.fence)
        self._done = job.resume[0] if job.resume else 0
        self._opened = contextlib.ExitStack()
        # Below the checkpoints, because ranks may make files there, and nowhere else in the folder of the job.
        path = job.directory / "checkpoints" / "rank-0" / f"board.a{job.attempt}"
        self._status = StatusFile(path, seat.rank, job.world_size)
        self._opened.callback(self._status.close)
        if seat.rank == 0:
            self._opened.callback(self._status.unlink)  # it still has one if the ranks did not meet
        self._progress_t = 0.0

    def run(self) -> Outcome:
        """Train until the last step, or until the end of the step in which any rank is ordered to stop or to save.

        Call it once. Raises TrainingFailed, CheckpointError or RecordsError.
        """
        with self._opened:
            try:
                self._prepare()
                self._began()
                self._begin_records()
                order = self._enter(self._done + 1)
                while self._done < self._job.steps and not order:
                    step = self._begin_step(self._done + 1)
                    self._compute_gradients(step)
                    self._update(step)
                    self._exchange(step)
                    self._record(step)
                    order = self._enter(step.number + 1)
                    self._finish_step(step, order)
                if order == "stop":
                    self._exchange_early()
                return Outcome(_STATUS[order], self._done, fingerprint(self._model))
            except (CheckpointError, ValueError) as error:  # ValueError: of a strategy's options
                raise TrainingFailed(str(error), self._done) from error
            except RuntimeError as error:  # base class of torch's errors from gloo
                raise TrainingFailed(f"step {self._done + 1}: {reason_of(error)}", self._done) from error

    # Before the first step

    def _prepare(self) -> None:
        """Join the process group, prepare the strategy, load the checkpoint to resume from, and attach the hooks."""
        job = self._job
        groups = join(job, self._seat, self._status)
        self._hooks = groups.hooks
        self._hooks.planted = self._planted
        self._context = Context(
            groups,
            job.timeout_s,
            self._compute.loss,
            address_of(job.interface),
            steps=job.steps,
            compute=self._compute,
            speeds=job.speeds,
        )
        self._strategy = strategies.make(job.strategy, job.options)
        self._evaluation = None
        if job.evaluate_every and isinstance(self._model, GPT):  # a sleeping model learns nothing of the text
            share = groups.local_rank, len(groups.members[groups.site])
            self._evaluation = Evaluation(job.shape, self._held_out, share)
        trained = self._strategy.prepare(self._model, self._context)
        self._optimizer = torch.optim.AdamW(trained, lr=job.learning_rate)
        self._step_group = self._strategy.step_group or tuple(range(job.world_size))
        self._state = State(self._model, self._optimizer, self._windows, self._strategy.state())
        if job.resume:
            self._strategy.rehearse(*self._windows.draw())
            self._checkpoints.load(*job.resume, self._state)
            self._strategy.loaded()
            self._metrics.last_step = self._done
        if job.calibrate and job.attempt == 1:
            barrier = StartBarrier(self._status, job.timeout_s)
            write_calibration(job, groups, barrier, self._records, self._strategy, self._model)
        self._attach_hooks()

    def _attach_hooks(self) -> None:
        """Record the operations of the job from here on."""
        job = self._job
        self._checks = Checks(
            Records(job.directory / f"rank-{self._seat.rank}.checks.jsonl", job.fence),
            rank=self._seat.rank,
            world_size=job.world_size,
            strategy=self._strategy,
            optimizer=self._optimizer,
            seed=job.seed,
            first=self._done + 1,
            last=job.steps,
            also_every=job.checkpoint_every,
            timeout_s=job.timeout_s,
            counts_exchanges=type(self._strategy).outer_version is not Strategy.outer_version,
            observe=self._metrics.collective_done,
        )
        self._opened.callback(self._checks.close)
        self._hooks.observer, self._hooks.evidence = self._checks.operations, self._checks.evidence
        self._opened.callback(self._hooks.detach)
        self._hooks.count_blocked(self._context.waiting)
        self._hooks.stragglers = Stragglers(
            self._status.entered,
            lambda: self._context.step,
            job.timeout_s,
            range(job.world_size),
            self._control.stop.is_set,
        )
        if self._planted is not None:
            self._planted.install(self._strategy, self._optimizer)

    def _begin_records(self) -> None:
        job = self._job
        self._interface = self._opened.enter_context(contextlib.closing(InterfaceBytes(job.interface)))
        self._traffic_before = self._interface.read()
        self._connections = Connections(job.interface)
        self._connections.read()
        self._records.write(
            "job",
            t=time.monotonic(),
            rank=self._seat.rank,
            world_size=job.world_size,
            node=self._seat.node,
            site=self._seat.site,
            scheme=job.strategy,
            strategy={"name": job.strategy, "options": dict(job.options)},
            algorithm=ALGORITHM,
            parameters=self._parameters,
            gradient_bytes=4 * self._parameters,
            tokens_per_step=job.tokens_per_step,
            steps=job.steps,
            resumed_from=self._done,
            corpus=self._corpus.name,
            corpus_bytes=len(self._corpus),
            seed=job.seed,
            torch=torch.__version__,
            **self._compute.job_fields(),
        )
        self._context.before_backward, self._context.told_ready = self._before_backward, self._gradients_ready

    # A step

    def _enter(self, step: int) -> Order:
        """Return the order to end before ``step``; empty if there is none, and after the last step."""
        return self._status.enter(step, self._control.request) if step <= self._job.steps else ""

    def _begin_step(self, number: int) -> _Step:
        self._context.begin(number)
        self._checks.begin(number)
        self._step = _Step(number)
        self._step.inner_steps = self._strategy.inner_steps(number)
        return self._step

    def _compute_gradients(self, step: _Step) -> None:
        """Run the inner steps; the gradients of the last one are left to :meth:`_update`."""
        slower_by = self._control.slower_by
        step.inner_begin_t = step.begin_t
        for inner in range(1, step.inner_steps + 1):
            self._compute.begin(step.number, slower_by, inner)
            self._strategy.run(*self._windows.draw())
            step.sync_t = time.monotonic()
            if inner < step.inner_steps:  # of the last one the time of each part is recorded
                self._apply_gradients()
                updated_t = time.monotonic()
                step.add_compute(self._compute.end(step.inner_begin_t, self._context.ready_t, step.sync_t, updated_t))
                self._context.next_inner_step(step.sync_t)
                step.inner_begin_t = updated_t
        step.train_loss = self._status.mean_loss(step.number, self._step_group)
        if not math.isfinite(step.train_loss):  # the mean over ranks that step together, so all of them end here
            reason = f"step {step.number}: train_loss is {step.train_loss}: training diverged"
            raise TrainingFailed(reason, self._done)

    def _update(self, step: _Step) -> None:
        if self._strategy.updates(step.number):
            self._apply_gradients()
        step.stepped_t = time.monotonic()
        self._note(step)

    def _apply_gradients(self) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _exchange(self, step: _Step) -> None:
        self._strategy.after_step(step.number)
        if step.number == self._job.steps:
            self._strategy.finish(step.number)
        step.end_t = time.monotonic()

    def _record(self, step: _Step) -> None:
        """Write the record of the step."""
        context, status = self._context, self._status
        # Waiting inside forward and backward pass is not compute.
        step.compute_s = (context.ready_t - step.begin_t) - context.waited_s + (step.stepped_t - step.sync_t)
        step.add_compute(self._compute.end(step.inner_begin_t, context.ready_t, step.sync_t, step.stepped_t))
        step.peer_wait_s = min(status.gradients_lag_s(step.number, self._step_group), step.sync_t - context.ready_t)
        step.peer_wait_s += min(
            status.update_lag_s(step.number, range(self._job.world_size)), step.end_t - step.stepped_t
        )
        step.exposed_s = (step.sync_t - context.ready_t) + (step.end_t - step.stepped_t) + context.waited_s
        traffic, totals_before = self._interface.read(), self._connections.across
        self._connections.read()
        optional = {
            "blocked_s": context.waited_s,
            "late_s": context.late_s,
            "retransmitted": self._connections.retransmitted,
            "out_of_order": self._connections.out_of_order,
        }
        self._records.write(
            "step",
            step=step.number,
            t_begin=step.begin_t,
            t_ready=context.ready_t,
            t_sync=step.sync_t,
            t_stepped=step.stepped_t,
            t_end=step.end_t,
            compute_s=step.compute_s,
            exposed_s=step.exposed_s,
            train_loss=step.train_loss,
            tokens=self._job.tokens_per_step * step.inner_steps,
            outer_version=self._strategy.outer_version,
            sent_bytes=traffic.sent - self._traffic_before.sent,
            received_bytes=traffic.received - self._traffic_before.received,
            tcp=self._connections.across.since(totals_before),
            **{name: figure for name, figure in optional.items() if figure},
            **step.compute_fields,
        )

    def _finish_step(self, step: _Step, order: Order) -> None:
        """Complete the step: with a checkpoint and an evaluation, if they are due. ``order`` ends the job after it."""
        number, job = step.number, self._job
        due = job.checkpoint_every and number % job.checkpoint_every == 0 and number < job.steps
        saves = order != "stop" and (due or order == "save")
        if saves:
            self._strategy.settle(number)
        self._checks.end(last=bool(order))
        self._metrics.step_done(
            step=number,
            train_loss=step.train_loss,
            tokens=job.tokens_per_step * step.inner_steps,
            compute_s=step.compute_s,
            peer_wait_s=step.peer_wait_s,
            network_s=step.exposed_s - step.peer_wait_s,
        )
        self._done = number
        if step.end_t >= self._progress_t:
            duration_s = step.end_t - step.begin_t
            print(f"step {number} of {job.steps}: train_loss {step.train_loss:.3f}, {duration_s:.3f} s", flush=True)
            self._progress_t = step.end_t + PROGRESS_EVERY_S
        if saves:
            size = self._checkpoints.save(number, self._state)
            self._checkpoints.confirm(self._status.saved(number))
            t = time.monotonic()
            self._records.write("checkpoint", t=t, step=number, bytes=size, took_s=t - step.end_t)
        if self._evaluation is not None and job.evaluates_after(number):
            with self._hooks.unobserved():  # its operations are no exchange of the strategy's
                fields = self._evaluation.run(self._strategy, number)
            self._records.write("evaluation", **fields)

    def _exchange_early(self) -> None:
        """End a job that was stopped before its last step with an exchange."""
        self._checks.finishing()
        self._strategy.finish(self._done)
        if not self._strategy.updates(self._done):  # gradients that were added, and are exchanged now
            self._optimizer.step()
        self._checks.finished()

    # Called by the strategy

    def _before_backward(self, loss: Tensor | None) -> None:
        self._compute.before_backward()
        if loss is not None:
            self._step.losses.append(loss.item())
        self._note(self._step)

    def _gradients_ready(self, t: float) -> None:
        self._step.ready_t = t
        self._note(self._step)

    def _note(self, step: _Step) -> None:
        """Publish the state of the step to the other ranks."""
        self._status.publish(step.number, ready_t=step.ready_t, updated_t=step.stepped_t, loss=step.own_loss)


def main() -> None:
    """Train as one rank in torchrun's environment; prints train_loss about once a second."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m testbed_agents.train", description=main.__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="a text file or a folder (default: Python's standard library)")
    parser.add_argument("--directory", type=Path, default=Path("ranks"), help="folder for records (default: ranks)")
    parser.add_argument("--timeout", type=float, default=30.0, help="timeout of a wait in seconds (default: 30)")
    arguments = parser.parse_args()
    environment = os.environ
    rank, node = int(environment.get("RANK", "0")), os.uname().nodename
    job = Job(
        job="train",
        world_size=int(environment.get("WORLD_SIZE", "1")),
        master=(environment.get("MASTER_ADDR", "127.0.0.1"), int(environment.get("MASTER_PORT", "29500"))),
        interface=environment.get("GLOO_SOCKET_IFNAME", "lo"),
        directory=arguments.directory,
        steps=arguments.steps,
        seed=arguments.seed,
        data=arguments.data,
        timeout_s=arguments.timeout,
    )
    metrics = RankMetrics(site="", node=node, rank=rank, torch_version=torch.__version__)
    try:
        records = Records(job.directory / f"rank-{rank}.jsonl")
        outcome = Trainer(job, Seat(rank, node, ""), records, metrics, Control()).run()
        records.write("end", t=time.monotonic(), status=outcome.status, reason="", step=outcome.step)
    except Exception as error:
        raise SystemExit(f"rank {rank}: {reason_of(error)}") from error
    print(f"rank {rank}: {outcome.step} steps completed; records in {records.path}")


if __name__ == "__main__":
    main()
