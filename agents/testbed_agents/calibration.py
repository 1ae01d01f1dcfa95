"""Time a strategy's operations alone, before the job: at their sizes, after their idle times, all groups at once.

What is to be timed comes with the job (``testbed.core.analysis.volleys.volleys``); this module is the same for all
strategies. The ranks wait for each other (:class:`StartBarrier`) before each repetition. Operations are recorded as in
the job, because checksums and samples are a part of what they take; but into nothing, as none of them is one of the
job.

Exchanges of an outer loop are timed by the strategy itself (``Strategy.after_step``), with all that it computes for
them, of parameters that differ by rank; afterwards parameters and state are put back bit by bit.

The first repetition does not count: it warms memory, and TCP's windows shrink in the idle times before it and after it
to what they are in a job. Others are made until they agree, or until their idle time is used up.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from testbed_agents.compute import Compute
from testbed_agents.evidence import Evidence
from testbed_agents.exchange.sums import begin_sum, gather_into, reduce_scatter_into
from testbed_agents.groups import Groups
from testbed_agents.hooks import Hooks
from testbed_agents.operation_log import OperationLog
from testbed_agents.records import Records
from testbed_agents.status_file import StatusFile
from testbed_agents.strategies.strategy import Strategy
from testbed_agents.training_job import Job

__all__ = ["StartBarrier", "calibrate", "time_compute", "write_calibration"]

EXCHANGE = "exchange"

LEAST, MOST = 2, 5
"""Repetitions that count."""
LEAST_SHORT = 6
LEAST_IDLE_S = 0.25
"""So many where they idle no longer than this together: two agree by chance, and the third takes half as long again."""
MOST_SHORT = 12
"""Of volleys that follow one another within a step: they are short, and their times vary most."""
SHORT_GAP_S = 0.1
AGREE = 0.1
"""Repetitions agree if the slowest of them took at most this share longer than the quickest one."""
BUDGET_S = 1.0
"""Idle time of the repetitions of a volley, or of all exchanges; longer only for the least number of repetitions."""
_ELEMENT_BYTES = 4
_MOVEMENT = 1e-3
_BEGIN_AFTER_S = 0.003
"""From when the last rank reaches the barrier until all begin: each polls for the others every half millisecond."""


class StartBarrier:
    """Lets all ranks begin at the same time, and agree on the slowest one: they share the host's clock and memory.

    After a barrier over the fiber ranks would go on up to a round trip apart, and each operation would seem to take so
    much longer.
    """

    def __init__(self, status: StatusFile, timeout_s: float) -> None:
        self._status, self._timeout_s, self._number = status, timeout_s, 0

    def begin_after(self, gap_s: float) -> float:
        """Sleep for ``gap_s``; return when all ranks have done so, and what time it is. Raises RuntimeError."""
        time.sleep(gap_s)
        begin_t = self._wait()[0] + _BEGIN_AFTER_S
        time.sleep(max(0.0, begin_t - time.monotonic()))
        return time.monotonic()

    def greatest(self, value: float) -> float:
        """Return the greatest value of all ranks. Raises RuntimeError."""
        return self._wait(value)[1]

    def _wait(self, value: float = 0.0) -> tuple[float, float]:
        self._number += 1
        return self._status.barrier(self._number, value, self._timeout_s)


def write_calibration(
    job: Job, groups: Groups, barrier: StartBarrier, records: Records, strategy: Strategy, model: nn.Module
) -> None:
    """Time operations, and the compute of steps on all ranks at once, for a record; the job's state stays as it is.

    The optimizer is a part of a step's compute: on shared cores ranks that end a pass together leave it one by one.
    """
    begin_t = time.monotonic()
    operation_times_s = calibrate(job.calibrate, groups, barrier, strategy, list(model.parameters()))
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

    times_s = time_compute(step, barrier, compute.seconds)
    real = {} if compute.seconds else {"compute_s": statistics.median(times_s)}
    t = time.monotonic()
    records.write("calibration", t=t, lasted_s=t - begin_t, took_s=operation_times_s, compute_times_s=times_s, **real)


def calibrate(
    planned: Sequence[Mapping[str, Any]],
    groups: Groups,
    barrier: StartBarrier,
    strategy: Strategy | None = None,
    parameters: Sequence[Tensor] = (),
) -> list[list[float]]:
    """Return the times of each volley on this rank, in s; empty for one that it has no part in. A collective call.

    ``parameters`` of the model, which exchanges of ``strategy`` leave as they are. Raises RuntimeError.
    """
    exchanges = [volley for volley in planned if volley["kind"] == EXCHANGE]
    times_by_volley: list[list[float]] = [[] for _ in planned]
    with _recorded_into_nothing(groups.hooks) as log:
        for batch in _batches(planned):
            times = _volleys([planned[index] for index in batch], groups, barrier, log)
            for index, volley_times in zip(batch, times, strict=True):
                times_by_volley[index] = volley_times
        walked = iter(_exchanges(exchanges, barrier, strategy, parameters, log) if exchanges and strategy else [])
    return [
        next(walked, []) if volley["kind"] == EXCHANGE else volley_times
        for volley, volley_times in zip(planned, times_by_volley, strict=True)
    ]


@contextlib.contextmanager
def _recorded_into_nothing(hooks: Hooks) -> Iterator[OperationLog]:
    """Take the evidence that a job takes, without recording it."""
    evidence, log = hooks.evidence, OperationLog(0)
    log.begin(0, False)
    with contextlib.closing(Records(Path(os.devnull))) as nowhere, hooks.unobserved():
        hooks.observer, hooks.evidence = log, Evidence(nowhere)
        try:
            yield log
        finally:
            hooks.evidence = evidence


def _batches(planned: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Return which volleys share their idle time: those of different groups, and those that follow without any."""
    batches: list[list[int]] = []
    for index, volley in enumerate(planned):
        if volley["kind"] == EXCHANGE:
            continue
        own = _names(volley)
        overlapping = [batch for batch in batches if any(own & _names(planned[other]) for other in batch)]
        if volley["gap_s"] <= 0 and batches:
            candidates = overlapping[-1:]
        else:
            candidates = [batch for batch in batches if batch not in overlapping]
        if candidates:
            candidates[0].append(index)
        else:
            batches.append([index])
    return batches


