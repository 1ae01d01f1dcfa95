"""How the ranks of a job find each other: the store at rank 0, the default process group, the groups of the job."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from testbed_agents import watched
from testbed_agents.board import Board
from testbed_agents.groups import Groups
from testbed_agents.metrics import interface_bytes
from testbed_agents.training_job import Job, Seat, TrainingFailed, reason_of

__all__ = ["rendezvous"]


def rendezvous(job: Job, seat: Seat, board: Board) -> Groups:
    """Join the default process group; return the groups of the job. Raises TrainingFailed.

    Every rank has opened its ``board`` before.
    """
    if job.interface not in (there := interface_bytes()):
        raise TrainingFailed(f"unknown interface {job.interface} (available: {', '.join(there)})")
    os.environ["GLOO_SOCKET_IFNAME"] = job.interface  # else gloo resolves the host name
    limit = timedelta(seconds=job.timeout_s)
    rank = seat.rank
    if rank != 0:
        _wait_for_listener(job.master, job.timeout_s)
    try:
        server = TCPStore(*job.master, job.world_size, is_master=rank == 0, timeout=limit)
        # Prefixed by job and attempt, so that a store left over from an earlier attempt cannot answer with its keys.
        store = PrefixStore(f"{job.job}/{job.attempt}", server)
        dist.init_process_group(watched.BACKEND, store=store, rank=rank, world_size=job.world_size, timeout=limit)
    except RuntimeError as error:
        raise TrainingFailed(f"cannot form the process group: {reason_of(error)}") from error
    if rank == 0:
        board.remove_name()
    return Groups(rank, job.sites or (seat.site,) * job.world_size, job.timeout_s)


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
