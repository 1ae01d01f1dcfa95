"""Records of the ranks for the checkers (``ranks/rank-<r>.checks.jsonl``; contract: docs/checkers.md).

Reading is as lenient as in ``core/fields.py``: a line that lacks a required field is counted and left out; a checker
that misses it then has the verdict unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.fields import Fields, Malformed, integer, need_number, need_text, numbers, sequence, text

__all__ = ["Began", "CheckLog", "CheckedStep", "Collective", "Grouped", "Held", "Sample", "Tag", "Wait", "read_checks"]


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


@dataclass(frozen=True)
class Collective:
    elements: int
    began_t: float
    ended_t: float
    crc32: str


@dataclass(frozen=True)
class CheckedStep:
    """``trained_on`` and ``became`` are fingerprints of the parameters before and after; empty where not taken."""

    attempt: int
    step: int
    optimizer_steps: int
    collectives: tuple[Collective, ...]
    trained_on: str
    became: str


@dataclass(frozen=True)
class Sample:
    """Elements ``at`` of one collective: this rank's inputs and outputs."""

    attempt: int
    step: int
    sequence: int
    at: tuple[int, ...]
    inputs: tuple[float, ...]
    outputs: tuple[float, ...]


@dataclass(frozen=True)
class Wait:
    """At ``t`` a rank had been in a collective (``sequence`` None: in none) since ``since_t``, beyond the bound."""

    attempt: int
    t: float
    step: int
    sequence: int | None
    since_t: float


@dataclass(frozen=True)
class Held:
    """The process of a rank did not run from ``since_t`` to ``t``."""

    since_t: float
    t: float


@dataclass(frozen=True)
class CheckLog:
    """The records of one rank for the checkers."""

    rank: int
    began: tuple[Began, ...] = ()
    steps: tuple[CheckedStep, ...] = ()
    samples: tuple[Sample, ...] = ()
    waits: tuple[Wait, ...] = ()
    held: tuple[Held, ...] = ()


Tag = tuple[int, int, int]
"""(attempt, step, sequence) of a collective."""


def read_checks(rank: int, lines: Iterable[object]) -> tuple[CheckLog, int]:
    """Read ``ranks/rank-<rank>.checks.jsonl``, decoded line by line: (log, malformed lines)."""
    began: list[Began] = []
    steps: list[CheckedStep] = []
    samples: list[Sample] = []
    waits: list[Wait] = []
    held: list[Held] = []
    malformed = 0
    for line in lines:
        try:
            if not isinstance(line, Mapping):
                raise Malformed("expected a JSON object")
            match text(line, "kind"):
                case "begin":
                    began.append(_began(line))
                case "step":
                    steps.append(_step(line))
                case "sample":
                    samples.append(_sample(line))
                case "waits":
                    waits.append(_wait(line))
                case "held":
                    held.append(Held(need_number(line, "since_t"), need_number(line, "t")))
                case _:
                    raise Malformed("unknown kind")
        except Malformed:
            malformed += 1
    return CheckLog(rank, tuple(began), tuple(steps), tuple(samples), tuple(waits), tuple(held)), malformed


def _whole(fields: Fields, key: str) -> int:
    return int(need_number(fields, key))


def _began(fields: Fields) -> Began:
    return Began(
        attempt=integer(fields, "attempt") or 1,
        t=need_number(fields, "t"),
        step=_whole(fields, "step"),
        world_size=_whole(fields, "world_size"),
        hang_s=need_number(fields, "hang_s"),
        parameters=need_text(fields, "parameters"),
        optimizer_steps=_whole(fields, "optimizer_steps"),
    )


