"""Compare an output with the exact result and find the elements that differ.

Sums are sums of numerators (``values.py``) in 64-bit integers. A float from a library is compared in the same units,
2**-scale, as a whole number and a fraction, so that nothing is rounded where it could matter. The bound and its source
are in ``output_judge.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from testbed.core.validation.operation import REDUCING, Operation, Segment
from testbed.core.validation.values import Numerators, decode, encode, numerators

__all__ = ["CHUNK", "Indices", "Wrong", "agrees", "compare"]

Indices = npt.NDArray[np.uint64]

CHUNK: Final = 1 << 17
"""Elements compared at a time: the arrays of a chunk stay within a processor's cache."""

_MOST_KEPT: Final = 64
"""Wrong elements whose indices are kept for the diagnosis; all are counted."""


@dataclass(frozen=True)
class Wrong:
    """The number of wrong elements, and the ``indices`` of the first 64 in the output.

    ``expected`` and ``got`` are the values of the first, ``expected`` rounded to a float64.
    """

    count: int = 0
    indices: Indices = field(default_factory=lambda: np.empty(0, np.uint64))
    expected: float = 0.0
    got: float = 0.0


def compare(operation: Operation, rank: int, world: int, output: bytes) -> Wrong:
    """Compare the ``output`` of a rank (its number in a group of ``world``); the output has the expected length."""
    view, size = memoryview(output), operation.kind.size
    count, first, kept = 0, None, list[Indices]()
    for segment in operation.segments(rank, world) or ():
        for begin in range(segment.begin, segment.begin + segment.count, CHUNK):
            end = min(begin + CHUNK, segment.begin + segment.count)
            indices = np.arange(begin, end, dtype=np.uint64)
            data = view[begin * size : end * size]
            bad = np.flatnonzero(~agrees(operation, segment.sources, indices - np.uint64(segment.begin), data))
            if not bad.size:
                continue
            if first is None:
                first = _first(operation, segment, indices[bad[:1]], decode(operation.kind, data)[bad[0]].item())
            count += int(bad.size)
            if sum(map(len, kept)) < _MOST_KEPT:
                kept.append(indices[bad])
    if first is None:
        return Wrong()
    expected, got = first
    return Wrong(count, np.concatenate(kept)[:_MOST_KEPT], expected, got)


def agrees(
    operation: Operation, sources: Sequence[tuple[int, int]], offsets: Indices, data: bytes | memoryview
) -> npt.NDArray[np.bool_]:
    """Return which elements of ``data`` equal what ``operation`` makes of these elements of its input.

    Args:
        sources: (rank's number in the group, where in its input the segment begins); several are reduced.
        offsets: position in the segment of each element of ``data``.
    """
    kind = operation.kind
    exactly = kind.is_integer or len(sources) == 1 or operation.do not in REDUCING or operation.reduction == "max"
    if not exactly:
        total, magnitude = np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.int64)
        for term in _inputs(operation, sources, offsets):
            total += term
            magnitude += np.abs(term)
        return within(operation, len(sources), decode(kind, data).astype(np.float64), total, magnitude)
    expected = encode(kind, _reduced(operation, sources, offsets))
    got = np.frombuffer(data, np.uint8)
    if np.array_equal(expected, got):
        return np.ones(len(offsets), np.bool_)
    alike: npt.NDArray[np.bool_] = np.all((expected == got).reshape(-1, kind.size), axis=1)
    return alike


def within(
    operation: Operation,
    world: int,
    got: npt.NDArray[np.float64],
    total: Numerators,
    magnitude: Numerators,
) -> npt.NDArray[np.bool_]:
    """Return which of ``got``, sums or averages of ``world`` floats, are within the error bound.

    ``total`` is the sum of the numerators, ``magnitude`` that of their absolute values. Averages are compared after
    multiplication by P, because a P-th of a sum may be no whole number.
    """
    kind = operation.kind
    average = operation.reduction == "avg"
    places, steps = (world, world + 1) if average else (1, world - 1)
    spread = steps * kind.unit_roundoff
    if spread >= 1:
        return np.isfinite(got)  # bfloat16 among more than 255 ranks: the bound is infinite, any finite value passes
    with np.errstate(over="ignore", invalid="ignore"):
        units = got * 2.0**kind.scale
        # A larger value cannot be right, and int64 might overflow below. A comparison with NaN is false.
        plausible = np.abs(units) <= 2.0 * (1 if average else world) * 2.0**kind.scale
    units = np.where(plausible, units, 0.0)
    whole = np.floor(units)
    error = (whole.astype(np.int64) * places - total).astype(np.float64) + (units - whole) * places
    bound = spread / (1 - spread) * magnitude.astype(np.float64) * (1 + 2.0**-50)  # the bound is rounded itself
    if average:
        bound += world * places * 2.0 ** (kind.smallest_exponent - 1 + kind.scale)
    return plausible & (np.abs(error) <= bound)


def _first(operation: Operation, segment: Segment, index: Indices, got: Any) -> tuple[float, float]:
    """Return (expected, got) of one element."""
    exact = _reduced(operation, segment.sources, index - np.uint64(segment.begin))[0].item()
    if operation.kind.is_integer:
        return exact, got
    places = len(segment.sources) if operation.reduction == "avg" else 1
    return exact / (places * 2**operation.kind.scale), got


def _inputs(operation: Operation, sources: Sequence[tuple[int, int]], offsets: Indices) -> Iterator[Numerators]:
    for rank, begin in sources:
        elements = offsets + np.uint64(begin)
        yield numerators(operation.kind, elements, seed=operation.seed, call=operation.call, rank=rank)


def _reduced(operation: Operation, sources: Sequence[tuple[int, int]], offsets: Indices) -> Numerators:
    """Numerators of the sum, of the maximum, or of the data that was moved."""
    inputs = _inputs(operation, sources, offsets)
    largest = next(inputs)
    for term in inputs:
        if operation.reduction == "max":
            np.maximum(largest, term, out=largest)
        else:
            largest += term
    return largest
