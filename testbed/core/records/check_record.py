"""Records of the ranks for the checkers (``ranks/rank-<r>.checks.jsonl``; contract: docs/checkers.md).

Reading is as lenient as in ``core/fields.py``: a line that lacks a required field is counted and left out; a checker
that misses it then has the verdict unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from testbed.core.fields import (
    Fields,
    Malformed,
    integer,
    mapping,
    need_number,
    need_text,
    number,
    numbers,
    sequence,
    text,
)
from testbed.core.records.exchange_record import ExchangeRecord
from testbed.core.records.operation_record import (
    Done,
    Encoded,
    OuterStep,
    Sample,
    Tag,
    Weighed,
    read_encoded,
    read_operation,
    read_outer,
    read_weighed,
    unpacked,
)

__all__ = ["Began", "CheckLog", "CheckedStep", "Grouped", "Held", "Wait", "read_checks"]


@dataclass(frozen=True)
class Began:
    """The beginning of an attempt on one rank, after ``step`` (0: from scratch)."""

    attempt: int
    t: float
    step: int
    world_size: int
    hang_s: float
    parameters: str
    optimizer_steps: int
    fingerprints: Mapping[str, str]
    outer_version: int | None


@dataclass(frozen=True)
class CheckedStep:
    """One step on one rank, or what followed its last one.

    Attributes:
        trained_on, became: fingerprints of the parameters before and after; empty where not taken.
        operations: that ended in it, or were recorded with it because they failed or never ended.
        fingerprints, fingerprints_before: by name, after and before; empty where not taken.
        trace: checksums of a few elements of the same tensors, after every step; empty in former versions.
        outer_version: after it; None where the strategy counts no exchanges.
    """

    attempt: int
    step: int
    optimizer_steps: int
    operations: tuple[tuple[Tag, Done], ...]
    trained_on: str
    became: str
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
class Held:
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
    for line in lines:
        reader.read(line)
    return reader.log(), reader.malformed


class _Reader:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.malformed = 0
        self._groups: dict[tuple[int, str], tuple[int, ...]] = {}
        self._began: list[Began] = []
        self._steps: list[CheckedStep] = []
        self._finishes: list[CheckedStep] = []
        self._samples: dict[tuple[int, int, int], Sample] = {}
        self._waits: list[Wait] = []
        self._held: list[Held] = []
        self._unfinished: list[tuple[Tag, Done]] = []
        self._encoded: list[Encoded] = []
        self._outer: list[OuterStep] = []
        self._weighed: list[Weighed] = []
        self._versions: list[ExchangeRecord] = []

    def read(self, line: object) -> None:
        try:
            if not isinstance(line, Mapping):
                raise Malformed("expected a JSON object")
            self._read(text(line, "kind"), integer(line, "attempt") or 1, line)
        except Malformed:
            self.malformed += 1

    def _read(self, kind: str, attempt: int, line: Fields) -> None:
        match kind:
            case "begin":
                self._began.append(_began(line))
            case "step":
                self._steps.append(self._step(line, attempt))
            case "finish":
                self._finishes.append(self._step(line, attempt))
            case "group":
                ranks = tuple(int(each) for each in numbers(line, "ranks"))
                self._groups[attempt, need_text(line, "group")] = ranks
            case "unfinished":
                self._unfinished += self._operations(line, attempt, int(need_number(line, "step")))
            case "sample":  # of former versions
                key = (attempt, int(need_number(line, "step")), int(need_number(line, "sequence")))
                self._samples[key] = _sample(line)
            case "encoded":
                self._encoded.append(read_encoded(line))
            case "weighed":
                self._weighed.append(read_weighed(line))
            case "outer":
                self._outer.append(read_outer(line))
            case "exchange":
                self._versions.append(ExchangeRecord.from_dict(line))
            case "waits":
                self._waits.append(self._wait(line, attempt))
            case "held":
                self._held.append(Held(need_number(line, "since_t"), need_number(line, "t")))
            case _:
                raise Malformed("unknown kind")

    def log(self) -> CheckLog:
        return CheckLog(
            self._rank,
            tuple(self._began),
            tuple(replace(each, operations=tuple(map(self._with_sample, each.operations))) for each in self._steps),
            tuple(map(self._with_ranks, self._waits)),
            tuple(self._held),
            tuple(self._finishes),
            tuple(self._unfinished),
            tuple(self._encoded),
            tuple(self._outer),
            tuple(self._weighed),
            tuple(self._versions),
        )

    def _with_ranks(self, wait: Wait) -> Wait:
        """Return the wait with the ranks of its group, which is recorded later if this is its first operation."""
        if wait.tag is None or not wait.tag.group:
            return wait
        return replace(wait, tag=wait.tag._replace(ranks=self._groups.get((wait.attempt, wait.tag.group), ())))

    def _with_sample(self, recorded: tuple[Tag, Done]) -> tuple[Tag, Done]:
        tag, done = recorded
        found = self._samples.get((tag.attempt, tag.within, tag.sequence)) if tag.within else None
        return (tag, replace(done, sample=found)) if found else recorded

    def _operations(self, fields: Fields, attempt: int, step: int) -> list[tuple[Tag, Done]]:
        listed = sequence(fields, "operations")
        if not all(isinstance(each, Mapping) for each in listed):
            raise Malformed("'operations' holds something other than objects")
        groups = {name: ranks for (of, name), ranks in self._groups.items() if of == attempt}
        return [read_operation(each, self._rank, attempt, step, groups) for each in listed if isinstance(each, Mapping)]

    def _step(self, fields: Fields, attempt: int) -> CheckedStep:
        step = int(need_number(fields, "step"))
        former = "collectives" in fields
        return CheckedStep(
            attempt=attempt,
            step=step,
            optimizer_steps=int(need_number(fields, "optimizer_steps")),
            operations=tuple(
                _collectives(fields, attempt, step) if former else self._operations(fields, attempt, step)
            ),
            trained_on=text(fields, "trained_on"),
            became=text(fields, "became"),
            t=number(fields, "t") or 0.0,
            fingerprints=_texts(fields, "fingerprints"),
            fingerprints_before=_texts(fields, "fingerprints_before"),
            trace=_texts(fields, "trace"),
            outer_version=integer(fields, "outer_version"),
        )

    def _wait(self, fields: Fields, attempt: int) -> Wait:
        step, number_of = int(need_number(fields, "step")), integer(fields, "sequence")
        t, since_t = need_number(fields, "t"), need_number(fields, "since_t")
        kind = text(fields, "operation", "all_reduce")
        tag = None
        if number_of is not None and "operation" not in fields:
            tag = _former(attempt, step, number_of)
        elif "operation" in fields:
            groups = {name: ranks for (of, name), ranks in self._groups.items() if of == attempt}
            tag, _ = read_operation({**fields, "bytes": 0, "began_t": since_t}, self._rank, attempt, step, groups)
        return Wait(attempt, t, step, tag, since_t, kind)


def _former(attempt: int, step: int, sequence_of: int) -> Tag:
    return Tag(attempt, "", (), "", None, step, sequence_of)


def _collectives(fields: Fields, attempt: int, step: int) -> list[tuple[Tag, Done]]:
    """Read the collectives of a step as former versions recorded them: sums over all ranks."""
    listed = sequence(fields, "collectives")
    if not all(isinstance(each, Mapping) for each in listed):
        raise Malformed("'collectives' holds something other than objects")
    found = []
    for index, each in enumerate(listed):
        assert isinstance(each, Mapping)
        done = Done(
            kind="all_reduce",
            step=step,
            byte_count=4 * int(need_number(each, "elements")),
            began_t=need_number(each, "began_t"),
            ended_t=need_number(each, "ended_t"),
            crc32=need_text(each, "crc32"),
            reduction="sum",
            dtype="float32",
        )
        found.append((_former(attempt, step, index), done))
    return found


def _began(fields: Fields) -> Began:
    return Began(
        attempt=integer(fields, "attempt") or 1,
        t=need_number(fields, "t"),
        step=int(need_number(fields, "step")),
        world_size=int(need_number(fields, "world_size")),
        hang_s=need_number(fields, "hang_s"),
        parameters=need_text(fields, "parameters"),
        optimizer_steps=int(need_number(fields, "optimizer_steps")),
        fingerprints=_texts(fields, "fingerprints"),
        outer_version=integer(fields, "outer_version"),
    )


def _texts(fields: Fields, key: str) -> dict[str, str]:
    return {str(name): value for name, value in mapping(fields, key).items() if isinstance(value, str)}


def _sample(fields: Fields) -> Sample:
    at = tuple(int(each) for each in numbers(fields, "at"))
    inputs, outputs = (unpacked(need_text(fields, key), len(at)) for key in ("inputs", "outputs"))
    return Sample(at, inputs, at, outputs)


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
