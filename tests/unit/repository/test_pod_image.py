"""The context of the Dockerfile for pods: .dockerignore lets in what the wheel is built of, and little else.

The image itself is built by tests/e2e/test_pod.py.
"""

from __future__ import annotations

import re
import tomllib

from builders import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LINES = [it for it in (ROOT / ".dockerignore").read_text().splitlines() if it and not it.startswith("#")]
LET_IN = {it[1:] for it in LINES if it.startswith("!")}


def test_the_context_has_what_the_wheel_is_built_of() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], wheel["hooks"]["custom"]["path"], "pyproject.toml"}
    needed |= {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    for path in needed:
        assert any(path == it or path.startswith(f"{it}/") for it in LET_IN), f"{path} is missing from .dockerignore"


def test_the_context_has_nothing_else() -> None:
    assert LINES[0] == "*"
    assert all((ROOT / it).exists() for it in LET_IN)
    assert not LET_IN & {"tests", "docs", ".git", ".venv", "build"}
    assert LINES[-1] == "testbed/fiberd/fiberd", "after what lets its folder in: a binary that was compiled elsewhere"


def test_torch_is_of_the_version_that_agents_require() -> None:
    (wanted,) = (it for it in PROJECT["project"]["optional-dependencies"]["agents"] if it.startswith("torch"))
    assert re.search(rf"'{re.escape(wanted)}'", (ROOT / "Dockerfile").read_text())
