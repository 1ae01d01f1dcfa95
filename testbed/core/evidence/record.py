"""The lines of a run directory as typed, frozen records (their contract: docs/design.md, "Run directory").

Reading is lenient, because a report must come out of whatever a crash left behind: unknown keys are ignored, an
optional field of the wrong kind is None, and a line without its mandatory fields raises ``Malformed``, which the
readers here count and skip. All ``t`` are seconds of the host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = [
    "CheckpointRecord",
    "EndRecord",
    "Event",
    "FiberSample",
    "HostSample",
    "JobRecord",
    "Malformed",
    "RankLog",
    "RankSample",
    "RunInfo",
    "SteadyCheck",
    "StepRecord",
    "read_events",
    "read_metrics",
    "read_rank",
]

Fields = Mapping[str, object]
T = TypeVar("T")


class Malformed(ValueError):
    """A line lacks a field that it must have."""


def number(fields: Fields, key: str) -> float | None:
    """The finite number at ``key``, else None; JSON's true and false are no numbers."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:  # JSON's integers have no end, floats do
        return None
    return found if math.isfinite(found) else None


def integer(fields: Fields, key: str) -> int | None:
    value = number(fields, key)
    return None if value is None else int(value)


def text(fields: Fields, key: str, default: str = "") -> str:
    value = fields.get(key)
    return value if isinstance(value, str) else default


def mapping(fields: Fields, key: str) -> Fields:
    value = fields.get(key)
    return value if isinstance(value, Mapping) else {}


def sequence(fields: Fields, key: str) -> Sequence[object]:
    value = fields.get(key)
    return value if isinstance(value, list | tuple) else ()


def texts(fields: Fields, key: str) -> tuple[str, ...]:
    return tuple(value for value in sequence(fields, key) if isinstance(value, str))


def numbers(fields: Fields, key: str) -> tuple[float, ...]:
    """All of the list at ``key``; Malformed if one of it is no number, since dropping it would shift the others."""
    listed = sequence(fields, key)
    found = tuple(number({"": value}, "") for value in listed)
    if any(value is None for value in found):
        raise Malformed(f"'{key}' holds something that is no number")
    return tuple(value for value in found if value is not None)


def need_number(fields: Fields, key: str) -> float:
    value = number(fields, key)
    if value is None:
        raise Malformed(f"'{key}' is missing or no number")
    return value


def need_text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise Malformed(f"'{key}' is missing or no text")
    return value


@dataclass(frozen=True)
class Expectation:
    """A sentence of the experiment; ``holds`` is None when it could not be told."""

    text: str
    holds: bool | None = None
    measured: float | None = None


@dataclass(frozen=True)
class SteadyCheck:
    """A condition of the steady state and what came out; ``holds`` is None when it could not be told.

    ``when`` is before, during, after or always. ``violations`` are (began, ended, measured), in CLOCK_MONOTONIC.
    """

    when: str
    text: str
    holds: bool | None = None
    measured: float | None = None
    bound: float | None = None
    why: str = ""
    violations: tuple[tuple[float, float, float | None], ...] = ()

    @classmethod
    def from_dict(cls, fields: Fields) -> SteadyCheck:
        return cls(
            when=text(fields, "when"),
            text=text(fields, "text"),
            holds=holds if isinstance(holds := fields.get("holds"), bool) else None,
            measured=number(fields, "measured"),
            bound=number(fields, "bound"),
            why=text(fields, "why"),
            violations=tuple(
                (began_t, ended_t, number(each, "measured"))
                for each in sequence(fields, "violations")
                if isinstance(each, Mapping)
                and (began_t := number(each, "began_t")) is not None
                and (ended_t := number(each, "ended_t")) is not None
            ),
        )


