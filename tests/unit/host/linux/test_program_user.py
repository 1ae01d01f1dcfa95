"""Who programs run as, what they can reach, and how they begin."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import pytest
from builders.processes import call_by_sudo, has_ended, needs_root, python
from oracles import oracle

from testbed.errors import UserError
from testbed.host.linux import program_user
from testbed.host.linux.program_user import OWN_UID, ProgramUser

pytestmark = needs_root
OWN = ProgramUser(OWN_UID, OWN_UID, (), "testbed", None, "the testbed's own")
SETPRIV = "setpriv"


@pytest.fixture(autouse=True)
def without_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUDO_UID", "SUDO_GID", "TESTBED_UID"):
        monkeypatch.delenv(name, raising=False)


def test_sudo_comes_before_the_folder_and_the_folder_before_the_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert program_user.choose(tmp_path).uid == OWN_UID
    os.chown(tmp_path, 4242, 4343)
    user = program_user.choose(tmp_path)
    assert (user.uid, user.gid, user.groups, user.name, user.home) == (4242, 4343, (), "testbed", None)
    call_by_sudo(monkeypatch, 5252, 5353)
    user = program_user.choose(tmp_path)
    assert (user.uid, user.gid, user.why) == (5252, 5353, "SUDO_UID")
    assert ProgramUser.from_dict(user.to_dict()) == user


@pytest.mark.parametrize("uid", ["0", "", "-1", "x", str(2**32 - 1), str(2**40)])
def test_sudo_by_root_or_by_nobody_is_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: str) -> None:
    call_by_sudo(monkeypatch, uid, 0)
    assert program_user.choose(tmp_path).uid == OWN_UID


def test_the_own_uid_can_be_chosen_but_never_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTBED_UID", "61000")
    assert program_user.choose(tmp_path).uid == 61_000
    for wrong in ("0", "root", "-5", str(2**32)):
        monkeypatch.setenv("TESTBED_UID", wrong)
        with pytest.raises(UserError, match="TESTBED_UID: expected a uid greater than 0"):
            program_user.choose(tmp_path)


def test_groups_whose_members_become_root_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = pwd.getpwnam("daemon")
    groups = [0, 42, 6, account.pw_gid, 12_345]  # root, shadow and disk on Debian, and one without a name
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: groups)
    os.chown(tmp_path, account.pw_uid, account.pw_gid)
    assert set(program_user.choose(tmp_path).groups) == {account.pw_gid, 12_345}


def test_what_bars_the_way_is_named(tmp_path: Path) -> None:
    (open_to_all := tmp_path / "a").mkdir()
    (barred := open_to_all / "b").mkdir(mode=0o700)
    (inner := barred / "c").mkdir()
    (file := inner / "f").write_text("x")
    assert program_user.first_refused(OWN, [("x", open_to_all), ("r", file)]) == barred
    barred.chmod(0o711)
    assert program_user.first_refused(OWN, [("r", file), ("x", inner)]) is None
    assert program_user.first_refused(OWN, [("w", inner)]) == inner
    file.chmod(0o600)
    assert program_user.first_refused(OWN, [("r", file)]) == file


def test_what_a_user_could_rename(tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    (state := home / "state").mkdir()
    assert program_user.renamable(OWN, state) is None
    os.chown(home, OWN_UID, OWN_UID)
    assert program_user.renamable(OWN, state / "labs") == state
    os.chown(home, 0, 0)
    home.chmod(0o1777)  # as /tmp: entries belong to their owners
    assert program_user.renamable(OWN, state) is None
    os.chown(state, OWN_UID, OWN_UID)
    assert program_user.renamable(OWN, state) == state


def begun(argv: list[str], folder: Path, parent: int | None) -> list[str]:
    return program_user.start(OWN, SETPRIV, argv, folder, folder, (), parent)


def test_a_program_begins_in_its_folder_with_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/root/.cache")
    script = 'pwd; echo "$HOME $USER $TMPDIR ${XDG_CACHE_HOME-unset}"; id -u; echo "$TESTBED_SCRATCH"'
    output = oracle.run(*begun(["sh", "-c", script], tmp_path, os.getpid()))
    account = f"{tmp_path} testbed {tmp_path}/tmp unset"
    assert output.splitlines() == [str(tmp_path), account, str(OWN_UID), str(tmp_path)]


def test_a_program_whose_parent_ended_before_does_not_begin(tmp_path: Path) -> None:
    """PDEATHSIG tells only of a parent that ends later."""
    assert subprocess.run(begun(["echo", "begun"], tmp_path, os.getpid() + 1), capture_output=True).returncode == 1


def test_a_program_ends_with_its_parent(tmp_path: Path) -> None:
    """Also where the change of uid has cleared what was set before it."""
    code = (
        "import os, subprocess, sys, time; from pathlib import Path; from testbed.host.linux import program_user as p\n"
        "user = p.ProgramUser(60700, 60700, (), 'testbed', None, '')\n"
        "line = p.start(user, 'setpriv', ['sleep', '1000'], Path('/'), Path('/'), (), os.getpid())\n"
        "print(subprocess.Popen(line).pid, flush=True); time.sleep(1000)"
    )
    with python(code) as parent:
        pid = int(parent.read_line())
        oracle.until(lambda: "sleep" in Path(f"/proc/{pid}/comm").read_text(), 20.0, "the program runs")
        parent.kill()
        oracle.until(lambda: has_ended(pid), 20.0, "the program has ended too")