def _step(fields: Fields) -> CheckedStep:
    listed = sequence(fields, "collectives")
    if not all(isinstance(each, Mapping) for each in listed):
        raise Malformed("'collectives' holds something other than objects")
    return CheckedStep(
        attempt=integer(fields, "attempt") or 1,
        step=_whole(fields, "step"),
        optimizer_steps=_whole(fields, "optimizer_steps"),
        collectives=tuple(
            Collective(
                _whole(each, "elements"),
                need_number(each, "began_t"),
                need_number(each, "ended_t"),
                need_text(each, "crc32"),
            )
            for each in listed
            if isinstance(each, Mapping)
        ),
        trained_on=text(fields, "trained_on"),
        became=text(fields, "became"),
    )


def _sample(fields: Fields) -> Sample:
    at = tuple(int(each) for each in numbers(fields, "at"))
    inputs, outputs = (_floats(need_text(fields, key), len(at)) for key in ("inputs", "outputs"))
    return Sample(
        integer(fields, "attempt") or 1, _whole(fields, "step"), _whole(fields, "sequence"), at, inputs, outputs
    )


def _floats(hexadecimal: str, count: int) -> tuple[float, ...]:
    """Decode float32, little-endian. Raises Malformed unless there are ``count``."""
    try:
        return struct.unpack(f"<{count}f", bytes.fromhex(hexadecimal))
    except (ValueError, struct.error) as error:
        raise Malformed("expected one float32 in hexadecimal for each position") from error


def _wait(fields: Fields) -> Wait:
    return Wait(
        attempt=integer(fields, "attempt") or 1,
        t=need_number(fields, "t"),
        step=_whole(fields, "step"),
        sequence=integer(fields, "sequence"),
        since_t=need_number(fields, "since_t"),
    )


@dataclass(frozen=True)
class Grouped:
    """The records by attempt, step and collective. ``incomplete``: what is missing, as text; empty if nothing is."""

    world_size: int
    began: Mapping[int, Mapping[int, Began]]
    """attempt -> rank -> its beginning."""
    steps: Mapping[tuple[int, int], Mapping[int, CheckedStep]]
    """(attempt, step) -> rank -> its record, ordered by both."""
    samples: Mapping[Tag, Mapping[int, Sample]]
    waits: Mapping[int, Sequence[Wait]]
    held: Mapping[int, Sequence[Held]]
    incomplete: str

    @classmethod
    def of(cls, logs: Sequence[CheckLog]) -> Grouped:
        began: dict[int, dict[int, Began]] = {}
        steps: dict[tuple[int, int], dict[int, CheckedStep]] = {}
        samples: dict[Tag, dict[int, Sample]] = {}
        for log in logs:
            for start in log.began:
                began.setdefault(start.attempt, {})[log.rank] = start
            for done in log.steps:
                steps.setdefault((done.attempt, done.step), {})[log.rank] = done
            for sample in log.samples:
                samples.setdefault((sample.attempt, sample.step, sample.sequence), {})[log.rank] = sample
        starts = [start for of_rank in began.values() for start in of_rank.values()]
        return cls(
            world_size=max([start.world_size for start in starts], default=len(logs)),
            began=dict(sorted(began.items())),
            steps=dict(sorted(steps.items())),
            samples=dict(sorted(samples.items())),
            waits={log.rank: log.waits for log in logs},
            held={log.rank: log.held for log in logs},
            incomplete=_incomplete(began, steps),
        )

    @property
    def ranks(self) -> range:
        return range(self.world_size)


def _incomplete(
    began: Mapping[int, Mapping[int, Began]], steps: Mapping[tuple[int, int], Mapping[int, CheckedStep]]
) -> str:
    """Return which required record is missing; empty if none.

    A rank ends a step only after all have recorded the one before it, so the records of two ranks end at the same step
    or at neighbouring ones, however the job ended.
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
            missing = next((step for step in range(first + 1, last) if step not in recorded), None)
            if missing is not None:
                return f"rank {rank} has no record of step {missing} in attempt {attempt}"
            if rank not in starts and last > first:
                return f"rank {rank} has no record of how it began attempt {attempt}"
    return ""
