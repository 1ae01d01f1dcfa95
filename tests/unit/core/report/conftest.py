"""The run directory that most tests of reports begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import run_factory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the path of a complete run."""
    return run_factory.make_run(tmp_path / "run")
