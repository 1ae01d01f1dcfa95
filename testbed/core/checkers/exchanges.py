"""Is everything exchanged that the strategy's twin says, once and no more?

In each step each rank begins operations of the twin's bytes in each process group: a fragment that was never sent is
missing in its round of H steps, one that is sent twice, or that has tensors of another one in it too, is too much. So
each fragment is exchanged exactly once in H steps. Padding and what a library adds are within the slack.

What the process group does not see, because a strategy has groups or connections of its own, is judged by the records
of the versions of the outer parameters (``Twin.wrong_exchanges``): here where all ranks apply the same exchanges after
the same steps, else with the server's (``server_exchanges.py``). The bytes of pushes to a server, of their receipts and
of adopted versions are compared here, with ``Twin.parcel_bytes``.

Attempts that resume send again what was on its way; their first round is not compared. Groups of which no rank has any
record (those of a library of its own) leave the verdict unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from testbed.core.checkers.finding import Checker, Finding, conclude, named
from testbed.core.fields import number
from testbed.core.records.check_record import Grouped
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin

__all__ = ["exchanges"]

SLACK = 0.01
"""Share of a step's bytes in a group by which they may differ: padding of slices and blocks."""
SLACK_BYTES = 1024.0

_Place = tuple[str, str]
"""Process group and kind of operation, as a rank sees it: it sends, or receives."""


def exchanges(records: Grouped, twin: Twin) -> Checker:
    """Judge the bytes of all operations of all ranks, over all attempts."""
    moved = _recorded(records)
    said = _Said(twin)
    findings: list[Finding] = []
    compared, silent = 0, set[str]()
    for attempt in sorted({of for of, _ in records.steps}):
        known = {group for (of, _, _), places in moved.items() if of == attempt for group, _ in places}
        wrong: dict[tuple[int, str, str], list[int]] = defaultdict(list)
        for step, rank in _steps(records, twin, attempt):
            expected = said.of(rank, step)
            found = moved.get((attempt, step, rank), {})
            for place in sorted(expected.keys() | {it for it in found if it[0] in said.groups}):
                group, kind = place
                if group not in known:
                    silent.add(group)
                    continue
                compared += 1
                text = _differ(kind, expected.get(place, 0.0), found.get(place, 0.0))
                if text:
                    wrong[step, group, text].append(rank)
        findings += [
            Finding(attempt, step, None, tuple(sorted(ranks)), f"{group}: {named(ranks)} {text}", group)
            for (step, group, text), ranks in wrong.items()
        ]
    parcels = _parcels(records, twin)
    compared += parcels.compared
    findings += parcels.findings
    looked_at = f"bytes of {compared} exchanges compared with those of {twin.name}"
    undecided = "" if compared else "no operation was recorded"
    if silent:
        undecided = (
            f"no operation of the process group{'s' * (len(silent) > 1)} {', '.join(sorted(silent))} was recorded"
        )
    for attempt, written in records.versions.items() if twin.together else ():
        wrong_ones = twin.wrong_exchanges([it.fields for _, it in written])
        findings += [Finding(attempt, 0, None, (), text, "versions") for text in wrong_ones]
        compared += len(written)
    count = len({(it.attempt, it.step, it.group) for it in findings})
    return conclude("exchanges", records, looked_at, findings, count, undecided)


@dataclass
class _Parcels:
    compared: int = 0
    findings: list[Finding] = field(default_factory=list)


def _parcels(records: Grouped, twin: Twin) -> _Parcels:
    """Compare what sites and a server moved over connections of their own; a rank without a slice moves nothing."""
    found = _Parcels()
    for attempt, written in records.versions.items():
        for rank, it in written:
            moved, expected = number(it.fields, "bytes"), twin.parcel_bytes(it.fragment)
            if moved is None or expected is None or it.fields.get("slice") is None:
                continue
            found.compared += 1
            if text := _differ("recv" if it.what in ("received", "pulled") else "send", expected, moved):
                which = f"push {it.push}" if it.what != "pulled" else f"version {it.version}"
                text = f"{which} of {it.site}: rank {rank} {text}"
                found.findings.append(Finding(attempt, it.step or 0, None, (rank,), text, "parcels", it.fragment))
    return found


def _recorded(records: Grouped) -> dict[tuple[int, int, int], dict[_Place, float]]:
    """Return (attempt, step, rank) -> group and kind -> bytes of the operations that began in the step."""
    found: dict[tuple[int, int, int], dict[_Place, float]] = defaultdict(lambda: defaultdict(float))
    for tag, ranks in records.operations.items():
        for rank, done in ranks.items():
            if done.kind == "sum":
                continue  # of what was received, by the ranks themselves: nothing is sent
            found[tag.attempt, done.step, rank][tag.group, done.kind] += done.byte_count
    return found


def _steps(records: Grouped, twin: Twin, attempt: int) -> Iterator[tuple[int, int]]:
    """Yield (step, rank) whose operations are all recorded, as far as they began in the step."""
    starts = records.began.get(attempt, {})
    first = min((it.step for it in starts.values()), default=0)
    begin = first + 1 + (twin.longest_gap if first else 0)
    total = twin.layout.steps
    last: dict[int, int] = defaultdict(int)
    for (of, step), ranks in records.steps.items():
        for rank in ranks if of == attempt else ():
            last[rank] = max(last[rank], step)
    for (of, step), ranks in records.steps.items():
        if of != attempt or step < begin:
            continue
        lands = max((it.lands for it in twin.operations(step)), default=0)
        yield from ((step, rank) for rank in ranks if step + lands <= last[rank] or step == total == last[rank])


@dataclass
class _Said:
    """What the twin says that each rank does in each step; equal steps are worked out once."""

    twin: Twin

    def __post_init__(self) -> None:
        self._known: dict[tuple[int, tuple[Operation, ...]], Mapping[_Place, float]] = {}
        steps = range(1, min(self.twin.layout.steps, 2 * self.twin.longest_gap + 1) + 1)
        self.groups = {
            it.group for step in (*steps, self.twin.layout.steps) for it in self.twin.operations(step) if it.watched
        }

    def of(self, rank: int, step: int) -> Mapping[_Place, float]:
        operations = tuple(self.twin.operations(step))
        if (rank, operations) not in self._known:
            found: dict[_Place, float] = defaultdict(float)
            for operation in operations:
                if rank in operation.ranks and operation.watched:
                    receives = operation.kind == "send" and rank != operation.ranks[0]
                    found[operation.group, "recv" if receives else operation.kind] += operation.byte_count
            self._known[rank, operations] = found
        return self._known[rank, operations]


def _differ(kind: str, expected: float, found: float) -> str:
    if abs(found - expected) <= SLACK * expected + SLACK_BYTES:
        return ""
    verb = "received" if kind == "recv" else "sent" if kind == "send" else f"put into {kind}"
    if not found:
        return f"{verb} nothing, expected {expected:.0f} bytes"
    return f"{verb} {found:.0f} bytes, expected {expected:.0f}"
