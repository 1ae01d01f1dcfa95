"""Read the fields of a JSON object leniently, and write values that JSON can hold.

A report must be possible from whatever a crash left behind: unknown keys are ignored, an optional field of the wrong
type is None, and a line without its mandatory fields raises :class:`Malformed`, which :func:`parse` counts and skips.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

Fields = Mapping[str, object]
T = TypeVar("T")


LARGEST: Final = 1e18
"""Larger numbers, infinity included, are damage: sums of what is read here must stay finite, as report.json needs."""


class Malformed(ValueError):
    """A line without a mandatory field."""


def number(fields: Fields, key: str) -> float | None:
    """Return the number at ``key``; None if it is missing, true, false or larger than :data:`LARGEST`."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        parsed = float(value)
    except OverflowError:  # JSON integers are unbounded, floats are not
        return None
    return parsed if abs(parsed) <= LARGEST else None  # NaN fails too


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
    """Return the list at ``key``; Malformed if one item is not a number, since dropping it would shift the others."""
    listed = sequence(fields, key)
    parsed = tuple(number({"": value}, "") for value in listed)
    if any(value is None for value in parsed):
        raise Malformed(f"'{key}': expected a list of numbers")
    return tuple(value for value in parsed if value is not None)


def need_number(fields: Fields, key: str) -> float:
    value = number(fields, key)
    if value is None:
        raise Malformed(f"'{key}': expected a number")
    return value


def need_text(fields: Fields, key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise Malformed(f"'{key}': expected a string")
    return value


def parse(
    lines: Iterable[object], readers: Mapping[str, Callable[[Fields], T]], key: str | None
) -> tuple[list[T], int]:
    """Read each line with ``readers[line[key]]``, or ``readers[""]`` without a key: (records, malformed lines)."""
    parsed: list[T] = []
    malformed = 0
    for line in lines:
        try:
            if not isinstance(line, Mapping):
                raise Malformed("expected a JSON object")
            reader = readers.get(text(line, key) if key else "")
            if reader is None:
                raise Malformed("unknown kind of record")
            parsed.append(reader(line))
        except Malformed:
            malformed += 1
    return parsed, malformed


def json_values(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: dataclasses as objects, tuples as lists, null for numbers not finite."""
    if dataclasses.is_dataclass(value):
        return {field.name: json_values(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): json_values(nested) for key, nested in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(nested) for nested in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
