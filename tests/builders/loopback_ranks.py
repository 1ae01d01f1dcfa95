"""Ranks of a gloo job over loopback, forked from the test: a quarter of a second instead of seconds per job.

``run(4, function, ...)`` calls ``function(rank, ...)`` in four processes with an initialised default process group,
and returns what they returned, in rank order. The function is called by fork, so it may be any closure; its result
must be picklable. A rank that raises fails the test with its traceback.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

# The first optimizer of a process imports it, which takes a second: once here, not in every rank.
import torch._dynamo
import torch.distributed as dist

BOUND_S = 120.0
_OK, _FAILED = b"+", b"-"
"""First byte of a rank's answer. A result is unpickled once, not again with each part of it that arrives."""


def run(
    world_size: int, function: Callable[..., Any], *args: Any, backend: str = "gloo", timeout_s: float = 60.0
) -> list[Any]:
    """Return the results of ``function(rank, *args)``, by rank. Raises AssertionError if a rank failed."""
    with tempfile.TemporaryDirectory() as folder:
        pipes, pids = [], []
        for rank in range(world_size):
            reader, writer = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _live(rank, world_size, function, args, writer, Path(folder), backend, timeout_s)
            os.close(writer)
            pipes.append(reader)
            pids.append(pid)
        try:
            found = _read_all(pipes)
            # A rank that says why it failed comes before those that failed, or were ended, because of it.
            for rank in sorted(range(world_size), key=lambda rank: not found[rank]):
                _result(rank, found[rank])
            return [_result(rank, data) for rank, data in enumerate(found)]
        finally:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            for pipe in pipes:
                os.close(pipe)


def _live(
    rank: int,
    world_size: int,
    function: Callable[..., Any],
    args: Any,
    writer: int,
    folder: Path,
    backend: str,
    timeout_s: float,
) -> None:
    try:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.FileStore(str(folder / "store"), world_size)
        dist.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
        )
        result: tuple[bool, Any] = (True, function(rank, *args))
        dist.barrier()  # no rank leaves while another may still need it
    except BaseException:
        result = (False, traceback.format_exc())
    try:
        ok, _ = result
        data = memoryview((_OK if ok else _FAILED) + pickle.dumps(result))
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


def _read_all(pipes: list[int]) -> list[bytes]:
    found = {pipe: bytearray() for pipe in pipes}
    left, until = set(pipes), time.monotonic() + BOUND_S
    while left:
        ready, _, _ = select.select(list(left), [], [], max(0.0, until - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            data = os.read(pipe, 1 << 20)
            found[pipe] += data
            if not data:
                left.discard(pipe)
            elif _failed(found[pipe]):
                left.clear()
    return [bytes(found[pipe]) for pipe in pipes]


def _failed(data: bytearray) -> bool:
    """Return whether the rank failed and its traceback is complete."""
    if not data.startswith(_FAILED):
        return False
    try:
        pickle.loads(bytes(data[1:]))
    except Exception:
        return False
    return True


def _result(rank: int, data: bytes) -> Any:
    assert data, f"rank {rank} did not end within {BOUND_S:g} s, or another rank failed first"
    ok, value = pickle.loads(data[1:])
    assert ok, f"rank {rank}: {value}"
    return value
