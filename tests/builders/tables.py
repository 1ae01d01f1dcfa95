"""Tests as tables: a row has the behavior that it proves as its id, and the arguments of the test as its value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def table(arguments: str, rows: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by ``rows``: behavior -> a tuple of its ``arguments``, or the value of its only one."""
    several = "," in arguments
    return pytest.mark.parametrize(
        arguments.replace(" ", ""),
        [pytest.param(*(row if several else (row,)), id=behavior) for behavior, row in rows.items()],
    )