def _names(volley: Mapping[str, Any]) -> set[tuple[str, tuple[int, ...]]]:
    return {(name, tuple(ranks)) for name, ranks in volley["groups"]}


def _volleys(
    batch: Sequence[Mapping[str, Any]], groups: Groups, barrier: StartBarrier, log: OperationLog
) -> list[list[float]]:
    """Time volleys one after the other, which have idled together."""
    own = [_own(volley, groups) for volley in batch]
    gap_s = max(max(0.0, float(volley["gap_s"])) for volley in batch)
    times_by_volley: list[list[float]] = [[] for _ in batch]
    follows = any(0 < float(volley["gap_s"]) < SHORT_GAP_S for volley in batch)
    repeating = _Repeating(barrier, gap_s, MOST_SHORT if follows else MOST)
    while repeating.goes_on:
        time.sleep(gap_s)
        slowest = []
        for volley, own_groups, times in zip(batch, own, times_by_volley, strict=True):
            began_t = barrier.begin_after(0.0)
            took_s = 0.0
            if own_groups:
                _do(volley, own_groups)
                took_s = time.monotonic() - began_t
                times.append(took_s)
            slowest.append(took_s)
            log.take()
        repeating.took(slowest)
    return times_by_volley


def _counted(times_s: Sequence[float]) -> Sequence[float]:
    """Return the times that count: of four and more, all but a quarter at each end (``volleys.timed_alone``)."""
    ends = len(times_s) // 4
    return sorted(times_s)[ends : len(times_s) - ends]


class _Repeating:
    """Decides, alike on all ranks, whether to repeat what takes ``gap_s`` of idle time each time."""

    def __init__(self, barrier: StartBarrier, gap_s: float, most: int) -> None:
        self._barrier = barrier
        self._least = max(LEAST, min(LEAST_SHORT, int(LEAST_IDLE_S / gap_s))) if gap_s > 0 else LEAST
        self._most = min(most, max(LEAST, int(BUDGET_S / gap_s))) if gap_s > 0 else most
        self._rows: list[list[float]] = []

    @property
    def goes_on(self) -> bool:
        counted = self._rows[1:]
        if len(counted) < self._least:
            return True
        if len(counted) >= self._most:
            return False
        return any(max(times) > (1 + AGREE) * min(times) for times in map(_counted, zip(*counted, strict=True)))

    def took(self, times_s: Sequence[float]) -> None:
        """Note a repetition: how long each part of it took on this rank. A collective call."""
        self._rows.append([self._barrier.greatest(time_s) for time_s in times_s])


