"""Tables of cases for parametrized tests: the behavior that a case proves is its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def cases(names: str, table: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test by a table of ``{"behavior": values}``; the values of several names are a tuple."""
    return pytest.mark.parametrize(names, table.values(), ids=table.keys())