@dataclass(frozen=True)
class RunInfo:
    """``run.json``. ``status`` is running, finished, interrupted or failed; "" when the file is missing.

    ``unknown_because`` says why nothing can be told of the run: the lab, or the machine below it, failed. Empty
    where that is not so.
    """

    name: str = ""
    lab: str = ""
    testbed: str = ""
    status: str = ""
    reason: str = ""
    unknown_because: str = ""
    started_unix_s: float | None = None
    started_t: float | None = None
    ended_t: float | None = None
    experiment: Fields = field(default_factory=dict)
    expectations: tuple[Expectation, ...] = ()
    hypothesis: tuple[SteadyCheck, ...] = ()
    schedule: tuple[Fields, ...] = ()
    """Each fault as it was planned, and as ``began`` how often it was injected."""
    workload: Fields = field(default_factory=dict)
    driver: str = ""
    emulator: str = ""
    scheduling: Fields = field(default_factory=dict)
    uncertified: bool = False
    validity: tuple[Fields, ...] = ()
    """What of the scale model holds on which fiber: findings of core/physics/validity.py."""
    host: Fields = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Fields) -> RunInfo:
        return cls(
            name=text(fields, "name"),
            lab=text(fields, "lab"),
            testbed=text(fields, "testbed"),
            status=text(fields, "status"),
            reason=text(fields, "reason"),
            unknown_because=text(fields, "unknown_because"),
            started_unix_s=number(fields, "started_unix_s"),
            started_t=number(fields, "started_t"),
            ended_t=number(fields, "ended_t"),
            experiment=mapping(fields, "experiment"),
            expectations=tuple(
                Expectation(
                    text=text(each, "text"),
                    holds=holds if isinstance(holds := each.get("holds"), bool) else None,
                    measured=number(each, "measured"),
                )
                for each in sequence(fields, "expectations")
                if isinstance(each, Mapping)
            ),
            hypothesis=tuple(
                SteadyCheck.from_dict(each) for each in sequence(fields, "hypothesis") if isinstance(each, Mapping)
            ),
            schedule=tuple(each for each in sequence(fields, "schedule") if isinstance(each, Mapping)),
            workload=mapping(fields, "workload"),
            driver=text(fields, "driver"),
            emulator=text(fields, "emulator"),
            scheduling=mapping(fields, "scheduling"),
            uncertified=fields.get("uncertified") is True,
            validity=tuple(each for each in sequence(fields, "validity") if isinstance(each, Mapping)),
            host=mapping(fields, "host"),
        )


