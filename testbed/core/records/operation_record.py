"""Operations of process groups as ranks recorded them (``ranks/rank-<r>.checks.jsonl``; contract: docs/checkers.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from testbed.core.fields import Fields, Malformed, integer, need_number, need_text, number, numbers, sequence, text

__all__ = [
    "Channel",
    "Done",
    "Encoded",
    "OuterStep",
    "Sample",
    "Tag",
    "Weighed",
    "read_encoded",
    "read_operation",
    "read_outer",
    "read_weighed",
]

Channel = tuple[int, int, int]
"""Source, destination and tag of messages."""

_UNPACKED = {"float64": "d"}
_FLOATS = ("float32", "bfloat16", "float16", "")


class Tag(NamedTuple):
    """An operation of a job, the same on all ranks that take part in it.

    Attributes:
        attempt: from 1.
        group: name of the process group.
        ranks: its global ranks, in its order; empty in records of former versions, of all ranks.
        kind: ``message`` for a send and its receipt, ``sum`` for sums that ranks add themselves; empty otherwise, as
            all other operations of a group are numbered together.
        channel: of a message.
        within: the step in which operations are numbered, in records of former versions; otherwise 0.
        sequence: from 0.
    """

    attempt: int
    group: str
    ranks: tuple[int, ...]
    kind: str
    channel: Channel | None
    within: int
    sequence: int


@dataclass(frozen=True)
class Sample:
    """Elements ``at`` of a reduction on one rank: its inputs, and its outputs at ``outputs_at``.

    ``parts``: of a sum of messages, the elements of each addend in the order of addition, instead of inputs.
    """

    at: tuple[int, ...]
    inputs: tuple[float, ...]
    outputs_at: tuple[int, ...]
    outputs: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Done:
    """One operation on one rank.

    Attributes:
        kind: all_reduce, reduce_scatter, reduce, all_gather, all_to_all, broadcast, gather, scatter, barrier, send,
            recv, or sum.
        step: in which it began.
        byte_count: as ``testbed.core.training.strategy_operation.Operation`` counts.
        ended_t: None: it never ended, as far as is recorded.
        waited_s: how long the rank was blocked for it; None if it waited otherwise.
        crc32: of the result; empty where none was taken.
        sent: checksum by destination; one for all; empty if nothing was sent.
        received: checksum by source; empty text where nothing was received from it.
        failed: why; empty if it did not fail.
    """

    kind: str
    step: int
    byte_count: int
    began_t: float
    ended_t: float | None
    waited_s: float | None = None
    crc32: str = ""
    sent: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    reduction: str = ""
    dtype: str = ""
    peer: int | None = None
    failed: str = ""
    sample: Sample | None = None

    @property
    def ended(self) -> bool:
        return self.ended_t is not None and not self.failed


@dataclass(frozen=True)
class Encoded:
    """Elements of a sum of decoded values on one rank (``testbed_agents.evidence``).

    ``decoded``: by member, in the order of addition; ``own``: this rank's index. ``residual``, ``before``, ``added``:
    of error feedback, empty without; their checksums likewise.
    """

    attempt: int
    step: int
    what: str
    fragment: int | None
    ranks: tuple[int, ...]
    number: int
    own: int
    at: tuple[int, ...]
    inputs: tuple[float, ...]
    decoded: tuple[tuple[float, ...], ...]
    total: tuple[float, ...]
    bound: tuple[float, ...]
    weights: tuple[float, ...] = ()
    residual: tuple[float, ...] = ()
    before: tuple[float, ...] = ()
    added: tuple[float, ...] = ()
    decay: float | None = None
    residual_crc32: str = ""
    before_crc32: str = ""


@dataclass(frozen=True)
class OuterStep:
    """Elements of one step of an outer optimizer on one rank: Θ and m before and after, and the gradient.

    ``delay``: N of delayed Nesterov; 0: of Nesterov, which has none of what follows: the share c of the momentum, the
    number of the step, and the sum of the gradients since the last step of the momentum.
    """

    attempt: int
    step: int
    name: str
    at: tuple[int, ...]
    before: tuple[float, ...]
    momentum_before: tuple[float, ...]
    gradient: tuple[float, ...]
    after: tuple[float, ...]
    momentum_after: tuple[float, ...]
    rate: float
    momentum: float
    before_crc32: str
    after_crc32: str
    restarted: bool
    delay: int = 0
    activation: float = 0.0
    number: int = 0
    gathered_before: tuple[float, ...] = ()
    gathered_after: tuple[float, ...] = ()


@dataclass(frozen=True)
class Weighed:
    """Elements of a weighted mean on one rank: its own values, its share, and the mean of all ``ranks``.

    ``taken``: the step after which the values were taken; ``step``: in which the mean was recorded.
    """

    attempt: int
    step: int
    taken: int
    name: str
    ranks: tuple[int, ...]
    at: tuple[int, ...]
    own: tuple[float, ...]
    share: float
    mean: tuple[float, ...]


def read_operation(
    fields: Fields, rank: int, attempt: int, step: int, groups: Mapping[str, tuple[int, ...]]
) -> tuple[Tag, Done]:
    """Read one of ``operations`` of a record of ``step``. ``groups``: ranks by name. Raises Malformed."""
    kind, group = need_text(fields, "operation"), need_text(fields, "group")
    peer, number_of = integer(fields, "peer"), integer(fields, "sequence")
    channel: Channel | None = None
    if kind in ("send", "recv"):
        other = -1 if peer is None else peer
        channel = (*((rank, other) if kind == "send" else (other, rank)), integer(fields, "tag") or 0)
    numbered = "message" if channel else "sum" if kind == "sum" else ""
    tag = Tag(attempt, group, groups.get(group, ()), numbered, channel, 0, -1 if number_of is None else number_of)
    ended = number(fields, "ended_t")
    done = Done(
        kind=kind,
        step=begun if (begun := integer(fields, "step")) is not None else step,
        byte_count=int(need_number(fields, "bytes")),
        began_t=need_number(fields, "began_t"),
        ended_t=ended,
        waited_s=number(fields, "waited_s"),
        crc32=text(fields, "crc32"),
        sent=_checksums(fields, "sent"),
        received=_checksums(fields, "received"),
        reduction=text(fields, "reduction"),
        dtype=text(fields, "dtype"),
        peer=peer,
        failed=text(fields, "failed"),
        sample=_sample(fields),
    )
    return tag, done


def _checksums(fields: Fields, key: str) -> tuple[str, ...]:
    value = fields.get(key)
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence):
        return tuple(each if isinstance(each, str) else "" for each in value)
    return ()


def _sample(fields: Fields) -> Sample | None:
    found = fields.get("sample")
    if not isinstance(found, Mapping):
        return None
    dtype = text(fields, "dtype")
    at = _positions(found, "at")
    outputs_at = _positions(found, "outputs_at") if "outputs_at" in found else at if "outputs" in found else ()
    return Sample(
        at,
        unpacked(text(found, "inputs"), len(at), dtype) if "inputs" in found else (),
        outputs_at,
        unpacked(text(found, "outputs"), len(outputs_at), dtype),
        tuple(unpacked(str(each), len(at), dtype) for each in sequence(found, "parts")),
    )


def _positions(fields: Fields, key: str) -> tuple[int, ...]:
    return tuple(int(each) for each in numbers(fields, key))


def unpacked(hexadecimal: str, count: int, dtype: str = "") -> tuple[float, ...]:
    """Decode elements, little-endian: float64, smaller floats as float32, others as int64. Raises Malformed unless
    there are ``count``."""
    format_ = _UNPACKED.get(dtype, "f" if dtype in _FLOATS else "q")
    try:
        return struct.unpack(f"<{count}{format_}", bytes.fromhex(hexadecimal))
    except (ValueError, struct.error) as error:
        raise Malformed(f"expected {count} elements of {dtype or 'float32'} in hexadecimal") from error


def read_encoded(fields: Fields) -> Encoded:
    """Read a record of kind ``encoded``. Raises Malformed."""
    at = _positions(fields, "at")

    def values(key: str, dtype: str = "") -> tuple[float, ...]:
        return unpacked(text(fields, key), len(at), dtype) if key in fields else ()

    return Encoded(
        attempt=integer(fields, "attempt") or 1,
        step=int(need_number(fields, "step")),
        what=need_text(fields, "what"),
        fragment=integer(fields, "fragment"),
        ranks=_positions(fields, "ranks"),
        number=int(need_number(fields, "number")),
        own=int(need_number(fields, "own")),
        at=at,
        inputs=values("inputs"),
        decoded=tuple(unpacked(str(each), len(at)) for each in sequence(fields, "decoded")),
        total=values("total"),
        bound=values("bound", "float64"),
        weights=tuple(numbers(fields, "weights")) if "weights" in fields else (),
        residual=values("residual"),
        before=values("before"),
        added=values("added"),
        decay=number(fields, "decay"),
        residual_crc32=text(fields, "residual_crc32"),
        before_crc32=text(fields, "before_crc32"),
    )


def read_weighed(fields: Fields) -> Weighed:
    """Read a record of kind ``weighed``. Raises Malformed."""
    at = _positions(fields, "at")
    return Weighed(
        attempt=integer(fields, "attempt") or 1,
        step=int(need_number(fields, "step")),
        taken=int(need_number(fields, "taken")),
        name=need_text(fields, "name"),
        ranks=_positions(fields, "ranks"),
        at=at,
        own=unpacked(text(fields, "own"), len(at)),
        share=need_number(fields, "share"),
        mean=unpacked(text(fields, "mean"), len(at)),
    )


def read_outer(fields: Fields) -> OuterStep:
    """Read a record of kind ``outer``. Raises Malformed."""
    at = _positions(fields, "at")

    def values(key: str) -> tuple[float, ...]:
        return unpacked(text(fields, key), len(at)) if key in fields else ()

    return OuterStep(
        attempt=integer(fields, "attempt") or 1,
        step=int(need_number(fields, "step")),
        name=need_text(fields, "name"),
        at=at,
        before=values("before"),
        momentum_before=values("momentum_before"),
        gradient=values("gradient"),
        after=values("after"),
        momentum_after=values("momentum_after"),
        rate=need_number(fields, "rate"),
        momentum=need_number(fields, "momentum"),
        before_crc32=need_text(fields, "before_crc32"),
        after_crc32=need_text(fields, "after_crc32"),
        restarted=fields.get("restarted") is True,
        delay=integer(fields, "delay") or 0,
        activation=number(fields, "activation") or 0.0,
        number=integer(fields, "number") or 0,
        gathered_before=values("gathered_before"),
        gathered_after=values("gathered_after"),
    )
