"""A strategy's own operations, timed alone before the job: which, how often, after which idle time. Pure.

The twin knows the operations; :func:`volleys` says which of them the agents time
(``testbed_agents.training.calibration``): each distinct one of a cycle, at its size and after as long an idle time as
in the job, with all groups that do it at the same time. Of operations that go on beside the backward pass part by part,
a burst of parts is timed, too: what they take behind one another is not what one takes alone. Of strategies with an
outer loop the whole of an exchange is timed, what each rank computes for it included, by the strategy itself: with
equal parameters it changes nothing.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from testbed.core.records.rank_log import RankLog
from testbed.core.training.exchange import at_once, times
from testbed.core.training.site_process import FORWARD_SHARE
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = [
    "ALIKE",
    "EXCHANGE",
    "Round",
    "Signature",
    "Timed",
    "Volley",
    "cycle_of",
    "has_outer_loop",
    "rounds",
    "signature",
    "timed",
    "timed_alone",
    "volleys",
    "why_not",
]

EXCHANGE: Final = "exchange"
_LONGEST_GAP_S: Final = 1.0
"""TCP halves its window for each retransmission timeout (0.2 s and more) that a connection idles: after so long hardly
one is larger than at its beginning."""
_NEAR_GAP_S: Final = 0.25
"""Where a round trip is short: slow start, which idling brings back, takes a dozen of them at most."""
_NEAR_S: Final = 1e-3
_SHORTER_GAP_S: Final = 0.35
"""Of what does not cross a fiber, for fragments to arrive that land by then."""
_LONGEST_CYCLE: Final = 2000
_IN_BURST: Final = 4
_SHARE_IN_BURST: Final = 6
"""Of many parts a sixth: what a small one takes in a long row shows only in a long one."""
_SHARE_OF_MESSAGES: Final = 2
"""Of many messages, all of which are on their way at once, half: TCP carries a sixth in two round trips or in three."""
_MOST_EXCHANGES: Final = 8
ALIKE: Final = 1.25
"""Operations whose sizes differ by no more than this factor take as long as each other."""


@dataclass(frozen=True)
class Volley:
    """Operations of one kind and size that groups do at the same time.

    Attributes:
        groups: names and ranks.
        gap_s: for how long the connections idle before it in the job.
        crosses: whether a group has ranks at several sites.
        beside: whether it is a part of an operation that goes on beside the backward pass.
        burst: so many of them follow one another; more than 1 only of such parts.
        at_once: all of a burst are begun at once; else each when the one before it has ended.
        step: for the kind ``exchange``: what the strategy does after this step of a cycle of ``cycle`` steps; and
            what it does at the end of a job, if ``ends``: ``timed`` too, or only to land what is on its way.
    """

    kind: str
    byte_count: float
    groups: tuple[tuple[str, tuple[int, ...]], ...]
    gap_s: float
    crosses: bool
    beside: bool
    burst: int = 1
    at_once: bool = True
    what: str = ""
    step: int = 0
    cycle: int = 0
    ends: str = ""

    def to_message(self) -> dict[str, Any]:
        """Return what the agents are told."""
        if self.kind == EXCHANGE:
            message = {"kind": self.kind, "step": self.step, "cycle": self.cycle, "gap_s": self.gap_s}
            return {**message, "ends": self.ends} if self.ends else message
        groups = [[name, list(ranks)] for name, ranks in self.groups]
        burst = {"burst": self.burst, "at_once": self.at_once} if self.burst > 1 else {}
        return {"kind": self.kind, "bytes": round(self.byte_count), "groups": groups, "gap_s": self.gap_s, **burst}


@dataclass(frozen=True)
class Round:
    """Equal operations of a step that different groups do at the same time, each ``times`` one after the other."""

    operations: tuple[Operation, ...]
    times: int
    crosses: bool

    @property
    def first(self) -> Operation:
        return self.operations[0]

    @property
    def part_bytes(self) -> float:
        """Bytes of one part, or of all of it."""
        return self.first.byte_count / max(1, self.first.parts)

    @property
    def groups(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        return tuple(dict.fromkeys((operation.group, tuple(operation.ranks)) for operation in self.operations))

    def like(self, volley: Volley) -> bool:
        """Whether ``volley`` times operations such as these."""
        first = self.first
        small, large = sorted((self.part_bytes, volley.byte_count))
        return (
            volley.kind != EXCHANGE
            and (volley.kind, volley.what, volley.beside) == (first.kind, first.what, first.parts > 0)
            and {ranks for _, ranks in volley.groups} == {ranks for _, ranks in self.groups}
            and large <= ALIKE * small
        )


def cycle_of(twin: Twin) -> int:
    """Return the steps after which the operations recur, as far as they are looked at."""
    return max(1, min(twin.cycle, twin.layout.steps, _LONGEST_CYCLE))


def why_not(twin: Twin) -> str:
    """Return why the time of a step is not predicted; empty if it is."""
    return twin.unpredicted or _unlike(twin)


def _unlike(twin: Twin) -> str:
    if len(twin.layout.site_names) < 2:
        return "all ranks are at one site"
    if any(speed != 1.0 for speed in twin.layout.speeds.values()):
        return "its sites have different speeds, and the model of a step has one"
    return ""


def rounds(operations: Iterable[Operation], sites: Sequence[str]) -> tuple[Round, ...]:
    """Return the operations of a step in the order in which its ranks do them.

    Connections of a strategy's own across fibers are left out.
    """
    watched = (operation for operation in operations if operation.watched or not _crosses([operation], sites))
    return tuple(Round(group, times(group), _crosses(group, sites)) for group in at_once(watched))


def volleys(twin: Twin, step_s: float, round_trip_s: float = 1.0) -> tuple[Volley, ...]:
    """Return what is to be timed, in the order in which a cycle does it; () if nothing can be timed.

    ``step_s``: about how long a step takes. ``round_trip_s``: the longest one between two sites, which says how long
    connections idle before an operation.
    """
    if not twin.timed or _unlike(twin):
        return ()
    cycle = cycle_of(twin)
    distinct: list[Volley] = []
    counts: list[int] = []
    for step in range(1, cycle + 1):
        of_step = rounds(twin.operations(step), twin.layout.sites)
        if has_outer_loop(twin):
            of_step = tuple(volley for volley in of_step if volley.first.parts or volley.first.lands)
        staged = sum(volley.first.parts > 0 for volley in of_step) > 1
        for planned in of_step:
            alike = next((index for index, volley in enumerate(distinct) if planned.like(volley)), None)
            if alike is None:
                first = planned.first
                distinct.append(
                    Volley(
                        str(first.kind), planned.part_bytes, planned.groups, 0.0, planned.crosses, first.parts > 0,
                        _burst(first), planned.crosses or not staged, first.what,
                    )
                )  # fmt: skip
                counts.append(planned.times)
            else:
                distinct[alike] = replace(
                    distinct[alike], byte_count=max(distinct[alike].byte_count, planned.part_bytes)
                )
                counts[alike] += planned.times
    longest_s = _LONGEST_GAP_S if round_trip_s > _NEAR_S else _NEAR_GAP_S
    return (*_planned(distinct, counts, cycle, step_s, longest_s), *_exchanges(twin, cycle, step_s, longest_s))


def _burst(of: Operation) -> int:
    """Return how many of an operation's parts are timed one behind the other."""
    share = _SHARE_OF_MESSAGES if of.kind == "send" else _SHARE_IN_BURST
    return max(1, min(of.parts, _IN_BURST), of.parts // share)


def has_outer_loop(twin: Twin) -> bool:
    """Whether what follows the inner optimizer is an exchange of its own, that the strategy can rehearse."""
    return twin.composed and twin.outer_updates(twin.layout.steps) > 0


Signature = tuple[tuple[str, tuple[int, ...], int], ...]


def signature(operations: Iterable[Operation]) -> Signature:
    """Return what follows the inner optimizer: kind, ranks, and steps until it lands; () for nothing."""
    after = (operation for operation in operations if not (operation.before_update or operation.parts))
    return tuple(sorted((str(operation.kind), operation.ranks, operation.lands) for operation in after))


def _exchanges(twin: Twin, cycle: int, step_s: float, longest_gap_s: float) -> Iterator[Volley]:
    """Yield the first exchanges of a cycle, until each kind was there; what lands needs those before it."""
    if not has_outer_loop(twin):
        return
    last, sites = twin.layout.steps, twin.layout.sites
    of = {step: tuple(twin.operations(step)) for step in range(1, 2 * cycle + 1) if step < last}
    kinds = {signature(operations) for operations in of.values()} - {()}
    due: list[int] = []
    for step, operations in of.items():
        if signature(operations) and kinds and len(due) < _MOST_EXCHANGES:
            due.append(step)
            kinds.discard(signature(operations))
    due = due or [last]  # a job that is shorter than a cycle ends with its only exchange
    flies = any(operation.lands for operations in of.values() for operation in operations)
    for before, step in itertools.pairwise((0, *due)):
        awaited = [
            operation
            for operation in twin.operations(step)
            if not (operation.before_update or operation.parts or operation.lands)
        ]
        longest_s = longest_gap_s if _crosses(awaited, sites) else _SHORTER_GAP_S
        ends = "timed" if step == last else "after" if flies and step == due[-1] else ""
        yield Volley(
            EXCHANGE, 0.0, (), min(longest_s, step_s * (step - before)), True, False, step=step, cycle=cycle, ends=ends
        )


def _planned(
    distinct: Sequence[Volley], counts: Sequence[int], cycle: int, step_s: float, longest_gap_s: float
) -> Iterator[Volley]:
    for volley, count in zip(distinct, counts, strict=True):
        idle_s = step_s * cycle / count
        if volley.beside:  # parts of the backward pass follow one another; before the first one is a forward pass
            idle_s -= (1 - FORWARD_SHARE) * step_s
        yield replace(volley, gap_s=min(longest_gap_s if volley.crosses else _NEAR_GAP_S, idle_s), burst=1)
        if volley.burst > 1:
            yield volley


@dataclass(frozen=True)
class Timed:
    """How long one volley took alone, over repetitions, in seconds: the mean, and the quartiles."""

    mean_s: float
    fast_s: float
    slow_s: float


def timed_alone(ranks: Mapping[int, Sequence[float]]) -> Timed:
    """Return how long the slowest rank took for a volley.

    With four or more repetitions the mean leaves out a quarter at each end, so that a single stall of the machine does
    not count.

    ``ranks``: the times of each in s; the first repetition, which warms connections, does not count.
    """
    slowest = [max(times) for times in zip(*(operations for operations in ranks.values() if operations), strict=False)]
    counted = sorted(slowest[1:] or slowest)
    if not counted:
        return Timed(0.0, 0.0, 0.0)
    ends = len(counted) // 4
    return Timed(statistics.fmean(counted[ends : len(counted) - ends]), counted[ends], counted[-1 - ends])


def timed(twin: Twin, logs: Sequence[RankLog], about_s: float) -> tuple[tuple[Volley, ...], tuple[Timed, ...]]:
    """Return the volleys of a job, and how long its ranks took for each; both empty if not all ranks timed them.

    ``about_s``: compute of a step, where none is declared.
    """
    planned = volleys(twin, twin.layout.step_s or about_s)
    ranks = {log.rank: log.calibrations[-1].took_s for log in logs if log.calibrations}
    if not ranks or any(len(operations) != len(planned) for operations in ranks.values()):
        return (), ()
    timings = (
        timed_alone({rank: operations[index] for rank, operations in ranks.items()}) for index in range(len(planned))
    )
    return planned, tuple(timings)


def _crosses(operations: Iterable[Operation], sites: Sequence[str]) -> bool:
    return any(len({sites[rank] for rank in operation.ranks}) > 1 for operation in operations)
