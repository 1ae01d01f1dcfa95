"""Records of the ranks for the checkers (``ranks/rank-<r>.checks.jsonl``; contract: docs/checkers.md).

Reading is as lenient as in ``core/fields.py``: a line that lacks a required field is counted and left out; a checker
that misses it then has the verdict unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from statistics import median
from types import MappingProxyType
from typing import Annotated, Any

from testbed.core.fields import Fields, Malformed, integer, need_number, need_text, numbers, sequence, text
from testbed.core.json_record import UNREAD, JsonRecord, Or, read_kinds
from testbed.core.records.exchange_record import ExchangeRecord
from testbed.core.records.operation_record import (
    Attempt,
    Done,
    Encoded,
    OuterStep,
    Sample,
    Tag,
    Weighed,
    read_operation,
    unpacked,
)

__all__ = ["Began", "CheckLog", "CheckedStep", "Grouped", "Held", "Wait", "read_checks"]


@dataclass(frozen=True)
class Began(JsonRecord):
    """The beginning of an attempt on one rank, after ``step`` (0: from scratch)."""

    attempt: Attempt
    t: float
    step: int
    world_size: int
    hang_s: float
    parameters: str
    optimizer_steps: int
    fingerprints: Annotated[Mapping[str, str], Or(MappingProxyType({}))]
    outer_version: int | None


@dataclass(frozen=True)
class CheckedStep(JsonRecord):
    """One step on one rank, or what followed its last one.

    Attributes:
        trained_on, became: fingerprints of the parameters before and after; empty where not taken.
        operations: that ended in it, or were recorded with it because they failed or never ended.
        fingerprints, fingerprints_before: by name, after and before; empty where not taken.
        trace: checksums of a few elements of the same tensors, after every step; empty in former versions.
        outer_version: after it; None where the strategy counts no exchanges.
    """

    attempt: Attempt
    step: int
    optimizer_steps: int
    operations: Annotated[tuple[tuple[Tag, Done], ...], UNREAD]
    trained_on: Annotated[str, Or("")]
    became: Annotated[str, Or("")]
    t: float = 0.0
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    fingerprints_before: Mapping[str, str] = field(default_factory=dict)
    trace: Mapping[str, str] = field(default_factory=dict)
    outer_version: int | None = None


@dataclass(frozen=True)
class Wait:
    """At ``t`` a rank had been in an operation (``tag`` None: in none) since ``since_t``, beyond the bound."""

    attempt: int
    t: float
    step: int
    tag: Tag | None
    since_t: float
    kind: str = "all_reduce"


@dataclass(frozen=True)
class Held(JsonRecord):
    """The process of a rank did not run from ``since_t`` to ``t``."""

    since_t: float
    t: float


@dataclass(frozen=True)
class CheckLog:
    """The records of one rank for the checkers. ``finishes``: what followed the last step of a stopped attempt;
    ``unfinished``: operations that failed or never ended."""

    rank: int
    began: tuple[Began, ...] = ()
    steps: tuple[CheckedStep, ...] = ()
    waits: tuple[Wait, ...] = ()
    held: tuple[Held, ...] = ()
    finishes: tuple[CheckedStep, ...] = ()
    unfinished: tuple[tuple[Tag, Done], ...] = ()
    encoded: tuple[Encoded, ...] = ()
    outer: tuple[OuterStep, ...] = ()
    weighed: tuple[Weighed, ...] = ()
    versions: tuple[ExchangeRecord, ...] = ()
    """What a strategy wrote of versions of the outer parameters, in order."""


def read_checks(rank: int, lines: Iterable[object]) -> tuple[CheckLog, int]:
    """Read ``ranks/rank-<rank>.checks.jsonl``, decoded line by line: (log, malformed lines)."""
    reader = _Reader(rank)
    records, malformed = read_kinds(lines, reader.kinds())
    return reader.log(records), malformed


class _Reader:
    """Reads what takes more than its own line: operations name groups that other lines describe."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._groups: defaultdict[int, dict[str, tuple[int, ...]]] = defaultdict(dict)
        self._samples: dict[tuple[int, int, int], Sample] = {}

    def kinds(self) -> dict[str, Callable[[Fields], Any]]:
        return {
            "begin": Began.from_dict,
            "step": self._step,
            "finish": self._step,
            "group": self._group,
            "unfinished": self._operations,
            "sample": self._sample,  # of former versions
            "encoded": Encoded.from_dict,
            "weighed": Weighed.from_dict,
            "outer": OuterStep.from_dict,
            "exchange": ExchangeRecord.from_dict,
            "waits": self._wait,
            "held": Held.from_dict,
        }

    def log(self, records: Mapping[str, tuple[Any, ...]]) -> CheckLog:
        return CheckLog(
            self._rank,
            records["begin"],
            tuple(replace(step, operations=tuple(map(self._with_sample, step.operations))) for step in records["step"]),
            tuple(map(self._with_ranks, records["waits"])),
            records["held"],
            records["finish"],
            tuple(chain.from_iterable(records["unfinished"])),
            records["encoded"],
            records["outer"],
            records["weighed"],
            records["exchange"],
        )

    def _with_ranks(self, wait: Wait) -> Wait:
        """Return the wait with the ranks of its group, which is recorded later if this is its first operation."""
        if wait.tag is None or not wait.tag.group:
            return wait
        return replace(wait, tag=wait.tag._replace(ranks=self._groups[wait.attempt].get(wait.tag.group, ())))

    def _with_sample(self, recorded: tuple[Tag, Done]) -> tuple[Tag, Done]:
        tag, done = recorded
        sample = self._samples.get((tag.attempt, tag.within, tag.sequence)) if tag.within else None
        return (tag, replace(done, sample=sample)) if sample else recorded

    def _group(self, fields: Fields) -> None:
        ranks = tuple(map(int, numbers(fields, "ranks")))
        self._groups[_attempt(fields)][need_text(fields, "group")] = ranks

    def _sample(self, fields: Fields) -> None:
        at = tuple(map(int, numbers(fields, "at")))
        inputs, outputs = (unpacked(need_text(fields, key), len(at)) for key in ("inputs", "outputs"))
        key = (_attempt(fields), int(need_number(fields, "step")), int(need_number(fields, "sequence")))
        self._samples[key] = Sample(at, inputs, at, outputs)

    def _operations(self, fields: Fields) -> tuple[tuple[Tag, Done], ...]:
        attempt, step = _attempt(fields), int(need_number(fields, "step"))
        listed = _objects(fields, "operations")
        return tuple(read_operation(line, self._rank, attempt, step, self._groups[attempt]) for line in listed)

    def _step(self, fields: Fields) -> CheckedStep:
        operations = _collectives(fields) if "collectives" in fields else self._operations(fields)
        return CheckedStep.from_dict(fields, operations=operations)

    def _wait(self, fields: Fields) -> Wait:
        attempt, step = _attempt(fields), int(need_number(fields, "step"))
        number_of, since_t = integer(fields, "sequence"), need_number(fields, "since_t")
        tag = None
        if "operation" in fields:
            operation = {**fields, "bytes": 0, "began_t": since_t}
            tag, _ = read_operation(operation, self._rank, attempt, step, self._groups[attempt])
        elif number_of is not None:
            tag = _former(attempt, step, number_of)
        return Wait(attempt, need_number(fields, "t"), step, tag, since_t, text(fields, "operation", "all_reduce"))


