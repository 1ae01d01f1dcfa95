"""Operations of process groups as ranks recorded them (``ranks/rank-<r>.checks.jsonl``; contract: docs/checkers.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from testbed.core.fields import Fields, Malformed, integer, need_text, numbers, sequence, text
from testbed.core.json_record import Derived, JsonRecord, Key, Or, Parsed

__all__ = [
    "Attempt",
    "Channel",
    "Done",
    "Encoded",
    "OuterStep",
    "Sample",
    "Tag",
    "Weighed",
    "read_operation",
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


def _checksums(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Sequence):
        return tuple(checksum if isinstance(checksum, str) else "" for checksum in value)
    return ()


def _sample(fields: Fields, key: str) -> Sample | None:
    sample = fields.get(key)
    if not isinstance(sample, Mapping):
        return None
    dtype = text(fields, "dtype")
    at = _positions(sample, "at")
    outputs_at = _positions(sample, "outputs_at") if "outputs_at" in sample else at if "outputs" in sample else ()
    return Sample(
        at,
        unpacked(text(sample, "inputs"), len(at), dtype) if "inputs" in sample else (),
        outputs_at,
        unpacked(text(sample, "outputs"), len(outputs_at), dtype),
        tuple(unpacked(str(part), len(at), dtype) for part in sequence(sample, "parts")),
    )


def _positions(fields: Fields, key: str) -> tuple[int, ...]:
    return tuple(map(int, numbers(fields, key)))


def unpacked(hexadecimal: str, count: int, dtype: str = "") -> tuple[float, ...]:
    """Decode elements, little-endian: float64, smaller floats as float32, others as int64. Raises Malformed unless
    there are ``count``."""
    format_ = _UNPACKED.get(dtype, "f" if dtype in _FLOATS else "q")
    try:
        return struct.unpack(f"<{count}{format_}", bytes.fromhex(hexadecimal))
    except (ValueError, struct.error) as error:
        raise Malformed(f"expected {count} elements of {dtype or 'float32'} in hexadecimal") from error


def _elements(fields: Fields, key: str) -> tuple[float, ...]:
    return unpacked(text(fields, key), len(sequence(fields, "at")))


def _elements_if_any(fields: Fields, key: str) -> tuple[float, ...]:
    return _elements(fields, key) if key in fields else ()


def _bounds(fields: Fields, key: str) -> tuple[float, ...]:
    return unpacked(text(fields, key), len(sequence(fields, "at")), "float64") if key in fields else ()


def _decoded(fields: Fields, key: str) -> tuple[tuple[float, ...], ...]:
    return tuple(unpacked(str(part), len(sequence(fields, "at"))) for part in sequence(fields, key))


Attempt = Annotated[int, Or(1)]
"""From 1; records of a job that cannot restart lack it."""
Positions = Annotated[tuple[int, ...], Or(())]
Elements = Annotated[tuple[float, ...], Derived(_elements_if_any)]
"""Of a tensor, as many as the record has positions ``at``, in hexadecimal; none where the field is missing."""
NeededElements = Annotated[tuple[float, ...], Derived(_elements)]


@dataclass(frozen=True)
class Done(JsonRecord):
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

    kind: Annotated[str, Key("operation")]
    step: int
    byte_count: Annotated[int, Key("bytes")]
    began_t: float
    ended_t: float | None
    waited_s: float | None = None
    crc32: str = ""
    sent: Annotated[tuple[str, ...], Parsed(_checksums)] = ()
    received: Annotated[tuple[str, ...], Parsed(_checksums)] = ()
    reduction: str = ""
    dtype: str = ""
    peer: int | None = None
    failed: str = ""
    sample: Annotated[Sample | None, Derived(_sample)] = None

    @property
    def ended(self) -> bool:
        return self.ended_t is not None and not self.failed


@dataclass(frozen=True)
class Encoded(JsonRecord):
    """Elements of a sum of decoded values on one rank (``testbed_agents.evidence``).

    ``decoded``: by member, in the order of addition; ``own``: this rank's index. ``residual``, ``before``, ``added``:
    of error feedback, empty without; their checksums likewise.
    """

    attempt: Attempt
    step: int
    what: str
    fragment: int | None
    ranks: Positions
    number: int
    own: int
    at: Positions
    inputs: Elements
    decoded: Annotated[tuple[tuple[float, ...], ...], Derived(_decoded)]
    total: Elements
    bound: Annotated[tuple[float, ...], Derived(_bounds)]
    weights: tuple[float, ...] = ()
    residual: Elements = ()
    before: Elements = ()
    added: Elements = ()
    decay: float | None = None
    residual_crc32: str = ""
    before_crc32: str = ""


@dataclass(frozen=True)
class OuterStep(JsonRecord):
    """Elements of one step of an outer optimizer on one rank: Θ and m before and after, and the gradient.

    ``delay``: N of delayed Nesterov; 0: of Nesterov, which has none of what follows: the share c of the momentum, the
    number of the step, and the sum of the gradients since the last step of the momentum.
    """

    attempt: Attempt
    step: int
    name: str
    at: Positions
    before: Elements
    momentum_before: Elements
    gradient: Elements
    after: Elements
    momentum_after: Elements
    rate: float
    momentum: float
    before_crc32: str
    after_crc32: str
    restarted: Annotated[bool, Or(False)]
    delay: int = 0
    activation: float = 0.0
    number: int = 0
    gathered_before: Elements = ()
    gathered_after: Elements = ()


@dataclass(frozen=True)
class Weighed(JsonRecord):
    """Elements of a weighted mean on one rank: its own values, its share, and the mean of all ``ranks``.

    ``taken``: the step after which the values were taken; ``step``: in which the mean was recorded.
    """

    attempt: Attempt
    step: int
    taken: int
    name: str
    ranks: Positions
    at: Positions
    own: NeededElements
    share: float
    mean: NeededElements


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
    begun = integer(fields, "step")
    return tag, Done.from_dict(fields, step=step if begun is None else begun)
