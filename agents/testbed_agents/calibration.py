"""Time a strategy's operations alone, before the job: at their sizes, after their idle times, all groups at once.

What is to be timed comes with the job (``testbed.core.analysis.calibrated_step.volleys``); nothing here knows a
strategy. The ranks meet before each repetition. No tensor of the model is touched, and no operation is recorded as one
of the job.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from testbed_agents.exchange import gather_into, reduce_scatter_into
from testbed_agents.groups import Groups

__all__ = ["calibrate", "time_compute"]

REPETITIONS = 5
"""The first one warms connections, and does not count."""
BUDGET_S = 1.0
"""Idle time of all repetitions together; a longer one is shortened to this, but each volley is timed twice."""
_ELEMENT_BYTES = 4


def calibrate(planned: Sequence[Mapping[str, Any]], groups: Groups) -> list[list[float]]:
    """Return the times of each volley on this rank, in s; empty for one that it has no part in. A collective call."""
    own = [_own(volley, groups) for volley in planned]
    left_s = BUDGET_S
    found: list[list[float]] = []
    for volley, mine in zip(planned, own, strict=True):
        gap_s = max(0.0, float(volley["gap_s"]))
        repetitions = min(REPETITIONS, max(2, int(left_s / gap_s))) if gap_s else REPETITIONS
        left_s -= repetitions * gap_s
        times = []
        for _ in range(repetitions):
            time.sleep(gap_s)
            dist.barrier(group=groups.world)
            if mine:
                began_t = time.monotonic()
                _do(str(volley["kind"]), int(volley["bytes"]), mine)
                times.append(time.monotonic() - began_t)
        found.append(times)
    return found


def time_compute(step: Any, repetitions: int = 3) -> float:
    """Return the median time of ``step()``, in s; the first call does not count."""
    times = []
    for _ in range(repetitions + 1):
        began_t = time.monotonic()
        step()
        times.append(time.monotonic() - began_t)
    return sorted(times[1:])[repetitions // 2]


def _own(volley: Mapping[str, Any], groups: Groups) -> list[tuple[Any, tuple[int, ...]]]:
    """Return this rank's groups of a volley, with their ranks; all ranks make all groups in the same order."""
    found = []
    for name, ranks in volley["groups"]:
        group = groups.world if name == "world" else groups.new(ranks, name)
        if groups.rank in ranks and group is not None:
            found.append((group, tuple(ranks)))
    return found


def _do(kind: str, byte_count: int, mine: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
    elements = max(1, byte_count // _ELEMENT_BYTES)
    if kind == "send":
        _send(elements, mine)
        return
    for group, ranks in mine:
        size = len(ranks)
        part = torch.zeros(-(-elements // size))
        whole = torch.zeros(part.numel() * size)
        if kind == "all_reduce":
            dist.all_reduce(whole, group=group)
        elif kind == "reduce_scatter":
            reduce_scatter_into(part, whole, group=group)
        elif kind == "all_gather":
            gather_into(whole, part, group=group)
        elif kind == "all_to_all":
            dist.all_to_all_single(torch.empty_like(whole), whole, group=group)
        elif kind == "broadcast":
            dist.broadcast(whole, src=ranks[0], group=group)


def _send(elements: int, mine: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
    """Send and receive all messages of a volley at once: from the first rank of each pair to the second."""
    messages = []
    for group, (source, destination) in mine:
        sends = dist.get_rank() == source
        peer = destination if sends else source
        messages.append(dist.P2POp(dist.isend if sends else dist.irecv, torch.zeros(elements), peer, group))
    for work in dist.batch_isend_irecv(messages):
        work.wait()
