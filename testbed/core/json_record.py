"""Dataclasses as JSON objects: the types of the fields define how a record is read and written.

Reading is lenient (``core/fields.py``): unknown keys are ignored. A field that is missing or has another type is None
where its type allows it, otherwise the class's default; without a default the record is
:class:`~testbed.core.fields.Malformed`. Of a list of texts or records, elements of another type are left out; a list of
numbers is malformed then, because its other elements would shift.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Final, Self, TypeVar, get_args, get_origin

from testbed.core.fields import LARGEST, Fields, Malformed, integer, json_values, number, numbers

__all__ = ["UNREAD", "Derived", "JsonRecord", "Key", "Least", "Or", "Parsed", "read_kinds"]

T = TypeVar("T")
Converter = Callable[[Any], Any]
"""Converts a value of JSON to a field's; returns MISSING for a value of another type."""


@dataclass(frozen=True)
class Key:
    """The place of a field in JSON, if it is not the field's name: ``bytes``, ``lateness.counts``.

    An empty value is not written with ``omit_empty``.
    """

    path: str
    omit_empty: bool = False


@dataclass(frozen=True)
class Or:
    """The value of a field that is missing, of another type, zero or empty, as in ``value or 1``."""

    value: object


@dataclass(frozen=True)
class Least:
    """The smallest value of a number: smaller ones are damage, and become it."""

    value: float


@dataclass(frozen=True)
class Parsed:
    """Reads the value of a field; it may raise Malformed, or return MISSING for a value of another type."""

    by: Converter


@dataclass(frozen=True)
class Derived:
    """Derives a field from the whole JSON object and the field's name; it may raise Malformed."""

    by: Callable[[Fields, str], object]


_EXACT: Final = 2**53
"""Larger integers are rounded, as JSON readers may read them as floats."""

UNREAD: Final = object()
"""Marks a field that is not read from its key: it is given, or has its default."""


class JsonRecord:
    """A dataclass that is read from a JSON object, and written as one."""

    WRITTEN: ClassVar[tuple[str, ...]] = ()
    """Properties that are written besides the fields."""

    @classmethod
    def from_dict(cls, fields: Fields, **given: object) -> Self:
        """Read a JSON object; ``given`` has fields that are not read from it. Raises Malformed."""
        return typing.cast(Self, _read(cls, fields, given))

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON can hold it."""
        written: dict[str, Any] = {}
        cls: Any = type(self)
        for name, key in _keys(cls):
            value = getattr(self, name)
            if key.omit_empty and not value:
                continue
            *parents, last = key.path.split(".")
            target = written
            for parent in parents:
                target = target.setdefault(parent, {})
            target[last] = _written(value)
        return written


def read_kinds(
    lines: Iterable[object], readers: Mapping[str, Callable[[Fields], Any]]
) -> tuple[dict[str, tuple[Any, ...]], int]:
    """Read each line with the reader of its ``kind``: (kind -> records in order, malformed lines)."""
    records: dict[str, list[Any]] = {kind: [] for kind in readers}
    malformed = 0
    for line in lines:
        try:
            kind = line.get("kind") if isinstance(line, Mapping) else None
            if not isinstance(kind, str) or kind not in readers:
                raise Malformed("unknown kind of record")
            records[kind].append(readers[kind](typing.cast(Fields, line)))
        except Malformed:
            malformed += 1
    return {kind: tuple(of_kind) for kind, of_kind in records.items()}, malformed


def _read(cls: Any, source: Fields, given: Mapping[str, object]) -> Any:
    values: dict[str, Any] = {}
    from_values, from_object = _readers(cls)
    for name, key, convert, fallback in from_values:
        value = source.get(key, MISSING)
        if value is not MISSING:
            value = convert(value)
        if value is not MISSING:
            values[name] = value
        elif fallback is Malformed:
            if name not in given:
                raise Malformed(f"'{key}': missing, or of another type")
        elif fallback is not MISSING:
            values[name] = fallback
    for name, derive in from_object:
        values[name] = derive(source, name)
    values.update(given)
    return cls(**values)


_FromValue = tuple[str, str, Converter, object]
"""Field, top-level key, converter, and what the field is without a value: MISSING for the class's default."""


