"""The result of one host check, and the conclusions drawn from all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["Check", "State", "can_run", "can_train", "read"]

State = Literal["ok", "missing", "limited"]


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        state: ``ok``; ``missing``; ``limited``: a fallback is used, or results are less accurate.
        detail: what was found.
        fix: one command (or one step) that fixes it; empty if there is none.
        needed: no lab can come up while this is missing.
    """

    name: str
    state: State
    detail: str
    fix: str = ""
    needed: bool = False


def can_run(checks: Sequence[Check]) -> bool:
    """Return whether this host can bring up and certify a lab: ``testbed up metro-40km``."""
    return not any(check.needed and check.state == "missing" for check in checks)


def can_train(checks: Sequence[Check]) -> bool:
    """Return whether agents can also train in that lab: ``testbed run metro-40km``."""
    return can_run(checks) and not any(check.name == "torch" and check.state == "missing" for check in checks)


def read(path: str) -> str:
    """Return the stripped content of a kernel file; empty if it does not exist or cannot be read."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
