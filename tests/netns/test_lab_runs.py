"""Runs in a lab: by default in the caller's own data folder, closed or not; and a lab's logs are of its own runs."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders.commands import Command
from builders.conditions import LABS, PYTHON
from builders.json_files import read_json
from builders.labs import Lab, bring_up
from oracles import oracle

import testbed
from testbed.core.workload.workload import ProgramWorkload
from testbed.host import lab_folder
from testbed.host.files import runs_folder
from testbed.host.linux import program_user
from testbed.lab import api

pytestmark = LABS

CALLER = (4242, 4343)
WRITE = ["sh", "-c", 'echo "written by $(id -u)" | tee "$TESTBED_FOLDER/out"']


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the working directory, and an environment that names no folder for runs."""
    (folder := tmp_path / "here").mkdir(mode=0o755)
    monkeypatch.chdir(folder)
    for name in (runs_folder.VARIABLE, "XDG_DATA_HOME", "SUDO_UID", "SUDO_GID", program_user.VARIABLE):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def home(tmp_path: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the home folder, open to its owner alone, of a user who has called sudo."""
    (folder := tmp_path / "home").mkdir(mode=0o700)
    os.chown(folder, *CALLER)
    uid, gid = CALLER
    account = SimpleNamespace(pw_dir=str(folder), pw_name="anna", pw_gid=gid, pw_uid=uid)
    known = pwd.getpwuid
    monkeypatch.setattr(pwd, "getpwuid", lambda asked: account if asked == uid else known(asked))
    monkeypatch.setattr(os, "getgrouplist", lambda name, group: [group])
    monkeypatch.setenv("SUDO_UID", str(uid))
    monkeypatch.setenv("SUDO_GID", str(gid))
    return folder


def owners(folder: Path) -> set[tuple[int, int]]:
    return {(it.stat().st_uid, it.stat().st_gid) for it in (folder, *folder.rglob("*"))}


def test_behind_sudo_programs_write_below_the_callers_closed_home(lab: Lab, here: Path, home: Path) -> None:
    told: list[str] = []
    assert lab.launch(WRITE, tell=told.append).exit_status() == 0
    (run,) = (home / ".local" / "share" / "testbed" / "runs").iterdir()
    assert told == [f"run directory: {run} (the default; --runs or TESTBED_RUNS names another)"]
    for rank in range(4):
        assert (run / "ranks" / f"rank-{rank}" / "out").read_text() == f"written by {CALLER[0]}\n"
    assert owners(home) == {CALLER}
    assert list(here.iterdir()) == [], "nothing appears where one stands"
    assert [it.path for it in api.runs()] == [run]
    lab.report()
    assert api.report(Path(run.name))[1] == run / "index.html"
    assert owners(home) == {CALLER}


def test_root_itself_has_a_folder_that_programs_can_reach(
    lab: Lab, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here its path is another one, which the test may fill; the real one's folders are as open."""
    monkeypatch.setattr(runs_folder, "OF_ROOT", tmp_path / "var" / "runs")
    assert lab.launch(WRITE).exit_status() == 0
    (run,) = (tmp_path / "var" / "runs").iterdir()
    assert (run / "ranks" / "rank-0" / "out").read_text() == f"written by {program_user.OWN_UID}\n"
    assert list(here.iterdir()) == []


@PYTHON
@pytest.mark.alone
def test_a_validation_is_kept_there_too(lab: Lab, here: Path, home: Path) -> None:
    notes: list[str] = []
    ignored = dict.fromkeys(("phase", "ended", "doing", "event"), lambda *words: None)
    found = api.validate(
        ["ring"], lab=lab.name, only=("correctness",), progress=SimpleNamespace(**ignored, note=notes.append)
    )
    assert found.validation.libraries[0].verdict == "holds", found.validation.libraries[0].why
    assert found.directory.parent == home / ".local" / "share" / "testbed" / "runs"
    assert f"run directory: {found.directory} (the default; --runs or TESTBED_RUNS names another)" in notes
    assert owners(home) == {CALLER}
    assert list(here.iterdir()) == []


# ---- logs


@pytest.fixture
def named(state_folder: Path) -> Iterator[str]:
    name = oracle.unused_name()
    yield name
    testbed.down(name)
    assert oracle.left_behind(name, state_folder) == []


def said(name: str, what: str) -> list[str]:
    return list(testbed.attach(name).logs(what))


def test_a_fresh_lab_does_not_show_the_run_of_an_earlier_lab_of_its_name(
    named: str, tmp_path: Path, command: Command
) -> None:
    with bring_up(named) as lab:
        assert lab.launch(["echo", "the first lab's"]).exit_status() == 0
        assert said(named, "east-0") == said(named, "0") == ["the first lab's"]
    with bring_up(named) as lab:
        assert said(named, "east-0") == []
        done = command(f"logs -l {named} east-0")
        assert (done.returncode, done.stdout) == (0, "")
        assert f"no output of east-0 yet: no program has written any since lab {named} came up" in done.stderr
        followed = testbed.attach(named).logs("east-0", follow=True)
        # Another process's run, in a folder that only it was given.
        own = ("--runs", str(tmp_path / "own"), "--allow-uncertified")
        done = command(f"launch -l {named}", *own, "--", "echo", "the second lab's")
        assert done.returncode == 0, done.stderr
        (run,) = (tmp_path / "own").iterdir()
        assert f"run directory: {run}\n" in done.stderr
        assert f"output and measurements: {run}\n" in done.stderr
        assert re.search(rf"^report: .*testbed report {re.escape(str(run))}$", done.stderr, re.MULTILINE)
        assert next(followed) == "the second lab's"
        assert said(named, "east-0") == ["the second lab's"]
        # A lab of an older version, which recorded neither: by the run's name, and not from before the lab.
        lab_folder.folder(named).latest_run.unlink()
        assert said(named, "east-0") == []
        assert lab.launch(["echo", "found by its name"]).exit_status() == 0
        lab_folder.folder(named).latest_run.unlink()
        assert said(named, "east-0") == ["found by its name"]


def test_a_run_that_ctrl_c_ended_in_a_program_is_not_recorded_as_finished(named: str) -> None:
    class Pressed(KeyboardInterrupt):
        pass

    run = None
    with pytest.raises(Pressed), bring_up(named) as lab:
        run = lab.open_run()
        lab.allow_uncertified = True
        lab.start(ProgramWorkload(("sleep", "600")), own_run=False)
        raise Pressed
    assert run is not None
    found = read_json(run.path / "run.json")
    assert (found["status"], found["reason"]) == ("interrupted", "interrupted by the user")