@dataclass(frozen=True)
class JobRecord:
    """The first line of a rank in an attempt: what it is about to train. ``tokens_per_step`` is this rank's share;
    ``resumed_from`` the step whose checkpoint it goes on from, 0 where it begins anew."""

    t: float
    rank: int
    world_size: int
    node: str
    site: str
    scheme: str
    parameters: int | None
    gradient_bytes: int | None
    tokens_per_step: int | None
    steps: int | None
    attempt: int = 1
    resumed_from: int = 0

    @classmethod
    def from_dict(cls, fields: Fields) -> JobRecord:
        return cls(
            t=need_number(fields, "t"),
            rank=int(need_number(fields, "rank")),
            world_size=int(need_number(fields, "world_size")),
            node=text(fields, "node"),
            site=text(fields, "site"),
            scheme=text(fields, "scheme"),
            parameters=integer(fields, "parameters"),
            gradient_bytes=integer(fields, "gradient_bytes"),
            tokens_per_step=integer(fields, "tokens_per_step"),
            steps=integer(fields, "steps"),
            attempt=_attempt(fields),
            resumed_from=integer(fields, "resumed_from") or 0,
        )


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step of one rank. ``sent_bytes`` and ``received_bytes`` are cumulative since the attempt began."""

    step: int
    t_begin: float
    t_ready: float
    t_sync: float
    t_end: float
    tokens: int
    train_loss: float | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    attempt: int = 1

    @classmethod
    def from_dict(cls, fields: Fields) -> StepRecord:
        record = cls(
            step=int(need_number(fields, "step")),
            t_begin=need_number(fields, "t_begin"),
            t_ready=need_number(fields, "t_ready"),
            t_sync=need_number(fields, "t_sync"),
            t_end=need_number(fields, "t_end"),
            tokens=int(need_number(fields, "tokens")),
            train_loss=number(fields, "train_loss"),
            sent_bytes=integer(fields, "sent_bytes"),
            received_bytes=integer(fields, "received_bytes"),
            attempt=_attempt(fields),
        )
        if not record.t_begin <= record.t_ready <= record.t_sync <= record.t_end:
            raise Malformed(f"the times of step {record.step} are out of order")
        return record

    @property
    def compute_s(self) -> float:
        """Forward and backward up to the last gradient bucket, and the optimizer: (ready - begin) + (end - sync)."""
        return (self.t_ready - self.t_begin) + (self.t_end - self.t_sync)

    @property
    def exposed_s(self) -> float:
        """Communication that no computation hid: sync - ready."""
        return self.t_sync - self.t_ready


@dataclass(frozen=True)
class EndRecord:
    t: float
    status: str
    reason: str
    step: int | None
    attempt: int = 1

    @classmethod
    def from_dict(cls, fields: Fields) -> EndRecord:
        return cls(
            t=need_number(fields, "t"),
            status=need_text(fields, "status"),
            reason=text(fields, "reason"),
            step=integer(fields, "step"),
            attempt=_attempt(fields),
        )


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint of one rank that is on its disk; ``took_s`` is the time that training stood still for it."""

    t: float
    step: int
    byte_count: int | None
    took_s: float | None
    attempt: int = 1

    @classmethod
    def from_dict(cls, fields: Fields) -> CheckpointRecord:
        return cls(
            t=need_number(fields, "t"),
            step=int(need_number(fields, "step")),
            byte_count=integer(fields, "bytes"),
            took_s=number(fields, "took_s"),
            attempt=_attempt(fields),
        )


def _attempt(fields: Fields) -> int:
    """Of the job that a record belongs to, from 1; records of a job that cannot restart do not say it."""
    return integer(fields, "attempt") or 1


@dataclass(frozen=True)
class Event:
    """A line of ``events.jsonl``; ``fields`` is the whole line, for what only one kind of event carries."""

    t: float
    event: str
    fields: Fields = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Fields) -> Event:
        return cls(need_number(fields, "t"), need_text(fields, "event"), fields)


@dataclass(frozen=True)
class FiberSample:
    """Cumulative counters of one direction. ``byte_count`` is L2 bytes: 14 B Ethernet header, headers of every segment.

    ``lateness_counts[i]`` are packets that left at most ``lateness_bounds_s[i]`` after they were due and more than the
    bound before; one count more than bounds means that the last is what came later than every bound.
    """

    t: float
    direction: str
    packets: int
    segments: int
    byte_count: int
    drops: Mapping[str, int]
    queue_bytes: int | None
    lateness_bounds_s: tuple[float, ...]
    lateness_counts: tuple[float, ...]

    @property
    def toward(self) -> str:
        return self.direction.partition(":")[2]

    @classmethod
    def from_dict(cls, fields: Fields) -> FiberSample:
        lateness = mapping(fields, "lateness")
        drops = mapping(fields, "drops")
        return cls(
            t=need_number(fields, "t"),
            direction=need_text(fields, "direction"),
            packets=integer(fields, "packets") or 0,
            segments=integer(fields, "segments") or 0,
            byte_count=int(need_number(fields, "bytes")),
            drops={cause: count for cause in drops if (count := integer(drops, cause)) is not None},
            queue_bytes=integer(fields, "queue_bytes"),
            lateness_bounds_s=numbers(lateness, "bounds_s"),
            lateness_counts=numbers(lateness, "counts"),
        )


