"""Validators of the reports' JSON schemas. ``jsonschema.validate`` checks the whole schema before each document."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jsonschema


@functools.cache
def validator(json_schema: Callable[[], dict[str, Any]]) -> Any:
    """Return the validator of a schema, which is checked first."""
    schema = json_schema()
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)
