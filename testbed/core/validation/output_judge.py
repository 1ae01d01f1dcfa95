"""Judge the answers of the ranks to one operation; if they are wrong: which rank, where, and a diagnosis.

Data that is moved, maxima and every sum of integers must be right to the last bit. A sum of floats depends on the order
of its additions, which is the library's own choice; it must be within

    |got - exact| <= gamma(P - 1) * sum |x_i|,        gamma(k) = k u / (1 - k u),

for P ranks and u the unit roundoff of the vector's type (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
edition, 2002, section 4.2, for any order). This assumes that each of the P - 1 additions is rounded to nearest in the
type of the vector or in a wider one. A library that accumulates float16 or bfloat16 in float32 and rounds what it
passes on is within the bound too: our inputs are multiples of 2**-10 and 2**-7, whose sums float32 holds exactly, so
that each result is rounded once when it is passed on. ``avg`` is a sum with two more roundings, that of 1/P and that of
the product, before the sum or after it: gamma(P + 1), and half of the least subnormal number for each product that may
underflow.

``exact`` is exact: sums of numerators in 64-bit integers, compared without rounding (``exact.py``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from testbed.core.validation.diagnosis import diagnose_error
from testbed.core.validation.elements import ElementType
from testbed.core.validation.exact import compare
from testbed.core.validation.operation import BARRIER, Group, Operation
from testbed.core.validation.result import CaseState
from testbed.core.validation.values import decode

__all__ = ["Answer", "Judgement", "judge"]


@dataclass(frozen=True)
class Answer:
    """How one rank answered. ``silent``: no answer by the time that the operation was given up.

    ``output`` is the content of its file, None where it named none. ``message`` is the text of an error, the reason why
    the operation is unsupported, or how the process ended. ``length`` is the length of the file in bytes if it is
    longer than expected and was not read completely; None: ``output`` is the whole file.
    """

    state: Literal["done", "unsupported", "error", "silent", "died"]
    output: bytes | None = None
    began: float | None = None
    ended: float | None = None
    message: str = ""
    length: int | None = None


@dataclass(frozen=True)
class Judgement:
    """``detail`` names the rank by its number in the world, the first wrong element, and the values expected and got.

    ``rank``: the first rank whose answer is wrong.
    """

    state: CaseState
    detail: str = ""
    rank: int | None = None


def judge(
    operation: Operation,
    group: Group,
    answers: Mapping[int, Answer],
    *,
    same_bits: bool = False,
    earlier: Sequence[Operation] = (),
) -> Judgement:
    """Judge one operation by the answers of the members of its ``group``, by their numbers in the world.

    ``same_bits``: the library guarantees that every rank gets the same bits of an all_reduce. ``earlier`` are previous
    operations of this library in the same group, the latest first; a stale buffer may hold their data. A member without
    an answer is silent. The worst state wins, in this order: a wrong answer, a rank that never answers, one that died,
    an error, an operation that not every rank supports.
    """
    given = {rank: answers.get(rank, Answer("silent")) for rank in group.ranks}
    done = {rank: answer for rank, answer in given.items() if answer.state == "done"}
    wrong = _wrong(operation, group, done, earlier)
    if wrong is not None:
        return wrong
    for state, case, what in (
        ("silent", "hang", "never answered"),
        ("died", "crash", "died"),
        ("error", "error", "failed"),
        ("unsupported", "unsupported", "does not support it"),
    ):
        ranks = [rank for rank, answer in given.items() if answer.state == state]
        if ranks:
            mixed = state == "unsupported" and len(ranks) < len(given)
            message = next((given[rank].message for rank in ranks if given[rank].message), "")
            detail = f"{_ranks(ranks)} {what}" + (f": {message}" if message else "")
            return Judgement("error" if mixed else case, detail, ranks[0])  # type: ignore[arg-type]
    if same_bits and operation.do == "all_reduce" and operation.keep:
        return _same_bits(operation, group, done)
    return Judgement("right")


def _wrong(
    operation: Operation, group: Group, done: Mapping[int, Answer], earlier: Sequence[Operation]
) -> Judgement | None:
    if operation.do == BARRIER:
        return _early(done) if len(done) == len(group.ranks) else None
    if not operation.keep:
        return None
    world = len(group.ranks)
    length = operation.output_count(world) * operation.kind.size
    alike = operation.do in ("all_reduce", "all_gather", "broadcast")
    proven: bytes | None = None
    for number, rank in enumerate(group.ranks):
        answer = done.get(rank)
        if answer is None or operation.segments(number, world) is None:
            continue
        output = answer.output
        if output is None:
            return Judgement("wrong", f"rank {rank} named no output, expected {length} bytes", rank)
        its = len(output) if answer.length is None else answer.length
        if its != length:
            return Judgement("wrong", f"rank {rank}: {_length(operation, its, length)}", rank)
        if alike and output == proven:
            continue
        wrong = compare(operation, number, world, output)
        if wrong.count:
            expected, got = (_number(operation.kind, number) for number in (wrong.expected, wrong.got))
            total = operation.output_count(world)
            which = f"{wrong.count} of {total} elements are wrong, the first is {wrong.indices[0]}"
            detail = f"rank {rank}: {which}: expected {expected}, got {got}"
            why = diagnose_error(operation, group, number, output, wrong.indices, earlier)
            return Judgement("wrong", detail + (f"; {why}" if why else ""), rank)
        proven = output
    return None


def _early(done: Mapping[int, Answer]) -> Judgement | None:
    """Return a judgement if a rank left the barrier before another had entered it."""
    timed = {
        rank: (answer.began, answer.ended)
        for rank, answer in done.items()
        if answer.began is not None and answer.ended is not None
    }
    if len(timed) < 2:
        return None
    last = max(timed, key=lambda rank: timed[rank][0] or 0.0)
    first = min(timed, key=lambda rank: timed[rank][1] or 0.0)
    early_s = (timed[last][0] or 0.0) - (timed[first][1] or 0.0)
    if early_s <= 0:
        return None
    return Judgement("wrong", f"rank {first} left the barrier {early_s * 1e3:.3g} ms before rank {last} entered", first)


def _length(operation: Operation, got: int, due: int) -> str:
    size, off = operation.kind.size, abs(got - due)
    elements = f", {off // size} elements" if off % size == 0 else ""
    return f"its output is {got} bytes long, expected {due}: {off} too {'few' if got < due else 'many'}{elements}"


def _same_bits(operation: Operation, group: Group, done: Mapping[int, Answer]) -> Judgement:
    first = group.ranks[0]
    reference = done[first].output or b""
    for rank, other in itertools.islice(done.items(), 1, None):
        if other.output != reference:
            size = operation.kind.size
            unlike = np.frombuffer(reference, np.uint8) != np.frombuffer(other.output or b"", np.uint8)
            index = int(np.argmax(unlike)) // size
            mine, theirs = (
                _number(operation.kind, decode(operation.kind, data[index * size : (index + 1) * size])[0].item())
                for data in (reference, other.output or b"")
            )
            detail = (
                f"ranks {first} and {rank} differ at element {index}, {mine} and {theirs}, but the library guarantees"
                " the same bits on every rank"
            )
            return Judgement("wrong", detail, rank)
    return Judgement("right")


def _number(kind: ElementType, value: float) -> str:
    return str(int(value)) if kind.is_integer else f"{value:.{math.ceil(1 + kind.precision * math.log10(2))}g}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))