def _exchanges(
    planned: Sequence[Mapping[str, Any]],
    barrier: StartBarrier,
    strategy: Strategy,
    parameters: Sequence[Tensor],
    log: OperationLog,
) -> list[list[float]]:
    """Go through the exchanges of a cycle several times, without the steps between them."""
    tensors = [*(parameter.detach() for parameter in parameters), *strategy.state().values()]
    kept = [tensor.clone() for tensor in tensors]
    times_by_exchange: list[list[float]] = [[] for _ in planned]
    repeating = _Repeating(barrier, sum(max(0.0, float(exchange["gap_s"])) for exchange in planned), MOST)
    number = step = 0
    while repeating.goes_on:
        for exchange, times in zip(planned, times_by_exchange, strict=True):
            step = int(exchange["step"]) + number * int(exchange["cycle"])
            _disturb(parameters, step)
            began_t = barrier.begin_after(max(0.0, float(exchange["gap_s"])))
            strategy.after_step(step)
            if exchange.get("ends") == "timed":
                strategy.finish(step)
            times.append(time.monotonic() - began_t)
            log.take()
        repeating.took([times[-1] for times in times_by_exchange])
        number += 1
    if planned[-1].get("ends") == "after":  # what is on its way lands
        strategy.finish(step)
    with torch.no_grad():
        for tensor, before in zip(tensors, kept, strict=True):
            tensor.copy_(before)
    return times_by_exchange


def _disturb(parameters: Sequence[Tensor], seed: int) -> None:
    """Move ``parameters`` as steps of the optimizer would, on each rank elsewhere: to code zeros is quicker."""
    generator = torch.Generator().manual_seed(dist.get_rank() + 1_000_003 * seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.empty_like(parameter).normal_(0.0, _MOVEMENT, generator=generator))


def time_compute(step: Callable[[int], None], barrier: StartBarrier, seconds: float = 0.0) -> list[float]:
    """Return the times of ``step(number)``, in s, begun by all ranks together; the first one does not count.

    ``seconds``: about how long one takes; they are repeated 2 to 4 times, for about as long as volleys idle. A
    collective call. Raises RuntimeError.
    """
    times = []
    for number in range(1 + max(2, min(4, int(BUDGET_S / seconds) if seconds else 4))):
        began_t = barrier.begin_after(0.0)
        step(number)
        times.append(time.monotonic() - began_t)
    return times[1:]


def _own(volley: Mapping[str, Any], groups: Groups) -> list[tuple[Any, tuple[int, ...]]]:
    """Return this rank's groups of a volley, with their ranks; all ranks make all groups in the same order."""
    own_groups = []
    for name, ranks in volley["groups"]:
        group = groups.world if name == "world" else groups.new(ranks, name)
        if groups.rank in ranks and group is not None:
            own_groups.append((group, tuple(ranks)))
    return own_groups


def _do(volley: Mapping[str, Any], own_groups: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
    """Do a volley, or a burst of them: all begun at once, or each when the one before it has ended."""
    elements = max(1, int(volley["bytes"]) // _ELEMENT_BYTES)
    works: list[Any] = []
    for _ in range(int(volley.get("burst", 1))):
        works += _begin(str(volley["kind"]), elements, own_groups)
        if not volley.get("at_once", True):
            _finish(works)
    _finish(works)


def _finish(works: list[Any]) -> None:
    for work in works:
        work.wait()
    works.clear()


def _begin(kind: str, elements: int, own_groups: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Any]:
    """Begin the operations of a volley in all groups of this rank; of sends also the receipt."""
    if kind == "send":
        return _begin_to_send(elements, own_groups)
    works = []
    for group, ranks in own_groups:
        size = len(ranks)
        part = torch.zeros(-(-elements // size))
        whole = torch.zeros(part.numel() * size)
        if kind == "all_reduce":
            works.append(dist.all_reduce(whole, group=group, async_op=True))
        elif kind == "reduce_scatter":
            works.append(reduce_scatter_into(part, whole, group=group, async_op=True))
        elif kind == "all_gather":
            works.append(gather_into(whole, part, group=group, async_op=True))
        elif kind == "all_to_all":
            works.append(dist.all_to_all_single(torch.empty_like(whole), whole, group=group, async_op=True))
        elif kind == "broadcast":
            works.append(dist.broadcast(whole, src=ranks[0], group=group, async_op=True))
    return works


def _begin_to_send(elements: int, own_groups: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Any]:
    """Begin all messages of a volley at once: from the first rank of each pair to the second.

    Two ranks that send to each other do as they do in a sum.
    """
    works: list[Any] = []
    messages = []
    for group, (source, destination) in own_groups:
        if (group, (destination, source)) in own_groups:
            if source < destination:
                works.append(begin_sum(torch.zeros(elements), group, (source, destination)))
            continue
        sends = dist.get_rank() == source
        peer = destination if sends else source
        messages.append(dist.P2POp(dist.isend if sends else dist.irecv, torch.zeros(elements), peer, group))
    return [*works, *(dist.batch_isend_irecv(messages) if messages else ())]