def _attempt(fields: Fields) -> int:
    return integer(fields, "attempt") or 1


def _objects(fields: Fields, key: str) -> list[Fields]:
    listed = sequence(fields, key)
    objects = [line for line in listed if isinstance(line, Mapping)]
    if len(objects) < len(listed):
        raise Malformed(f"'{key}' holds something other than objects")
    return objects


def _former(attempt: int, step: int, sequence_of: int) -> Tag:
    return Tag(attempt, "", (), "", None, step, sequence_of)


def _collectives(fields: Fields) -> tuple[tuple[Tag, Done], ...]:
    """Read the collectives of a step as former versions recorded them: sums over all ranks."""
    attempt, step = _attempt(fields), int(need_number(fields, "step"))
    return tuple(
        (
            _former(attempt, step, index),
            Done(
                kind="all_reduce",
                step=step,
                byte_count=4 * int(need_number(line, "elements")),
                began_t=need_number(line, "began_t"),
                ended_t=need_number(line, "ended_t"),
                crc32=need_text(line, "crc32"),
                reduction="sum",
                dtype="float32",
            ),
        )
        for index, line in enumerate(_objects(fields, "collectives"))
    )


@dataclass(frozen=True)
class Grouped:
    """The records by attempt, step and collective. ``incomplete``: what is missing, as text; empty if nothing is."""

    world_size: int
    began: Mapping[int, Mapping[int, Began]]
    """attempt -> rank -> its beginning."""
    steps: Mapping[tuple[int, int], Mapping[int, CheckedStep]]
    """(attempt, step) -> rank -> its record, ordered by both."""
    operations: Mapping[Tag, Mapping[int, Done]]
    """Operation -> rank -> what it recorded of it, failed and unended ones included."""
    finishes: Mapping[int, Mapping[int, CheckedStep]]
    """attempt -> rank -> what followed its last step, if it was stopped."""
    waits: Mapping[int, Sequence[Wait]]
    held: Mapping[int, Sequence[Held]]
    encoded: Mapping[int, Sequence[Encoded]]
    outer: Mapping[int, Sequence[OuterStep]]
    weighed: Mapping[int, Sequence[Weighed]]
    versions: Mapping[int, Sequence[tuple[int, ExchangeRecord]]]
    """attempt -> rank, and what its strategy wrote of a version of the outer parameters; in the order of each rank."""
    incomplete: str
    longest_gap: int = 1
    """How many steps one rank may be ahead of another."""

    @classmethod
    def of(cls, logs: Sequence[CheckLog], longest_gap: int = 1) -> Grouped:
        began: dict[int, dict[int, Began]] = {}
        steps: dict[tuple[int, int], dict[int, CheckedStep]] = {}
        finishes: dict[int, dict[int, CheckedStep]] = {}
        operations: dict[Tag, dict[int, Done]] = {}
        versions: dict[int, list[tuple[int, ExchangeRecord]]] = {}
        for log in logs:
            for written in log.versions:
                versions.setdefault(written.attempt, []).append((log.rank, written))
            for start in log.began:
                began.setdefault(start.attempt, {})[log.rank] = start
            for done in log.steps:
                steps.setdefault((done.attempt, done.step), {})[log.rank] = done
            for done in log.finishes:
                finishes.setdefault(done.attempt, {})[log.rank] = done
            listed = [it for each in (*log.steps, *log.finishes) for it in each.operations]
            for tag, operation in (*listed, *log.unfinished):
                operations.setdefault(tag, {})[log.rank] = operation
        starts = [start for of_rank in began.values() for start in of_rank.values()]
        return cls(
            world_size=max([start.world_size for start in starts], default=len(logs)),
            began=dict(sorted(began.items())),
            steps=dict(sorted(steps.items())),
            operations=operations,
            finishes=finishes,
            waits={log.rank: log.waits for log in logs},
            held={log.rank: log.held for log in logs},
            encoded={log.rank: log.encoded for log in logs},
            outer={log.rank: log.outer for log in logs},
            weighed={log.rank: log.weighed for log in logs},
            versions=versions,
            incomplete=_incomplete(began, steps, longest_gap),
            longest_gap=longest_gap,
        )

    def members(self, tag: Tag) -> tuple[int, ...]:
        """Return the ranks that take part in an operation."""
        return tag.ranks or tuple(self.ranks)

    def last_step(self, attempt: int) -> int:
        """Return the newest step of an attempt that any rank has recorded; 0 for none."""
        return max((step for of, step in self.steps if of == attempt), default=0)

    def step_s(self, attempt: int) -> float:
        """Return how long a step took at the rank that was slowest by the median; 0 if nothing is known of it."""
        times: dict[int, list[float]] = {}
        for (of, _), ranks in self.steps.items():
            for rank, each in ranks.items() if of == attempt else ():
                times.setdefault(rank, []).append(each.t)
        return max(
            (median(after - before for before, after in pairwise(each)) for each in times.values() if len(each) > 1),
            default=0.0,
        )

    @property
    def ranks(self) -> range:
        return range(self.world_size)


