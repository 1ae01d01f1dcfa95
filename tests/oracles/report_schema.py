"""Validators of the reports' JSON schemas. ``jsonschema.validate`` checks the whole schema before each document."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import jsonschema


@functools.cache
def validator(file_name: str) -> Any:
    """Return the validator of a schema of ``testbed.core.report``, which is checked first."""
    schema = json.loads((resources.files("testbed.core.report") / file_name).read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)
