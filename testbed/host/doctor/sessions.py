"""Check that programs outlive the login session that started them: labs and detached jobs do, over SSH too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from testbed.host.doctor.check import Check
from testbed.host.linux import invocation

__all__ = ["lasting"]

_FOLDERS: Final = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
"""Of configuration, the one that counts first (systemd.unit(5), logind.conf(5))."""

_FIX: Final = r"mkdir -p /etc/systemd/logind.conf.d && printf '[Login]\nKillUserProcesses=no\n' > {file}"


def lasting(root: Path = Path("/"), user: str | None = None) -> Check:
    """Check logind's KillUserProcesses, below ``root``, for the ``user`` of the session (default: who called sudo)."""
    name = "login sessions"
    if not (root / "run/systemd/system").is_dir():
        return Check(name, "ok", "no systemd here; labs and detached jobs outlive the session")
    values = _settings(root)
    kills = values.get("KillUserProcesses", "no").lower() in ("yes", "true", "1", "on", "y", "t")
    who = user or os.environ.get("SUDO_USER") or os.environ.get("USER") or "root"
    only, excluded = values.get("KillOnlyUsers", "").split(), values.get("KillExcludeUsers", "root").split()
    if not kills or who in excluded or (only and who not in only):
        return Check(name, "ok", "labs and detached jobs outlive the session that started them")
    line = _FIX.format(file="/etc/systemd/logind.conf.d/90-testbed.conf")
    return Check(
        name,
        "limited",
        f"KillUserProcesses=yes: labs and detached jobs of {who} are killed when the session ends, over SSH too",
        invocation.as_root(f"{line}; systemctl restart systemd-logind"),
    )


def _settings(root: Path) -> dict[str, str]:
    """Return the settings of [Login]: the first logind.conf, then drop-ins by name, each from the first folder."""
    candidates = [root / folder / "logind.conf" for folder in _FOLDERS]
    files = [next((path for path in candidates if path.exists()), root / "none")]
    drop_ins: dict[str, Path] = {}
    for folder in reversed(_FOLDERS):
        for path in (root / folder / "logind.conf.d").glob("*.conf"):
            drop_ins[path.name] = path
    values: dict[str, str] = {}
    for path in (*files, *(drop_ins[name] for name in sorted(drop_ins))):
        section = ""
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in map(str.strip, lines):
            if line.startswith("["):
                section = line
            elif section == "[Login]" and "=" in line and line[0] not in "#;":
                key, _, value = line.partition("=")
                values[key.strip()] = value.strip()
    return values
