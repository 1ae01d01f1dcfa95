"""Tables of cases: each has the behavior that it shows as its id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def table(names: str, cases: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize a test: ``@table("text, value", {"a leading zero is ignored": ("07", 7)})``."""
    return pytest.mark.parametrize(names, cases.values(), ids=list(cases))
