"""A validation as JSON: what validate.json holds, read again, and the schema of it.

The schema is made of the dataclasses of :mod:`testbed.core.validation.result`, so that neither can drift from the
other; what is shipped is ``testbed/core/report/validate.schema.json``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from testbed.core.user_text import shown
from testbed.core.validation.result import SCHEMA_VERSION, Validation

__all__ = ["from_json", "json_schema", "to_json"]

_MOST_MISTAKES = 12
"""That one message names."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DESCRIPTION = (
    "SI units; rates in byte/s. Times of a cell count from the beginning of its fault. What is not known, or is no"
    " finite number, is null. A later version may add properties; it takes none away."
)


def to_json(validation: Validation) -> dict[str, Any]:
    """Plain dicts, lists and numbers; what is not finite becomes null, for which JSON has no word."""
    plain: dict[str, Any] = _plain(validation)
    return plain


def from_json(value: object) -> Validation:
    """The validation that :func:`to_json` wrote. Properties of later versions are left out; a number that is null where
    there is always one comes back as NaN.

    Raises:
        ValueError: it is no validation, with every mistake in it; or of a version that this program does not know.
    """
    if not isinstance(value, Mapping):
        raise ValueError("no JSON object")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}, and this testbed reads {SCHEMA_VERSION}")
    mistakes = [f"{where}: there is no such number in JSON" for where in _infinite(value)]
    try:
        # As JSON, for only so strict reading takes a list for a tuple; and neither "1" nor true for a number.
        found = _adapter().validate_json(json.dumps(_with_nan(value)), strict=True)
    except ValidationError as error:
        mistakes += [f"{_place(it['loc'])}: {it['msg']}" for it in error.errors(include_url=False, include_input=False)]
    else:
        mistakes += _doubled(found)
        if not mistakes:
            return found
    more = len(mistakes) - _MOST_MISTAKES
    raise ValueError("; ".join(mistakes[:_MOST_MISTAKES]) + (f"; and {more} more" if more > 0 else ""))


def json_schema() -> dict[str, Any]:
    """The JSON schema of what :func:`to_json` makes: everything in it is always there."""
    made = _adapter().json_schema()
    defined = made.pop("$defs")
    numbers = defined["Speed"]["properties"]
    for name in numbers:
        if numbers[name].get("type") == "number":
            numbers[name] = {"type": ["number", "null"]}
    numbers["times_s"]["items"] = {"type": ["number", "null"]}
    made["properties"]["links"]["additionalProperties"]["additionalProperties"] = {"type": ["number", "null"]}
    made["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    for each in (made, *defined.values()):
        each["required"] = list(each["properties"])
    whole = {
        "$schema": _DIALECT,
        "title": f"Result of testbed validate, version {SCHEMA_VERSION}",
        "description": _DESCRIPTION,
        **{key: value for key, value in made.items() if key not in ("title", "description")},
        "$defs": defined,
    }
    return {key: _bare(value) for key, value in whole.items()}


@functools.cache
def _adapter() -> TypeAdapter[Validation]:
    return TypeAdapter(Validation)


def _place(parts: Iterable[str | int]) -> str:
    return ".".join(str(part) for part in parts) or "the whole"


def _infinite(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[str]:
    """Where NaN or Infinity is written, which Python reads and JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        yield _place(place)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _infinite(each, (*place, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _infinite(each, (*place, number))


def _doubled(validation: Validation) -> Iterator[str]:
    counted = Counter(library.name for library in validation.libraries)
    for name, count in counted.items():
        if count > 1:
            yield f"libraries: {count} are called {shown(name)}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_nan(value: Mapping[str, Any]) -> dict[str, Any]:
    """NaN where :func:`to_json` wrote null for a number; what has another form is left for the adapter to refuse."""

    def numbers(values: Any) -> Any:
        if isinstance(values, Mapping):
            return {key: math.nan if each is None else numbers(each) for key, each in values.items()}
        return [math.nan if each is None else each for each in values] if isinstance(values, list) else values

    def library(each: Any) -> Any:
        if not isinstance(each, Mapping) or not isinstance(each.get("speeds", ()), list):
            return each
        return {**each, "speeds": [numbers(speed) for speed in each["speeds"]]}

    libraries = value.get("libraries")
    listed = [library(each) for each in libraries] if isinstance(libraries, list) else libraries
    return {**value, "links": numbers(value.get("links")), "libraries": listed}


def _bare(value: Any) -> Any:
    """Without the titles and defaults that pydantic writes: a title repeats the name."""
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if not isinstance(value, dict):
        return value
    kept = {key: each for key, each in value.items() if not (key == "default" or _is_title(key, each, value))}
    return {key: _bare(each) for key, each in kept.items()}


def _is_title(key: str, each: Any, within: Mapping[str, Any]) -> bool:
    """A property may be called title; the keyword is a string beside a type or a reference."""
    return key == "title" and isinstance(each, str) and bool({"type", "anyOf", "$ref", "enum"} & set(within))
