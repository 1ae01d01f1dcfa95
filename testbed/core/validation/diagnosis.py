"""Diagnose a wrong answer: another rank's data, stale data, a contribution missing or counted twice, a lost byte.

The data is seeded by rank and call, so that data which took the place of the expected data can be identified. A
diagnosis is reported only where a coincidence is very unlikely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from testbed.core.validation.exact import Indices, agrees
from testbed.core.validation.operation import REDUCING, Group, Operation, Segment
from testbed.core.validation.values import encode, numerators

__all__ = ["diagnose_error"]

Sources = Sequence[tuple[int, int]]

_ENOUGH_BITS: Final = 32
"""Bits of input that must agree: with some hundred candidates the chance of a coincidence is one in ten million."""

_FARTHEST: Final = 16
"""Largest shift, in bytes, of a stream that lost or repeated bytes."""

_WINDOW: Final = 256
"""Bytes compared with a shifted stream."""


def diagnose_error(
    operation: Operation, group: Group, rank: int, output: bytes, indices: Indices, earlier: Sequence[Operation]
) -> str:
    """Return what the elements of ``output`` at the wrong ``indices`` look like; empty if no candidate matches.

    ``rank`` is a number in the ``group``; ``earlier`` are previous operations, the latest first.
    """
    world, size = len(group.ranks), operation.kind.size
    segments = operation.segments(rank, world) or ()
    segment = next(
        candidate for candidate in segments if candidate.begin <= int(indices[0]) < candidate.begin + candidate.count
    )
    indices = indices[indices < np.uint64(segment.begin + segment.count)]
    data = b"".join(output[int(index) * size : (int(index) + 1) * size] for index in indices)
    offsets = indices - np.uint64(segment.begin)
    if len(data) >= 4 and len(set(data)) == 1:
        return f"every wrong byte is {data[:1].hex()}, as in a buffer that was never written"
    for explanation, other, sources in _candidates(operation, group, rank, segment):
        if _enough(other, sources, len(indices)) and agrees(other, sources, offsets, data).all():
            return explanation
    for other in earlier:
        explanation = _stale(operation, other, rank, world, indices, data)
        if explanation:
            return explanation
    return _shifted(operation, segment, output, int(indices[0]))


def _candidates(
    operation: Operation, group: Group, rank: int, segment: Segment
) -> Iterator[tuple[str, Operation, Sources]]:
    """Yield (text, operation, sources of the segment) of errors that would give such an answer."""
    name: Callable[[int], int] = group.ranks.__getitem__  # the text names ranks of the world
    everyone, count = range(len(group.ranks)), operation.count
    if operation.do in REDUCING and len(everyone) > 1:
        begin = segment.sources[0][1]
        yield "it is this rank's own input", operation, ((rank, begin),)
        for other in everyone:
            yield f"it is the input of rank {name(other)} alone", operation, ((other, begin),)
        for other in everyone:
            remaining = tuple(source for source in segment.sources if source[0] != other)
            yield f"the contribution of rank {name(other)} is missing", operation, remaining
            if operation.reduction == "sum":
                twice = (*segment.sources, (other, begin))
                yield f"the contribution of rank {name(other)} is counted twice", operation, twice
        if operation.do == "reduce_scatter":
            for block in everyone:
                moved = tuple((source, block * count) for source, _ in segment.sources)
                yield f"it is the block of rank {name(block)}", operation, moved
        return
    source, begin = segment.sources[0]
    for other in everyone:
        if other != source:
            yield (
                f"it is the data of rank {name(other)}, expected that of rank {name(source)}",
                operation,
                ((other, begin),),
            )
    if operation.do == "all_to_all":
        for receiver in everyone:
            if receiver != rank:
                explanation = f"it is the block of rank {name(source)} for rank {name(receiver)}"
                yield explanation, operation, ((source, receiver * count),)


def _enough(operation: Operation, sources: Sources, elements: int) -> bool:
    bits = 64 - operation.kind.shift
    rounded = len(sources) > 1 and operation.reduction != "max" and not operation.kind.is_integer
    return bool(sources) and elements * (bits // 2 if rounded else bits) >= _ENOUGH_BITS


def _stale(operation: Operation, other: Operation, rank: int, world: int, indices: Indices, data: bytes) -> str:
    """Return a description if the wrong data is the answer or input to ``other``, an earlier operation; else empty."""
    if other.type != operation.type or other.group != operation.group:
        return ""
    for segment in other.segments(rank, world) or ():
        if segment.begin <= int(indices[0]) and int(indices[-1]) < segment.begin + segment.count:
            offsets = indices - np.uint64(segment.begin)
            if _enough(other, segment.sources, len(indices)) and agrees(other, segment.sources, offsets, data).all():
                return f"it is the answer to call {other.call}, an earlier {other.do}: a stale buffer"
    mine = ((rank, 0),)
    there = int(indices[-1]) < other.input_count(world) and _enough(other, mine, len(indices))
    if there and agrees(other, mine, indices, data).all():
        return f"it is this rank's input to call {other.call}, an earlier {other.do}: a stale buffer"
    return ""


def _shifted(operation: Operation, segment: Segment, output: bytes, index: int) -> str:
    """Return a description if data that is moved, not reduced, is shifted from some byte on; else empty."""
    if len(segment.sources) > 1:
        return ""
    kind, (source, begin) = operation.kind, segment.sources[0]
    last = min(segment.begin + segment.count, index + (_WINDOW + _FARTHEST) // kind.size + 1)
    elements = np.arange(index, last, dtype=np.uint64) - np.uint64(segment.begin) + np.uint64(begin)
    values = numerators(kind, elements, seed=operation.seed, call=operation.call, rank=source)
    due = encode(kind, values).tobytes()
    got = output[index * kind.size : last * kind.size]
    at = next(place for place, (a, b) in enumerate(zip(due, got, strict=True)) if a != b)
    for by in range(1, _FARTHEST + 1):
        length = min(_WINDOW, len(due) - at - by)
        if length * 8 < _ENOUGH_BITS * 2:  # two bytes are sometimes equal
            break
        if got[at : at + length] == due[at + by : at + by + length]:
            return f"{_bytes(by)} lost there: what follows is shifted toward the beginning"
        if got[at + by : at + by + length] == due[at : at + length]:
            return f"{_bytes(by)} inserted there: what follows is shifted toward the end"
    return ""


def _bytes(count: int) -> str:
    return "1 byte is" if count == 1 else f"{count} bytes are"
