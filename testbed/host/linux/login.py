"""Who runs this command: the user, behind sudo too, and the login session."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Login", "current", "user_name"]

_NO_SESSION = 0xFFFFFFFF
"""``/proc/self/sessionid`` of a process of no login, or where PAM numbers none (proc(5), pam_loginuid(8))."""


@dataclass(frozen=True)
class Login:
    """``uid``: of the user who called sudo, else of this process. ``session``: the audit session id, which stays the
    same through su, sudo and new terminals; None: of no login. ``terminal``: as in ``/dev/pts/3``; empty: none."""

    uid: int
    session: int | None = None
    terminal: str = ""


def current(environment: Mapping[str, str] = os.environ) -> Login:
    """Return the login of this process. Only a process of root may say by SUDO_UID whom it acts for."""
    asked = environment.get("SUDO_UID", "")
    uid = int(asked) if os.geteuid() == 0 and asked.isdecimal() else os.getuid()
    # sudo may give its command another terminal than that on which it was typed.
    return Login(uid, _session(), environment.get("SUDO_TTY") or _terminal())


def user_name(uid: int) -> str:
    """Return a user for display: ``anna (uid 1000)``, or ``uid 1000`` if the user has no name here."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _session() -> int | None:
    try:
        session = int(Path("/proc/self/sessionid").read_text())
    except (OSError, ValueError):
        return None  # a kernel without CONFIG_AUDIT
    return None if session == _NO_SESSION else session


def _terminal() -> str:
    for descriptor in (0, 1, 2):
        try:
            return os.ttyname(descriptor)
        except OSError:
            continue
    return ""
