"""The result of one host check, and the conclusions drawn from all of them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

__all__ = ["AS_ROOT", "Check", "State", "can_run", "can_train", "program", "read"]

State = Literal["ok", "missing", "limited"]

_SUDO_FINDS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""sudo's own PATH (``secure_path`` of sudoers(5)), which has no virtual environment in it."""


def program() -> str:
    """Return how to call this program after ``sudo``, quoted for a shell: its path, unless sudo's PATH has it."""
    for script in (Path(sys.argv[0]), Path(sys.executable).parent / "testbed"):
        path = script.absolute()
        if path.name == "testbed" and path.is_file():
            return "testbed" if str(path.parent) in _SUDO_FINDS else shlex.quote(str(path))
    return "testbed"


AS_ROOT: Final = f"run as root: sudo {program()} doctor"


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
