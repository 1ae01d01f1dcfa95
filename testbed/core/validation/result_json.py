"""A validation as JSON: write and read validate.json, and its schema.

The schema is generated from the dataclasses of :mod:`testbed.core.validation.result`, so that the two cannot drift
apart; the shipped copy is ``testbed/core/report/validate.schema.json``.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from testbed.core.fields import json_values
from testbed.core.user_text import shown
from testbed.core.validation.result import SCHEMA_VERSION, Validation

__all__ = ["from_json", "json_schema", "to_json"]

_MOST_MISTAKES = 12
"""Most mistakes that one message names."""

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DESCRIPTION = (
    "SI units; rates in byte/s. Times of a cell count from the beginning of its fault. A number that is unknown or not"
    " finite is null. A later version may add properties; it removes none."
)


def to_json(validation: Validation) -> dict[str, Any]:
    """Return plain dicts, lists and numbers; a number that is not finite becomes null, because JSON has none."""
    plain: dict[str, Any] = json_values(validation)
    return plain


def from_json(value: object) -> Validation:
    """Read the validation that :func:`to_json` wrote. Properties of later versions are ignored; a null in place of a
    number that is always present becomes NaN.

    Raises:
        ValueError: not a validation, with every mistake in it; or an unknown version.
    """
    if not isinstance(value, Mapping):
        raise ValueError("expected a JSON object")
    version = value.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ValueError(f"expected schema_version {SCHEMA_VERSION}, got {version!r}")
    mistakes = [f"{where}: expected a finite number, JSON has no NaN or Infinity" for where in _infinite(value)]
    try:
        # As JSON, because only then does strict reading take a list for a tuple, and neither "1" nor true for a number.
        validation = _adapter().validate_json(json.dumps(_with_nan(value)), strict=True)
    except ValidationError as error:
        mistakes += [
            f"{_place(mistake['loc'])}: {mistake['msg']}"
            for mistake in error.errors(include_url=False, include_input=False)
        ]
    else:
        mistakes += _doubled(validation)
        if not mistakes:
            return validation
    unlisted = len(mistakes) - _MOST_MISTAKES
    raise ValueError("; ".join(mistakes[:_MOST_MISTAKES]) + (f"; and {unlisted} more" if unlisted > 0 else ""))


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of what :func:`to_json` writes: every property is always present."""
    made = _adapter().json_schema()
    defined = made.pop("$defs")
    numbers = defined["Speed"]["properties"]
    for name in numbers:
        if numbers[name].get("type") == "number":
            numbers[name] = {"type": ["number", "null"]}
    numbers["times_s"]["items"] = {"type": ["number", "null"]}
    made["properties"]["links"]["additionalProperties"]["additionalProperties"] = {"type": ["number", "null"]}
    made["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    for definition in (made, *defined.values()):
        definition["required"] = list(definition["properties"])
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
    return ".".join(str(part) for part in parts) or "top level"


def _infinite(value: Any, place: tuple[str | int, ...] = ()) -> Iterator[str]:
    """Yield where NaN or Infinity is written, which Python reads and JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        yield _place(place)
    elif isinstance(value, Mapping):
        for key, nested in value.items():
            yield from _infinite(nested, (*place, key))
    elif isinstance(value, list):
        for number, nested in enumerate(value):
            yield from _infinite(nested, (*place, number))


def _doubled(validation: Validation) -> Iterator[str]:
    counted = Counter(library.name for library in validation.libraries)
    for name, count in counted.items():
        if count > 1:
            yield f"libraries: {count} have the name {shown(name)}"


def _with_nan(value: Mapping[str, Any]) -> dict[str, Any]:
    """Put NaN where :func:`to_json` wrote null for a number; the adapter rejects other malformed parts."""

    def numbers(values: Any) -> Any:
        if isinstance(values, Mapping):
            return {key: math.nan if nested is None else numbers(nested) for key, nested in values.items()}
        return [math.nan if number is None else number for number in values] if isinstance(values, list) else values

    def library(result: Any) -> Any:
        if not isinstance(result, Mapping) or not isinstance(result.get("speeds", ()), list):
            return result
        return {**result, "speeds": [numbers(speed) for speed in result["speeds"]]}

    libraries = value.get("libraries")
    listed = [library(result) for result in libraries] if isinstance(libraries, list) else libraries
    return {**value, "links": numbers(value.get("links")), "libraries": listed}


def _bare(value: Any) -> Any:
    """Drop the titles and defaults that pydantic writes: a title repeats the name."""
    if isinstance(value, list):
        return [_bare(nested) for nested in value]
    if not isinstance(value, dict):
        return value
    kept = {key: nested for key, nested in value.items() if not (key == "default" or _is_title(key, nested, value))}
    return {key: _bare(nested) for key, nested in kept.items()}


def _is_title(key: str, nested: Any, within: Mapping[str, Any]) -> bool:
    """A property may have the name "title"; the keyword is a string beside a type or a reference."""
    return key == "title" and isinstance(nested, str) and bool({"type", "anyOf", "$ref", "enum"} & set(within))
