"""One fact about the host, and what all of them together say."""

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
"""sudo's own PATH (``secure_path`` of sudoers(5)): it knows nothing of a virtual environment."""


def program() -> str:
    """How this program is to be called after ``sudo``, for a shell: its path, unless sudo finds it by its name."""
    for script in (Path(sys.argv[0]), Path(sys.executable).parent / "testbed"):
        path = script.absolute()
        if path.name == "testbed" and path.is_file():
            return "testbed" if str(path.parent) in _SUDO_FINDS else shlex.quote(str(path))
    return "testbed"


AS_ROOT: Final = f"run as root: sudo {program()} doctor"


@dataclass(frozen=True)
class Check:
    """One fact about the host.

    ``state``: ok; missing: it is not there; limited: something else does its work, or results suffer. ``detail`` says
    what was found, ``fix`` is one command (or one step) that mends it, empty when there is none. Without what is
    ``needed``, no lab can come up.
    """

    name: str
    state: State
    detail: str
    fix: str = ""
    needed: bool = False


def can_run(checks: Sequence[Check]) -> bool:
    """Whether a lab can come up here with its fibers certified: ``testbed up metro-40km``."""
    return not any(check.needed and check.state == "missing" for check in checks)


def can_train(checks: Sequence[Check]) -> bool:
    """Whether agents can train on it too: ``testbed run metro-40km``."""
    return can_run(checks) and not any(check.name == "torch" and check.state == "missing" for check in checks)


def read(path: str) -> str:
    """What stands in a file of the kernel's; empty where it has none, or does not let us."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
