"""Compile users' patterns of output lines, and refuse those that can take exponentially long on a line.

Python's ``re`` backtracks: ``(a+)+b`` tries 2^n ways on n times the letter a, and nothing can interrupt it. Bounds
keep a pattern from stopping the command that reads the output: a repetition of repetitions is refused here, and so are
more than :data:`MOST_WIDE` repetitions of almost any character; lines are cut at ``progress_lines.LONGEST``; and the
reader gives up a pattern that has taken too long once, on a line or on the begin of one
(``lab/jobs/progress_output.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from testbed.core.units import Unreadable
from testbed.core.user_text import expected, shown

__all__ = ["LONGEST_PATTERN", "MOST_PATTERNS", "MOST_WIDE", "RESERVED", "STEPS", "compiled", "repetitions"]

LONGEST_PATTERN: Final = 500
MOST_PATTERNS: Final = 8
MOST_WIDE: Final = 4

STEPS: Final = frozenset({"step", "epoch_step"})
"""Groups that make a line report a step."""

RESERVED: Final = frozenset({"attempt", "kind", "node", "rank", "site", "t", "world_size"})
"""Fields of the records that a group cannot have the name of."""

_UNBOUNDED: Final = 32
"""A single repetition of up to this many times counts as bounded."""

_MOST_TIMES: Final = 4
"""What is repeated up to this many times in all, as the parts of an address, may have repetitions inside: n characters
are then split in at most n^4 ways."""

_REPEATS: Final = ("MAX_REPEAT", "MIN_REPEAT")
_WIDE: Final = ("ANY", "ANY_ALL", "NOT_LITERAL")


def compiled(value: object) -> re.Pattern[str]:
    """Return a user's pattern. Raises Unreadable for anything else, and for a pattern whose time is not bounded."""
    example = r"write one such as 'iter (?P<step>\d+): loss (?P<train_loss>[\d.]+)'"
    if not isinstance(value, str) or not value:
        raise Unreadable(*expected("a regular expression", value, example))
    if len(value) > LONGEST_PATTERN:
        raise Unreadable(f"a pattern of {len(value)} characters is too long", f"use at most {LONGEST_PATTERN}")
    try:
        pattern = re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unreadable(f"{shown(value)} is not a regular expression of Python: {error}", example) from error
    if not pattern.groupindex:
        raise Unreadable(
            f"the pattern {shown(value)} has no named group",
            r"name what it finds: (?P<step>\d+), (?P<train_loss>[\d.]+)",
        )
    if taken := sorted(RESERVED & set(pattern.groupindex)):
        raise Unreadable(f"a group cannot be named {taken[0]}", "choose another name")
    _refuse_slow(value)
    return pattern


def repetitions(text: str) -> int:
    """Return how many repetitions a pattern has that can give back what they took. What a line costs can grow with its
    length to the power of that, plus one."""
    try:
        from re import _parser  # type: ignore[attr-defined]
    except ImportError:
        return MOST_WIDE
    return _count(_parser.parse(text))


def _count(tree: Iterable[Any]) -> int:
    repetition_count = 0
    for op, value in tree:
        name = str(op)
        if name in _REPEATS:
            low, high, body = value
            repetition_count += (high != low) + _count(body)
        elif name == "BRANCH":
            repetition_count += max(map(_count, value[1]), default=0)
        else:
            repetition_count += sum(map(_count, _below(name, value)))
    return repetition_count


def _refuse_slow(text: str) -> None:
    """Raise Unreadable for a pattern that has a repetition of repetitions, or too many wide ones."""
    try:
        from re import _parser  # type: ignore[attr-defined]

        tree = _parser.parse(text)
    except ImportError:  # a Python that keeps it elsewhere: the other bounds remain
        return
    if _nested(tree):
        raise Unreadable(
            f"the pattern {shown(text)} repeats a repetition or an alternative, which can take exponentially long",
            "make the inner one possessive ([^,]*+), or spell the parts out",
        )
    if (wide := sum(1 for _ in _wide(tree))) > MOST_WIDE:
        raise Unreadable(
            f"the pattern {shown(text)} has {wide} repetitions of almost any character, which can take very long",
            f"use at most {MOST_WIDE}, or possessive ones ([^,]*+)",
        )


def _nested(tree: Iterable[Any], times: int = 1) -> bool:
    """Whether a part of ``tree`` can match one text in several ways, and is repeated too often: ``times`` so far."""
    inside = times > _MOST_TIMES
    for op, value in tree:
        name = str(op)
        if name in _REPEATS:
            low, high, body = value
            if inside and high != low:
                return True
            if _nested(body, times * max(1, int(high))):
                return True
        elif name == "POSSESSIVE_REPEAT":
            # It never gives back what it took, but what it repeats is searched once per repetition.
            if _nested(value[2]):
                return True
        elif name == "BRANCH":
            if inside or any(_nested(part, times) for part in value[1]):
                return True
        elif name == "ATOMIC_GROUP":
            if _nested(value):
                return True
        elif (name == "GROUPREF" and inside) or any(_nested(part, times) for part in _below(name, value)):
            return True
    return False


def _wide(tree: Iterable[Any]) -> Iterable[None]:
    """Yield once per unbounded repetition of almost any character."""
    for op, value in tree:
        name = str(op)
        if name in _REPEATS:
            _, high, body = value
            parts = list(body)
            if int(high) > _UNBOUNDED and len(parts) == 1 and _is_wide(*parts[0]):
                yield None
                continue
            yield from _wide(body)
        elif name == "BRANCH":
            for part in value[1]:
                yield from _wide(part)
        else:
            for part in _below(name, value):
                yield from _wide(part)


def _is_wide(op: Any, value: Any) -> bool:
    if str(op) != "IN":
        return str(op) in _WIDE
    return any(str(kind) == "NEGATE" or "NOT" in str(what) for kind, what in value)


def _below(name: str, value: Any) -> list[Any]:
    """Return the parts of a node that are trees themselves."""
    if name == "SUBPATTERN":
        return [value[3]]
    if name in ("ASSERT", "ASSERT_NOT"):
        return [value[1]]
    if name == "GROUPREF_EXISTS":
        return [node for node in value[1:] if node is not None]
    return []
