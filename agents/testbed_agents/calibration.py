"""Time a strategy's operations alone, before the job: at their sizes, after their idle times, all groups at once.

What is to be timed comes with the job (``testbed.core.analysis.volleys.volleys``); nothing here knows a
strategy. The ranks meet before each repetition. No operation is recorded as one of the job.

Exchanges of an outer loop are timed by the strategy itself (``Strategy.after_step``), with all that it computes for
them, of parameters that differ by rank; afterwards parameters and state are put back bit by bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from testbed_agents.exchange import begin_sum, gather_into, reduce_scatter_into
from testbed_agents.groups import Groups
from testbed_agents.strategies.strategy import Strategy

__all__ = ["calibrate", "time_compute"]

EXCHANGE = "exchange"

REPETITIONS = 5
"""The first one warms connections, and does not count."""
MOST_REPETITIONS = 13
"""Of volleys that follow one another within a step: they are short, and their times vary most."""
SHORT_GAP_S = 0.05
BUDGET_S = 2.0
"""Idle time of all repetitions of volleys together, and of exchanges; a longer one is shortened to this, but each is
timed twice."""
_ELEMENT_BYTES = 4
_MOVEMENT = 1e-3
_MORE = 1.5
"""So many times as long as ranks need to agree on a time it lies ahead."""


def calibrate(
    planned: Sequence[Mapping[str, Any]],
    groups: Groups,
    strategy: Strategy | None = None,
    parameters: Sequence[Tensor] = (),
) -> list[list[float]]:
    """Return the times of each volley on this rank, in s; empty for one that it has no part in. A collective call.

    ``parameters`` of the model, which exchanges of ``strategy`` leave as they are.
    """
    volleys = [it for it in planned if it["kind"] != EXCHANGE]
    exchanges = [it for it in planned if it["kind"] == EXCHANGE]
    meeting = _Meeting(groups)
    times = iter(_volleys(volleys, groups, meeting))
    walked = iter(_exchanges(exchanges, meeting, strategy, parameters) if exchanges and strategy else [])
    return [next(walked if it["kind"] == EXCHANGE else times, []) for it in planned]


class _Meeting:
    """Lets all ranks begin at the same time: the clock is that of one host.

    After a barrier alone, ranks go on up to a round trip apart, and each operation would seem to take so much longer.
    """

    def __init__(self, groups: Groups) -> None:
        self._world, self._agreeing_s = groups.world, 0.0
        for _ in range(2):  # the first one makes connections
            began_t = time.monotonic()
            self._latest(began_t)
            took_s = time.monotonic() - began_t
        self._agreeing_s = self._latest(took_s)

    def begin_after(self, gap_s: float) -> float:
        """Sleep for about ``gap_s``, return when all ranks do so, and what time it is."""
        time.sleep(gap_s)
        wait_s = _MORE * self._agreeing_s
        begin_t = self._latest(time.monotonic() + wait_s)
        time.sleep(min(max(0.0, begin_t - time.monotonic()), wait_s))
        return time.monotonic()

    def _latest(self, value: float) -> float:
        found = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._world)
        return float(found)


def _volleys(planned: Sequence[Mapping[str, Any]], groups: Groups, meeting: _Meeting) -> list[list[float]]:
    own = [_own(volley, groups) for volley in planned]
    left_s = BUDGET_S
    found: list[list[float]] = []
    for volley, mine in zip(planned, own, strict=True):
        gap_s = max(0.0, float(volley["gap_s"]))
        most = MOST_REPETITIONS if 0 < gap_s < SHORT_GAP_S else REPETITIONS
        repetitions = min(most, max(2, int(left_s / gap_s))) if gap_s else most
        left_s -= repetitions * gap_s
        times = []
        for _ in range(repetitions):
            began_t = meeting.begin_after(gap_s)
            if mine:
                _do(volley, mine)
                times.append(time.monotonic() - began_t)
        found.append(times)
    return found


def _exchanges(
    planned: Sequence[Mapping[str, Any]], meeting: _Meeting, strategy: Strategy, parameters: Sequence[Tensor]
) -> list[list[float]]:
    """Go through the exchanges of a cycle several times, without the steps between them."""
    tensors = [*(it.detach() for it in parameters), *strategy.state().values()]
    kept = [it.clone() for it in tensors]
    repetitions = min(REPETITIONS, max(2, round(BUDGET_S / max(1e-3, sum(float(it["gap_s"]) for it in planned)))))
    found: list[list[float]] = [[] for _ in planned]
    for number in range(repetitions):
        for it, times in zip(planned, found, strict=True):
            step = int(it["step"]) + number * int(it["cycle"])
            _disturb(parameters, step)
            began_t = meeting.begin_after(max(0.0, float(it["gap_s"])))
            strategy.after_step(step)
            if it.get("ends") == "timed":
                strategy.finish(step)
            times.append(time.monotonic() - began_t)
            if it.get("ends") == "after":
                strategy.finish(step)
    with torch.no_grad():
        for tensor, before in zip(tensors, kept, strict=True):
            tensor.copy_(before)
    return found


def _disturb(parameters: Sequence[Tensor], seed: int) -> None:
    """Move ``parameters`` as steps of the optimizer would, on each rank elsewhere: to code zeros is quicker."""
    generator = torch.Generator().manual_seed(dist.get_rank() + 1_000_003 * seed)
    with torch.no_grad():
        for it in parameters:
            it.add_(torch.empty_like(it).normal_(0.0, _MOVEMENT, generator=generator))


def time_compute(step: Callable[[int], None], groups: Groups, seconds: float = 0.0) -> list[float]:
    """Return the times of ``step(number)``, in s, begun by all ranks together; the first one does not count.

    ``seconds``: about how long one takes; they are repeated for as long as volleys, 2 to 4 times. A collective call.
    """
    meeting, times = _Meeting(groups), []
    for number in range(1 + max(2, min(4, int(BUDGET_S / 2 / seconds) if seconds else 4))):
        began_t = meeting.begin_after(0.0)
        step(number)
        times.append(time.monotonic() - began_t)
    return times[1:]


def _own(volley: Mapping[str, Any], groups: Groups) -> list[tuple[Any, tuple[int, ...]]]:
    """Return this rank's groups of a volley, with their ranks; all ranks make all groups in the same order."""
    found = []
    for name, ranks in volley["groups"]:
        group = groups.world if name == "world" else groups.new(ranks, name)
        if groups.rank in ranks and group is not None:
            found.append((group, tuple(ranks)))
    return found


