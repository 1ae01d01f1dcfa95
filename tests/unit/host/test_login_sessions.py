"""Doctor's check of logind, by configuration files below a root of the test's own."""

from __future__ import annotations

from pathlib import Path

from builders.tables import table

from testbed.host.doctor import sessions

YES, NO = "[Login]\nKillUserProcesses=yes\n", "[Login]\nKillUserProcesses=no\n"
MAIN, LATER = "etc/systemd/logind.conf", "usr/lib/systemd/logind.conf.d/90-x.conf"


@table(
    "files, user, state",
    {
        "by default": ({}, "lab", "ok"),
        "it kills": ({MAIN: YES}, "lab", "limited"),
        "it kills, but not root's": ({MAIN: YES}, "root", "ok"),
        "a comment": ({MAIN: "[Login]\n#KillUserProcesses=yes\n"}, "lab", "ok"),
        "another section": ({MAIN: "[Other]\nKillUserProcesses=yes\n"}, "lab", "ok"),
        "/etc before /usr": ({"usr/lib/systemd/logind.conf": YES, MAIN: NO}, "lab", "ok"),
        "a later file": ({MAIN: NO, LATER: YES}, "lab", "limited"),
        "a file of the same name in /etc": ({LATER: YES, "etc/systemd/logind.conf.d/90-x.conf": NO}, "lab", "ok"),
        "an earlier name in /etc": ({LATER: NO, "etc/systemd/logind.conf.d/10-y.conf": YES}, "lab", "ok"),
        "an excluded user": ({MAIN: YES + "KillExcludeUsers=root lab\n"}, "lab", "ok"),
        "only another user": ({MAIN: YES + "KillOnlyUsers=other\n"}, "lab", "ok"),
    },
)
def test_what_logind_would_kill(tmp_path: Path, files: dict[str, str], user: str, state: str) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    check = sessions.lasting(tmp_path, user)
    assert check.state == state
    assert bool(check.fix) == (state == "limited")
