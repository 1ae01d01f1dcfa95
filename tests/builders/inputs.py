"""Tables of a test's inputs, which need no other name: the input is the case's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def by_input(names: str, cases: Mapping[Any, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by input and outcome: ``@by_input("text, value", {"07": 7})``."""
    return pytest.mark.parametrize(names, cases.items(), ids=[str(value) for value in cases])