@dataclass(frozen=True)
class RankSample:
    """One scrape of one rank's ``/metrics``; ``values`` by Prometheus sample name with its labels."""

    t: float
    rank: int
    node: str
    site: str
    values: Mapping[str, float]

    @classmethod
    def from_dict(cls, fields: Fields) -> RankSample:
        values = mapping(fields, "values")
        return cls(
            t=need_number(fields, "t"),
            rank=int(need_number(fields, "rank")),
            node=text(fields, "node"),
            site=text(fields, "site"),
            values={name: value for name in values if (value := number(values, name)) is not None},
        )


@dataclass(frozen=True)
class HostSample:
    """``cpu_busy`` is the share 0..1 of all cores that was busy since the sample before."""

    t: float
    cpu_busy: float | None
    emulator_cpu_s: float | None

    @classmethod
    def from_dict(cls, fields: Fields) -> HostSample:
        return cls(need_number(fields, "t"), number(fields, "cpu_busy"), number(fields, "emulator_cpu_s"))


@dataclass(frozen=True)
class RankLog:
    """All that one rank wrote, in its order. A new attempt writes another ``job`` line and may repeat steps."""

    rank: int
    jobs: tuple[JobRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    ends: tuple[EndRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()

    @property
    def job(self) -> JobRecord | None:
        """What the rank trained last."""
        return self.jobs[-1] if self.jobs else None

    @property
    def site(self) -> str:
        return self.job.site if self.job else ""

    @property
    def node(self) -> str:
        return self.job.node if self.job else ""


def _parse(
    lines: Iterable[object], readers: Mapping[str, Callable[[Fields], T]], key: str | None
) -> tuple[list[T], int]:
    """Read each line by ``readers[line[key]]``, or ``readers[""]`` without a key: (records, malformed lines)."""
    found: list[T] = []
    malformed = 0
    for line in lines:
        try:
            if not isinstance(line, Mapping):
                raise Malformed("no JSON object")
            reader = readers.get(text(line, key) if key else "")
            if reader is None:
                raise Malformed("of an unknown kind")
            found.append(reader(line))
        except Malformed:
            malformed += 1
    return found, malformed


def read_rank(rank: int, lines: Iterable[object]) -> tuple[RankLog, int]:
    """``ranks/rank-<rank>.jsonl``, decoded line by line: (log, malformed lines)."""
    readers: dict[str, Callable[[Fields], JobRecord | StepRecord | EndRecord | CheckpointRecord]] = {
        "job": JobRecord.from_dict,
        "step": StepRecord.from_dict,
        "end": EndRecord.from_dict,
        "checkpoint": CheckpointRecord.from_dict,
    }
    found, malformed = _parse(lines, readers, "kind")
    log = RankLog(
        rank=rank,
        jobs=tuple(each for each in found if isinstance(each, JobRecord)),
        steps=tuple(each for each in found if isinstance(each, StepRecord)),
        ends=tuple(each for each in found if isinstance(each, EndRecord)),
        checkpoints=tuple(each for each in found if isinstance(each, CheckpointRecord)),
    )
    return log, malformed


def read_events(lines: Iterable[object]) -> tuple[tuple[Event, ...], int]:
    """``events.jsonl`` in the order of time: several writers append to it."""
    found, malformed = _parse(lines, {"": Event.from_dict}, None)
    return tuple(sorted(found, key=lambda event: event.t)), malformed


def read_metrics(
    lines: Iterable[object],
) -> tuple[tuple[FiberSample, ...], tuple[RankSample, ...], tuple[HostSample, ...], int]:
    """``metrics.jsonl``: (fibers, ranks, host, malformed lines), each in the order of time."""
    readers: dict[str, Callable[[Fields], FiberSample | RankSample | HostSample]] = {
        "fiber": FiberSample.from_dict,
        "rank": RankSample.from_dict,
        "host": HostSample.from_dict,
    }
    found, malformed = _parse(lines, readers, "kind")
    found.sort(key=lambda sample: sample.t)
    return (
        tuple(each for each in found if isinstance(each, FiberSample)),
        tuple(each for each in found if isinstance(each, RankSample)),
        tuple(each for each in found if isinstance(each, HostSample)),
        malformed,
    )