@functools.cache
def _readers(cls: Any) -> tuple[tuple[_FromValue, ...], tuple[tuple[str, Callable[[Fields, str], object]], ...]]:
    """Return how the fields of a class are read: (from the value at a key, from the whole object)."""
    hints = typing.get_type_hints(cls, include_extras=True)
    from_values: list[_FromValue] = []
    from_object: list[tuple[str, Callable[[Fields, str], object]]] = []
    for field in fields(cls):
        hint, marks = _marks(hints[field.name])
        if UNREAD in marks.values():
            continue
        if Derived in marks:
            from_object.append((field.name, marks[Derived].by))
            continue
        key, *below = _key(field.name, marks).path.split(".")
        convert = marks[Parsed].by if Parsed in marks else _converter(hint)
        if Least in marks:
            convert = functools.partial(_at_least, marks[Least].value, convert)
        if Or in marks:
            convert = functools.partial(_or, marks[Or].value, convert)
        if below:
            convert = functools.partial(_below, below, convert)
        from_values.append((field.name, key, convert, _fallback(field, hint, marks)))
    return tuple(from_values), tuple(from_object)


@functools.cache
def _keys(cls: Any) -> tuple[tuple[str, Key], ...]:
    """Return the fields and properties of a class that are written, with their keys."""
    hints = typing.get_type_hints(cls, include_extras=True)
    of_fields = ((field.name, _key(field.name, _marks(hints[field.name])[1])) for field in fields(cls))
    return (*of_fields, *((name, Key(name)) for name in cls.WRITTEN))


def _marks(hint: Any) -> tuple[Any, dict[Any, Any]]:
    """Split the type of a field: (type, mark by its class)."""
    hint, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    return hint, {type(mark): mark for mark in marks}


def _key(name: str, marks: Mapping[Any, Any]) -> Key:
    return typing.cast(Key, marks[Key]) if Key in marks else Key(name)


def _fallback(field: Any, hint: Any, marks: Mapping[Any, Any]) -> object:
    if Or in marks:
        return marks[Or].value
    if field.default is not MISSING or field.default_factory is not MISSING:
        return MISSING
    return None if type(None) in get_args(hint) else Malformed


def _or(instead: object, convert: Converter, value: object) -> object:
    converted = convert(value)
    return instead if converted is MISSING else converted or instead


def _at_least(least: float, convert: Converter, value: object) -> object:
    converted = convert(value)
    return converted if converted is MISSING else max(least, converted)


def _below(keys: Sequence[str], convert: Converter, value: object) -> object:
    for key in keys:
        value = value.get(key, MISSING) if isinstance(value, Mapping) else MISSING
    return MISSING if value is MISSING else convert(value)


def _converter(hint: Any) -> Converter:
    origin, arguments = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if origin in (types.UnionType, typing.Union):
        return _converter(arguments[0])
    if origin is tuple:
        if arguments[0] in (int, float):
            return functools.partial(_number_list, arguments[0])
        return functools.partial(_list, _converter(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_object, _converter(arguments[1]))
    if is_dataclass(hint):
        return functools.partial(_record, hint)
    return _SCALARS[hint]


def _float(value: object) -> object:
    if type(value) is float and -LARGEST <= value <= LARGEST:
        return value
    parsed = number({"": value}, "")
    return MISSING if parsed is None else parsed


def _int(value: object) -> object:
    if type(value) is int and -_EXACT <= value <= _EXACT:
        return value
    parsed = integer({"": value}, "")
    return MISSING if parsed is None else parsed


_SCALARS: Final[Mapping[Any, Converter]] = {
    float: _float,
    int: _int,
    str: lambda value: value if isinstance(value, str) else MISSING,
    bool: lambda value: value if isinstance(value, bool) else MISSING,
    object: lambda value: value,
}


def _number_list(kind: type, value: object) -> object:
    return tuple(map(kind, numbers({"": value}, ""))) if isinstance(value, list | tuple) else MISSING


def _list(convert: Converter, value: object) -> object:
    if not isinstance(value, list | tuple):
        return MISSING
    return tuple(part for part in map(convert, value) if part is not MISSING)


def _object(convert: Converter, value: object) -> object:
    if not isinstance(value, Mapping):
        return MISSING
    converted = ((str(key), convert(part)) for key, part in value.items())
    return {key: part for key, part in converted if part is not MISSING}


def _record(cls: Any, value: object) -> object:
    try:
        return cls.from_dict(value) if isinstance(value, Mapping) else MISSING
    except Malformed:
        return MISSING


def _written(value: Any) -> Any:
    if isinstance(value, JsonRecord):
        return value.to_dict()
    if hasattr(value, "_asdict"):  # a named tuple
        return {key: _written(part) for key, part in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_written(part) for part in value]
    return json_values(value)
