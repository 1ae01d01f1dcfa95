"""Doctor's check of logind, by configuration files below a root of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.host.doctor import sessions

YES, NO = "[Login]\nKillUserProcesses=yes\n", "[Login]\nKillUserProcesses=no\n"
MAIN, LATER = "etc/systemd/logind.conf", "usr/lib/systemd/logind.conf.d/90-x.conf"


@pytest.mark.parametrize(
    ("files", "user", "state"),
    [
        ({}, "lab", "ok"),
        ({MAIN: YES}, "lab", "limited"),
        ({MAIN: YES}, "root", "ok"),
        ({MAIN: "[Login]\n#KillUserProcesses=yes\n"}, "lab", "ok"),
        ({MAIN: "[Other]\nKillUserProcesses=yes\n"}, "lab", "ok"),
        ({"usr/lib/systemd/logind.conf": YES, MAIN: NO}, "lab", "ok"),
        ({MAIN: NO, LATER: YES}, "lab", "limited"),
        ({LATER: YES, "etc/systemd/logind.conf.d/90-x.conf": NO}, "lab", "ok"),
        ({LATER: NO, "etc/systemd/logind.conf.d/10-y.conf": YES}, "lab", "ok"),
        ({MAIN: YES + "KillExcludeUsers=root lab\n"}, "lab", "ok"),
        ({MAIN: YES + "KillOnlyUsers=other\n"}, "lab", "ok"),
    ],
)
def test_what_logind_would_kill(tmp_path: Path, files: dict[str, str], user: str, state: str) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = sessions.lasting(tmp_path, user)
    assert found.state == state
    assert bool(found.fix) == (state == "limited")
