"""``ranks/rank-<r>.jsonl`` as typed, frozen records (their contract: docs/design.md, "Step records").

An agent writes its own; of a launched program the testbed writes one, with a ``progress`` line for each reported step.
All ``t`` are seconds of the host's CLOCK_MONOTONIC.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from testbed.core.fields import Fields, Malformed, mapping, number, numbers, sequence, text
from testbed.core.json_record import Derived, JsonRecord, Key, Least, Or, Parsed, read_kinds
from testbed.core.records.operation_record import Attempt
from testbed.core.records.progress_record import ProgressRecord

__all__ = [
    "CalibrationRecord",
    "CheckpointRecord",
    "EndRecord",
    "EvaluationRecord",
    "JobRecord",
    "RankLog",
    "StepRecord",
    "TcpRecord",
    "read_rank",
]


def _strategy(fields: Fields, key: str) -> str:
    return text(mapping(fields, key), "name") or text(fields, "scheme")


@dataclass(frozen=True)
class JobRecord(JsonRecord):
    """The first line of a rank in an attempt: what it is about to train.

    ``resumed_from`` is the step of the checkpoint that it resumes from; 0: none. ``algorithm`` is that of the
    all-reduce, as in ``gloo ring``; empty: unknown. So are ``torch``, its version, and ``corpus``, its data's name.
    ``strategy`` and ``options`` (by argument) are the way of training across sites; records of former versions have
    only ``scheme``. ``tokens`` are those of one step of this rank. ``tensor_elements``: of each parameter tensor, in
    order; empty where they follow from the model's shape. ``compute``: its kind, ``declared`` or
    ``paced``, its seconds at a site of speed 1, the speed of this one, noise and layers; empty: real.
    """

    t: float
    rank: int
    world_size: int
    node: Annotated[str, Or("")]
    site: Annotated[str, Or("")]
    scheme: Annotated[str, Or("")]
    parameters: int | None
    gradient_bytes: int | None
    steps: int | None
    attempt: Attempt = 1
    resumed_from: int = 0
    algorithm: str = ""
    torch: str = ""
    corpus: str = ""
    strategy: Annotated[str, Derived(_strategy)] = ""
    options: Annotated[Mapping[str, object], Key("strategy.options")] = field(default_factory=dict)
    tokens: Annotated[int | None, Key("tokens_per_step")] = None
    tensor_elements: tuple[int, ...] = ()
    compute: Mapping[str, object] = field(default_factory=dict)

    @property
    def declared_s(self) -> float | None:
        """Compute of a step of this rank in seconds, as declared; None if it is not."""
        seconds = number(self.compute, "seconds")
        return None if seconds is None else seconds / self.speed

    @property
    def speed(self) -> float:
        """Declared speed of the rank's site, relative to the fastest."""
        return number(self.compute, "speed") or 1.0


@dataclass(frozen=True)
class TcpRecord(JsonRecord):
    """What the kernel says of a rank's connections across the fiber in one step (tcp(7), TCP_INFO).

    ``busy_s``: with data on the way; ``window_limited_s`` and ``buffer_limited_s``: of that, held up by the receiver's
    window, and by the send buffer. All are sums over connections.
    """

    sent_bytes: Annotated[int, Key("sent")] = 0
    retransmitted_bytes: Annotated[int, Key("retransmitted")] = 0
    busy_s: float = 0.0
    window_limited_s: float = 0.0
    buffer_limited_s: float = 0.0


ROUNDING_S = 1e-6

NotNegative = Annotated[float, Least(0.0)]


def _tcp(value: object) -> TcpRecord | None:
    return TcpRecord.from_dict(value) if value and isinstance(value, Mapping) else None