def _incomplete(
    began: Mapping[int, Mapping[int, Began]],
    steps: Mapping[tuple[int, int], Mapping[int, CheckedStep]],
    longest_gap: int,
) -> str:
    """Return which required record is missing; empty if none.

    A rank is at most ``longest_gap`` steps ahead of another, because they exchange something: if they do so in each
    step, the records of two ranks end at the same step or at neighbouring ones, however the job ended.
    """
    for attempt in sorted({*began, *(attempt for attempt, _ in steps)}):
        starts = began.get(attempt, {})
        done: dict[int, set[int]] = {}
        for (of_attempt, step), ranks in steps.items():
            for rank in ranks if of_attempt == attempt else ():
                done.setdefault(rank, set()).add(step)
        if not starts:
            return f"no rank has a record of how attempt {attempt} began"
        first = min(start.step for start in starts.values())
        last = max((max(each) for each in done.values()), default=first)
        world_size = max(start.world_size for start in starts.values())
        for rank in range(world_size):
            recorded = done.get(rank, set())
            needed = max(last - longest_gap + 1, max(recorded, default=0))
            missing = next((step for step in range(first + 1, needed) if step not in recorded), None)
            if missing is not None:
                return f"rank {rank} has no record of step {missing} in attempt {attempt}"
            if rank not in starts and last > first:
                return f"rank {rank} has no record of how it began attempt {attempt}"
    return ""
