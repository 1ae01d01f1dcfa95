"""Two runs compared: which inputs differ, and for each measured quantity the difference, the ratio and the noise.

What can honestly be said of one run each: whether a difference is larger than the noise *inside* the two runs. How much
two runs of the same thing differ *from each other* is in neither of them, so nothing here is called significant, and
no run is called better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from testbed.core.analysis.noise.inside_noise import Range, apart
from testbed.core.fields import json_values
from testbed.core.report.answers import Answer
from testbed.core.report.comparison.run_inputs import FILE
from testbed.core.report.comparison.side import SECTIONS, Input, Quantity, Side
from testbed.core.validation.baseline import ResultChange
from testbed.core.validation.baseline import compare as compare_validations

__all__ = ["VERSION", "Compared", "InputPair", "SideBySide", "compare", "to_json"]

VERSION = 1

_CHOSEN = frozenset({"workload", "experiment"})
"""Inputs of two runs of one kind that are chosen: one that a run does not have, it was not given."""

_ABSENT = frozenset({"share", "B", "bit/s"})
"""Units of which 0 in both runs says that there is nothing: no lost work, no byte in that direction."""

Key = TypeVar("Key")
Judgement = Literal[
    "equal",
    "within the noise",
    "beyond the noise",
    "one value each",
    "only a bound",
    "only in A",
    "only in B",
    "in neither",
]


@dataclass(frozen=True)
class InputPair:
    """An input that is not the same in both runs; None where one does not have it, or does not tell."""

    group: str
    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class AnswerPair:
    """The answers of both runs to one question; None where it was not asked."""

    id: str
    question: str
    a: Answer | None
    b: Answer | None


@dataclass(frozen=True)
class Compared:
    """One quantity of both runs, in SI units. ``difference`` is b - a, ``ratio`` is b / a; None where unknown.

    ``judgement`` is "within the noise" where the ranges of the two runs' parts overlap, or those of their uncertainty
    by stalls of the host; "beyond the noise" where all parts of one are below all parts of the other; "one value each"
    where a run has no parts to compare; "only a bound" where one of the values is a bound.
    """

    id: str
    name: str
    unit: str
    a: Quantity | None
    b: Quantity | None
    difference: float | None
    ratio: float | None
    judgement: Judgement


@dataclass(frozen=True)
class SideBySide:
    """Two runs side by side. ``one_sided`` are inputs that only one run tells, so that they may be the same.

    ``changes`` are those of two validations, with A as the baseline.
    """

    version: int
    a: Side
    b: Side
    differing: tuple[InputPair, ...]
    one_sided: tuple[InputPair, ...]
    same: tuple[Input, ...]
    answers: tuple[AnswerPair, ...]
    sections: Mapping[str, tuple[Compared, ...]]
    changes: tuple[ResultChange, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same_verdict(self) -> bool:
        return self.a.verdict == self.b.verdict


def compare(a: Side, b: Side) -> SideBySide:
    """Compare two runs of any kind; what only one of them has is kept, with nothing beside it."""
    unlike, same = _inputs(a.inputs, b.inputs)
    telling = _CHOSEN if a.kind == b.kind else frozenset()
    differing = tuple(it for it in unlike if it.group in telling or None not in (it.a, it.b))
    one_sided = tuple(it for it in unlike if it not in differing)
    changes: tuple[ResultChange, ...] = ()
    notes: tuple[str, ...] = ()
    if a.validation and b.validation:
        found = compare_validations(a.validation, b.validation)
        changes, notes = found.changes, found.notes
    sections = {
        key: _quantities(a.sections.get(key, ()), b.sections.get(key, ()))
        for key in SECTIONS
        if key in a.sections or key in b.sections
    }
    return SideBySide(VERSION, a, b, differing, one_sided, same, _answers(a, b), sections, changes, notes)


def _inputs(a: Sequence[Input], b: Sequence[Input]) -> tuple[tuple[InputPair, ...], tuple[Input, ...]]:
    mine, theirs = ({(it.group, it.name): it.value for it in side} for side in (a, b))
    differing, same = [], []
    for key in _union(mine, theirs):
        left, right = mine.get(key), theirs.get(key)
        if left is not None and left == right:
            same.append(Input(*key, left))
        else:
            differing.append(InputPair(*key, *(_lines(left, right) if key[1] == FILE else (left, right))))
    return tuple(differing), tuple(same)


def _lines(left: str | None, right: str | None) -> tuple[str | None, str | None]:
    """Return of two texts the lines that the other does not have."""
    if left is None or right is None:
        return left, right
    mine, theirs = left.splitlines(), right.splitlines()
    return (
        "\n".join(it for it in mine if it not in theirs) or "nothing else",
        "\n".join(it for it in theirs if it not in mine) or "nothing else",
    )


def _answers(a: Side, b: Side) -> tuple[AnswerPair, ...]:
    mine, theirs = ({_asked(side, it): it for it in side.answers} for side in (a, b))
    pairs = ((key, mine.get(key), theirs.get(key)) for key in _union(mine, theirs))
    return tuple(
        AnswerPair(told.id, " ".join(it for it in (told.question, condition) if it), left, right)
        for (_, condition), left, right in pairs
        if (told := left or right)
    )


def _asked(side: Side, answer: Answer) -> tuple[str, str]:
    """Return what pairs an answer: of conditions their text, as their number is only their place in one experiment."""
    condition = side.conditions.get(answer.id, "")
    return (answer.id.rpartition("-")[0], condition) if condition else (answer.id, "")


def _quantities(a: Iterable[Quantity], b: Iterable[Quantity]) -> tuple[Compared, ...]:
    mine, theirs = ({it.id: it for it in side} for side in (a, b))
    found = (_compared(mine.get(key), theirs.get(key)) for key in _union(mine, theirs))
    return tuple(it for it in found if it is not None)


def _compared(a: Quantity | None, b: Quantity | None) -> Compared | None:
    """Return the pair; None if neither run has a value, or any of something that may be absent."""
    told = a or b
    if told is not None and told.unit in _ABSENT and not (a and a.value) and not (b and b.value):
        return None
    left, right = (None if it is None else _finite(it.value) for it in (a, b))
    if told is None or (left is None and right is None and not (a and a.detail) and not (b and b.detail)):
        return None
    difference = ratio = None
    bounded = any(it and it.bound for it in (a, b))
    if left is not None and right is not None and not bounded:
        difference = right - left
        ratio = right / left if left else None
    judged = _judge(left, right, a, b)
    if bounded and left is not None and right is not None:
        judged = "only a bound"
    return Compared(told.id, told.name, told.unit, a, b, difference, ratio, judged)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _judge(left: float | None, right: float | None, a: Quantity | None, b: Quantity | None) -> Judgement:
    if left is None or right is None:
        return "only in A" if left is not None else "only in B" if right is not None else "in neither"
    if left == right:
        return "equal"
    if a is None or b is None:
        return "in neither"
    reach_a, reach_b = a.reach or Range(left, left), b.reach or Range(right, right)
    if (a.uncertainty or b.uncertainty) and not apart(reach_a, reach_b):
        return "within the noise"
    if a.noise is None or b.noise is None:
        return "one value each"
    return "beyond the noise" if apart(reach_a, reach_b) else "within the noise"


def _union(a: Iterable[Key], b: Iterable[Key]) -> list[Key]:
    """Return the keys of both, those of ``b`` that are new behind the key that they follow there."""
    found = list(a)
    last = -1
    for key in b:
        if key in found:
            last = found.index(key)
        else:
            last += 1
            found.insert(last, key)
    return found


def to_json(comparison: SideBySide) -> dict[str, object]:
    """Return plain JSON values; a number that is not finite is null. docs/reference.md describes them."""
    sides = {
        name: {
            "name": side.name,
            "folder": side.folder,
            "kind": side.kind,
            "verdict": side.verdict,
            "headline": side.headline,
            "started_unix_s": side.started_unix_s,
            "shortcomings": side.shortcomings,
            "noise": source.noise if (source := side.report or side.validation) else None,
        }
        for name, side in (("a", comparison.a), ("b", comparison.b))
    }
    document = json_values(
        {
            "version": comparison.version,
            **sides,
            "inputs": {"differ": comparison.differing, "only_one": comparison.one_sided, "same": comparison.same},
            "answers": comparison.answers,
            "quantities": {key: [_plain(it) for it in found] for key, found in comparison.sections.items()},
            "changes": comparison.changes,
            "notes": comparison.notes,
        }
    )
    assert isinstance(document, dict)
    return document


def _plain(pair: Compared) -> dict[str, object]:
    return {
        "id": pair.id,
        "name": pair.name,
        "unit": pair.unit,
        "a": pair.a.value if pair.a else None,
        "b": pair.b.value if pair.b else None,
        "difference": pair.difference,
        "ratio": pair.ratio,
        "noise_a": pair.a.noise if pair.a else None,
        "noise_b": pair.b.noise if pair.b else None,
        "uncertainty_a": pair.a.uncertainty if pair.a else None,
        "uncertainty_b": pair.b.uncertainty if pair.b else None,
        "detail_a": pair.a.detail if pair.a else "",
        "detail_b": pair.b.detail if pair.b else "",
        "bound_a": pair.a.bound if pair.a else "",
        "bound_b": pair.b.bound if pair.b else "",
        "judgement": pair.judgement,
    }
