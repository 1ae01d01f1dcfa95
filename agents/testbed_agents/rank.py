"""The process of one rank: serves /metrics, waits for a job, trains it in a thread, reports the outcome.

The main thread reads commands of the fork server throughout, so that a rank whose trainer is stuck in a collective can
still be stopped and still serves /metrics. A process trains one job only: after a failed collective, threads of gloo
may never return, and only the end of the process is certain to free their resources.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from testbed_agents import namespaces
from testbed_agents.checkpoint import CheckpointError
from testbed_agents.data import CorpusError
from testbed_agents.hooks import PlantedError
from testbed_agents.metrics import RankMetrics
from testbed_agents.records import Records, RecordsError
from testbed_agents.train import Trainer
from testbed_agents.training_job import Control, Job, Outcome, Seat, TrainingFailed, reason_of

STOP_GRACE_S = 2.0
"""Time for a stopped job to finish its step."""

MESSAGE_BYTES = 1 << 16

REASONS = {"ok": "", "stopped": "asked to stop", "saved": "asked to save its state and to leave"}
"""Reason for the end of the trainer, by its status."""


Plant = Callable[[int], PlantedError | None]
"""Returns the planted error of a rank; None outside tests."""


def live(message: Mapping[str, Any], parent: int, channel: socket.socket, plant: Plant = lambda rank: None) -> None:
    """Run as the rank that ``message`` describes, until the fork server at the other end of ``channel`` ends."""
    namespaces.enter(message["namespaces"])
    if user := message.get("user"):
        namespaces.become(user)
    os.environ.update({str(name): str(value) for name, value in message.get("environment", {}).items()})
    namespaces.die_with(parent)
    seat = Seat(rank=int(message["rank"]), node=str(message["node"]), site=str(message["site"]))
    metrics = RankMetrics(site=seat.site, node=seat.node, rank=seat.rank, torch_version=torch.__version__)
    address, port = message["metrics"]
    try:
        metrics.serve(address, port)
    except OSError as error:
        raise OSError(error.errno, f"cannot serve /metrics on {address}:{port}: {error.strerror}") from error
    rank = Rank(seat, metrics, channel, plant)
    rank.report("ready", pid=os.getpid())
    while command := channel.recv(MESSAGE_BYTES):
        rank.execute(json.loads(command))


class Rank:
    """Executes commands of the fork server. ``channel`` is a SOCK_SEQPACKET socket: one JSON object per message."""

    def __init__(self, seat: Seat, metrics: RankMetrics, channel: socket.socket, plant: Plant) -> None:
        self._seat, self._metrics, self._channel, self._plant = seat, metrics, channel, plant
        self._job = ""
        self._records: Records | None = None
        self._trainer: threading.Thread | None = None
        self._control = Control()
        self._over = threading.Lock()
        """Acquired by the thread that reports the end of the job and never released, so that it is reported once."""

    def execute(self, message: Mapping[str, Any]) -> None:
        if message["do"] == "train" and self._trainer is None:
            self._job = str(message["job"])
            self._trainer = threading.Thread(target=self._train, args=(message,), name="trainer", daemon=True)
            self._trainer.start()
        elif message["do"] == "slow":
            self._control.slower_by = float(message["by"])
        elif message["do"] == "stop" and self._trainer is not None and message["job"] == self._job:
            if message.get("save"):
                # Never by force: the caller bounds the time that saving may take.
                self._control.save.set()
                return
            self._control.stop.set()
            self._trainer.join(STOP_GRACE_S)
            self._finish("stopped", f"asked to stop; its step did not end within {STOP_GRACE_S:g} s")

    def report(self, event: str, **fields: object) -> None:
        line = {"event": event, "rank": self._seat.rank, **fields, "t": time.monotonic()}
        with contextlib.suppress(OSError):  # the fork server has ended, and this process is about to
            self._channel.send(json.dumps(line).encode())

    def _train(self, message: Mapping[str, Any]) -> None:
        try:
            job = Job.from_message(message)
            self._records = Records(job.directory / f"rank-{self._seat.rank}.jsonl", job.fence)
            _print_to(job.directory / f"rank-{self._seat.rank}.log")
            self._metrics.job_state(self._job, "training")
            planted = self._plant(self._seat.rank) if job.attempt == 1 else None
            trainer = Trainer(job, self._seat, self._records, self._metrics, self._control, self._began, planted)
            outcome = trainer.run()
            self._finish(outcome.status, REASONS[outcome.status], outcome=outcome)
        except TrainingFailed as error:
            # After a stop, a collective fails because a peer closed its connections, which is how a stuck job ends.
            self._finish("stopped" if self._control.stop.is_set() else "failed", str(error), step=error.step)
        except (CheckpointError, RecordsError) as error:
            self._finish("failed", str(error), storage=True)
        except CorpusError as error:
            self._finish("failed", str(error))
        except Exception as error:  # a bug: reported like any other failure, with a traceback in the log
            import traceback

            traceback.print_exc()
            self._finish("failed", f"{type(error).__name__}: {reason_of(error)}")

    def _began(self) -> None:
        self.report("began", job=self._job)

    def _finish(
        self,
        status: str,
        reason: str,
        step: int | None = None,
        outcome: Outcome | None = None,
        *,
        storage: bool = False,
    ) -> None:
        """Report the end of the job, once. ``storage``: the disk failed, not the job."""
        if not self._over.acquire(blocking=False):
            return
        parameters: dict[str, object] = {}
        if outcome is not None:
            step, parameters = outcome.step, {"parameters_sha256": outcome.fingerprint}
        if self._records is not None:
            try:
                last = self._metrics.last_step if step is None else step
                self._records.write("end", t=time.monotonic(), status=status, reason=reason, step=last, **parameters)
            except RecordsError as error:
                if status == "ok":
                    status, reason, storage = "failed", str(error), True
            self._records.close()  # a trainer that returns later must not write
        self._metrics.job_state(self._job, {"ok": "finished", "saved": "stopped"}.get(status, status))
        self.report("finished", job=self._job, status=status, reason=reason, storage=storage)
        if outcome is None:
            _hang_up(self._metrics.port)


def _print_to(log: Path) -> None:
    """Redirect this process's output, including that of libraries, to ``log``. Raises RecordsError."""
    try:
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RecordsError(f"cannot write {log}: {error.strerror}") from error
    for output in (sys.stdout, sys.stderr):
        output.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _hang_up(metrics_port: int) -> None:
    """Shut down every TCP connection of this process except those of /metrics.

    The process of a failed rank lives on; its peers, which wait for it in a ring, would notice one by one, each after
    its own timeout. Bypasses torch, because destroying the process group waits for pending collectives, perhaps for
    ever and holding the GIL.
    """
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # not a socket, or just closed
        with connection, contextlib.suppress(OSError):  # ENOTCONN: a listener, which has no peer
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                connection.getpeername()
                if connection.getsockname()[1] != metrics_port:
                    connection.shutdown(socket.SHUT_RDWR)