def _do(volley: Mapping[str, Any], mine: Sequence[tuple[Any, tuple[int, ...]]]) -> None:
    """Do a volley, or a burst of them: all begun at once, or each when the one before it has ended."""
    elements = max(1, int(volley["bytes"]) // _ELEMENT_BYTES)
    works: list[Any] = []
    for _ in range(int(volley.get("burst", 1))):
        works += _begin(str(volley["kind"]), elements, mine)
        if not volley.get("at_once", True):
            _finish(works)
    _finish(works)


def _finish(works: list[Any]) -> None:
    for work in works:
        work.wait()
    works.clear()


def _begin(kind: str, elements: int, mine: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Any]:
    """Begin the operations of a volley in all groups of this rank; of sends also the receipt."""
    if kind == "send":
        return _begin_to_send(elements, mine)
    works = []
    for group, ranks in mine:
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


def _begin_to_send(elements: int, mine: Sequence[tuple[Any, tuple[int, ...]]]) -> list[Any]:
    """Begin all messages of a volley at once: from the first rank of each pair to the second.

    Two ranks that send to each other do as they do in a sum.
    """
    works: list[Any] = []
    messages = []
    for group, (source, destination) in mine:
        if (group, (destination, source)) in mine:
            if source < destination:
                works.append(begin_sum(torch.zeros(elements), group, (source, destination)))
            continue
        sends = dist.get_rank() == source
        peer = destination if sends else source
        messages.append(dist.P2POp(dist.isend if sends else dist.irecv, torch.zeros(elements), peer, group))
    return [*works, *(dist.batch_isend_irecv(messages) if messages else ())]