@dataclass(frozen=True)
class StepRecord(JsonRecord):
    """One optimizer step of one rank. ``sent_bytes`` and ``received_bytes`` are cumulative since the attempt began.

    ``retransmitted`` is what the kernel has retransmitted over TCP so far, in bytes by the peer's address, and
    ``out_of_order`` how many packets came before an earlier one. ``tcp`` is
    of this step alone, and of connections across the fiber. ``late_s``: waited for fragments that were to have arrived.
    ``t_stepped`` is when the inner optimizer was done; from then to ``t_end`` the rank waited for exchanges that follow
    the step. In records without it, and where nothing follows, it is ``t_end``. ``blocked_s``: of the time until
    ``t_ready``, what forward and backward waited for communication, as those of a pipeline do.
    """

    step: int
    t_begin: float
    t_ready: float
    t_sync: float
    t_end: float
    tokens: int
    train_loss: float | None = None
    sent_bytes: int | None = None
    received_bytes: int | None = None
    attempt: Attempt = 1
    retransmitted: Mapping[str, int] = field(default_factory=dict)
    out_of_order: Mapping[str, int] = field(default_factory=dict)
    tcp: Annotated[TcpRecord | None, Parsed(_tcp)] = None
    late_s: NotNegative = 0.0
    blocked_s: NotNegative = 0.0
    t_stepped: float = math.nan
    declared_s: float | None = None
    """Compute as declared for this step, noise and faults included; None for real compute."""
    overrun_s: NotNegative = 0.0
    """How much longer than declared it took, where that is an overrun."""
    cpu_s: float | None = None
    """CPU time of the rank in the step, all its threads; None in records of former versions with real compute."""

    def __post_init__(self) -> None:
        if math.isnan(self.t_stepped):
            object.__setattr__(self, "t_stepped", self.t_end)

    @classmethod
    def from_dict(cls, fields: Fields, **given: object) -> StepRecord:
        record = super().from_dict(fields, **given)
        if not record.t_begin <= record.t_ready <= record.t_sync <= record.t_stepped <= record.t_end:
            raise Malformed(f"the times of step {record.step} are out of order")
        if record.blocked_s > record.t_ready - record.t_begin + ROUNDING_S:
            raise Malformed(f"step {record.step} waited longer than it took")
        return record

    @property
    def compute_s(self) -> float:
        """Forward and backward up to the last gradient, and the optimizer, without what they waited for."""
        return (self.t_ready - self.t_begin) - self.blocked_s + (self.t_stepped - self.t_sync)

    @property
    def exposed_s(self) -> float:
        """Communication that no computation overlapped: blocked + (sync - ready) + (end - stepped)."""
        return self.blocked_s + self.within_s + self.after_s

    @property
    def within_s(self) -> float:
        """Exposed communication of the gradients, before the inner optimizer: sync - ready."""
        return self.t_sync - self.t_ready

    @property
    def after_s(self) -> float:
        """Exposed exchange after the inner optimizer: end - stepped."""
        return self.t_end - self.t_stepped


def _forced(fields: Fields, _: str) -> bool:
    return fields.get("status") == "stopped" and "parameters_sha256" not in fields


@dataclass(frozen=True)
class EndRecord(JsonRecord):
    """``forced``: the rank was stopped before it got to the step after which all were to end; no exchange followed."""

    t: float
    status: str
    reason: Annotated[str, Or("")]
    step: int | None
    attempt: Attempt = 1
    forced: Annotated[bool, Derived(_forced)] = False


@dataclass(frozen=True)
class CheckpointRecord(JsonRecord):
    """A checkpoint of one rank on its disk; ``took_s`` is how long training was blocked for it."""

    t: float
    step: int
    byte_count: Annotated[int | None, Key("bytes")]
    took_s: float | None
    attempt: Attempt = 1


@dataclass(frozen=True)
class EvaluationRecord(JsonRecord):
    """The outer parameters on held-out text after a step. ``took_s`` is how long training was blocked for it.

    ``heldout_loss`` is the mean over ``windows``, this rank's share of its site's; None if it could not be computed.
    """

    t: float
    step: int
    took_s: float | None
    heldout_loss: float | None
    windows: Annotated[int, Or(0)]
    outer_version: int | None
    attempt: Attempt = 1


def _repetitions(fields: Fields, key: str) -> tuple[tuple[float, ...], ...]:
    """Return the times of each volley; none for what is not a list, which must not shift the others."""
    return tuple(numbers({"": times}, "") if isinstance(times, list) else () for times in sequence(fields, key))


@dataclass(frozen=True)
class CalibrationRecord(JsonRecord):
    """What a rank timed alone before its job: each volley's repetitions in s, and a step's real compute if it has one.

    The volleys are those of ``core.analysis.volleys``, in their order; () for one that the rank has no part in.
    """

    t: float
    took_s: Annotated[tuple[tuple[float, ...], ...], Derived(_repetitions)]
    compute_s: float | None
    attempt: Attempt = 1
    compute_times_s: tuple[float, ...] = ()
    """Compute of steps that all ranks began together; runs of former versions have none."""


@dataclass(frozen=True)
class RankLog:
    """The records of one rank, in order. A new attempt writes another ``job`` line and may repeat steps."""

    rank: int
    jobs: tuple[JobRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    ends: tuple[EndRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    calibrations: tuple[CalibrationRecord, ...] = ()
    progress: tuple[ProgressRecord, ...] = ()
    """Of a launched program, which has no steps."""

    @property
    def job(self) -> JobRecord | None:
        """The job of the last attempt."""
        return self.jobs[-1] if self.jobs else None

    @property
    def site(self) -> str:
        return self.job.site if self.job else ""

    @property
    def node(self) -> str:
        return self.job.node if self.job else ""


_KINDS: Final[Mapping[str, Callable[[Fields], JsonRecord]]] = {
    "job": JobRecord.from_dict,
    "step": StepRecord.from_dict,
    "end": EndRecord.from_dict,
    "checkpoint": CheckpointRecord.from_dict,
    "evaluation": EvaluationRecord.from_dict,
    "calibration": CalibrationRecord.from_dict,
    "progress": ProgressRecord.from_dict,
}


def read_rank(rank: int, lines: Iterable[object]) -> tuple[RankLog, int]:
    """Read ``ranks/rank-<rank>.jsonl``, decoded line by line: (log, malformed lines)."""
    records, malformed = read_kinds(lines, _KINDS)
    return RankLog(rank, *(records[kind] for kind in _KINDS)), malformed
