"""Where runs are kept: the named folder, else the data folder of the caller; and where they are looked for."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import run_factory
from builders.cli_fixtures import Cli, cli
from builders.processes import needs_root
from builders.tables import table

from testbed.errors import StorageError, UnknownName, UserError
from testbed.host.doctor import limits
from testbed.host.files import runs_folder
from testbed.lab import api

__all__ = ["cli"]  # a fixture

UID, GID = 4242, 4343


def runs_below(home: Path) -> Path:
    return home / ".local" / "share" / "testbed" / "runs"


class Caller:
    """Who calls, from which environment: what sudo, su or a login leave."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        self._patch, self.home = monkeypatch, home
        self.runs = runs_below(home)
        self._homes: dict[int, str] = {}
        for name in ("SUDO_UID", "SUDO_GID", "XDG_DATA_HOME", "HOME", runs_folder.VARIABLE):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", self._account)

    def _account(self, uid: int) -> SimpleNamespace:
        return SimpleNamespace(pw_dir=self._homes[uid], pw_name="anna", pw_gid=GID)

    def sudo(self, home: str | None = "") -> None:
        """Call by sudo; the account's ``home``: by default one of its own, None: there is no account."""
        self.user(0)
        self.environment(SUDO_UID=str(UID), SUDO_GID=str(GID), HOME="/root")
        if home is not None:
            self._homes[UID] = home or str(self.home)

    def user(self, uid: int, home: str | Path | None = None) -> None:
        for name in ("geteuid", "getuid"):
            self._patch.setattr(os, name, lambda: uid)
        if home is not None:
            self._homes[uid] = str(home)

    def environment(self, **variables: str) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Caller:
    (home := tmp_path / "home").mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(home, UID, GID)
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    return Caller(monkeypatch, home)


def make_run(root: Path, name: str, started_s: float | None = None) -> None:
    """Make a short run in a folder of runs."""
    run = run_factory.make_run(root / name, steps=5)
    if started_s is not None:
        os.utime(run / "run.json", (started_s, started_s))


def names_of_runs() -> list[str]:
    return [run.name for run in api.runs()]


# ---- which folder


@table("uid", {"by sudo": None, "of a user": 1000, "of root": 0})
def test_a_named_folder_is_taken_for_any_caller(caller: Caller, uid: int | None) -> None:
    caller.environment(TESTBED_RUNS="x/y", XDG_DATA_HOME="/data")
    if uid is None:
        caller.sudo(None)
    else:
        caller.user(uid)
    assert (runs_folder.runs_root(),) == runs_folder.searched() == (Path.cwd() / "x" / "y",)


@needs_root
def test_behind_sudo_it_is_the_callers_home_and_never_roots(caller: Caller, tmp_path: Path) -> None:
    caller.sudo()
    assert runs_folder.runs_root() == caller.runs
    (of_root := tmp_path / "root-data").mkdir()
    caller.environment(XDG_DATA_HOME=str(of_root))
    assert runs_folder.runs_root() == caller.runs, "this is root's, of `sudo -i` or root's profile"
    caller.environment(XDG_DATA_HOME=str(caller.home / "data"))
    assert runs_folder.runs_root() == caller.home / "data" / "testbed" / "runs", "and this the caller's, of `sudo -E`"


@table(
    "variables, folder",
    {
        "by default": ({}, "/var/lib/testbed/runs"),
        "sudo by root": ({"SUDO_UID": "0", "SUDO_GID": "0"}, "/var/lib/testbed/runs"),
        "in a named data folder": ({"SUDO_UID": "0", "SUDO_GID": "0", "XDG_DATA_HOME": "/data"}, "/data/testbed/runs"),
    },
)
def test_roots_own_is_where_programs_without_privileges_can_come(
    caller: Caller, variables: dict[str, str], folder: str
) -> None:
    caller.user(0, "/root")
    caller.environment(HOME="/root", **variables)
    assert runs_folder.runs_root() == Path(folder)


@pytest.mark.parametrize("home", ["", "relative", "/", "/no/such/home"])
def test_a_users_home_is_that_of_the_login_else_of_the_account(caller: Caller, home: str) -> None:
    caller.user(1000, caller.home)
    caller.environment(HOME=home, XDG_DATA_HOME="not/absolute")
    assert runs_folder.runs_root() == caller.runs
    caller.environment(HOME=str(Path.cwd()))
    assert runs_folder.runs_root() == runs_below(Path.cwd())


@pytest.mark.parametrize("account", [None, "/", "/nonexistent"])
@pytest.mark.parametrize("by_sudo", [False, True])
def test_who_has_no_home_is_told_what_to_set(caller: Caller, by_sudo: bool, account: str | None) -> None:
    if by_sudo:
        caller.sudo(account)
    else:
        caller.user(1234, account)
        caller.environment(HOME="/")
    with pytest.raises(UserError, match=r"^no folder for runs: .*has no home folder; set TESTBED_RUNS \(or --runs\)"):
        runs_folder.runs_root()
    with pytest.raises(UserError, match="TESTBED_RUNS"):
        runs_folder.ready()
    assert not any(Path.cwd().iterdir())
    (check,) = (check for check in limits.folders() if check.name == "runs folder")
    assert (check.state, check.needed) == ("missing", True)
    assert "no home folder" in check.detail and "TESTBED_RUNS" in check.fix


# ---- made for the caller alone


@needs_root
def test_every_new_level_belongs_to_the_caller(caller: Caller) -> None:
    caller.sudo()
    root = runs_folder.ready()
    assert root == caller.runs
    for level in (root, *list(root.parents)[: len(root.relative_to(caller.home).parts) - 1]):
        assert (level.stat().st_uid, level.stat().st_gid) == (UID, GID), level
    assert not any(Path.cwd().iterdir()), "nothing appears where one stands"


@needs_root
@pytest.mark.parametrize("level", [".local", ".local/share/testbed", ".local/share/testbed/runs"])
def test_a_link_that_a_program_of_the_callers_put_there_does_not_lead_root_astray(
    caller: Caller, tmp_path: Path, level: str
) -> None:
    (etc := tmp_path / "etc").mkdir()
    way = caller.home / level
    way.parent.mkdir(parents=True, exist_ok=True)
    way.symlink_to(etc)
    caller.sudo()
    with pytest.raises(StorageError, match=rf"runs cannot be stored: .*{etc}.* belongs to .*; set TESTBED_RUNS"):
        runs_folder.ready()
    assert not any(etc.iterdir())
    os.chown(etc, UID, GID)  # a disk of the caller's own
    assert runs_folder.ready().exists()
    assert any(etc.iterdir()) or level.endswith("runs")


@needs_root
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_programs_enter_roots_own_folder_whatever_the_umask(
    caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int
) -> None:
    monkeypatch.setattr(runs_folder, "OF_ROOT", tmp_path / "lib" / "testbed" / "runs")
    caller.user(0, "/root")
    before = os.umask(mask)
    try:
        runs_folder.ready()
        (named := tmp_path / "named").mkdir()
        runs_folder.ready(named / "runs")
    finally:
        os.umask(before)
    for level in ("lib", "lib/testbed", "lib/testbed/runs"):
        assert (tmp_path / level).stat().st_mode & 0o777 == 0o777 & ~mask | 0o011, level
    assert (named / "runs").stat().st_mode & 0o777 == 0o777 & ~mask, "a folder that is named is as its user has it"


@needs_root
@table("level, steps", {"all of them": ("comparisons", 5), "of two runs": ("comparisons/a--b", run_factory.STEPS)})
def test_a_comparison_is_not_led_astray_either(caller: Caller, tmp_path: Path, level: str, steps: int) -> None:
    (etc := tmp_path / "etc").mkdir()
    caller.sudo()
    root = runs_folder.ready()
    for name in ("a", "b"):
        run_factory.make_run(root / name, steps=steps)
    (root / level).parent.mkdir(exist_ok=True)
    os.chown((root / level).parent, UID, GID)
    (root / level).symlink_to(etc)
    with pytest.raises(StorageError, match=rf"{root}/comparisons/a--b: Not a directory"):
        api.side_by_side(Path("a"), Path("b"))
    assert not any(etc.iterdir())
    (root / level).unlink()
    page = api.side_by_side(Path("a"), Path("b"))[1]
    assert page.parent == root / "comparisons" / "a--b"
    assert page.stat().st_uid == page.parent.stat().st_uid == UID


@needs_root
def test_a_folder_that_cannot_be_made_is_a_sentence_with_what_to_set(caller: Caller) -> None:
    (caller.home / ".local").write_text("a file")
    caller.sudo()
    os.chown(caller.home / ".local", UID, GID)
    with pytest.raises(StorageError, match=r"runs cannot be stored: .*Not a directory; set TESTBED_RUNS \(or --runs\)"):
        runs_folder.ready()


# ---- found again


@needs_root
def test_runs_are_found_by_name_where_they_are_now_and_where_they_were(
    caller: Caller, cli: Cli, tmp_path: Path
) -> None:
    caller.sudo()
    home, here = caller.runs, Path.cwd() / "runs"
    for command, status in (("ls runs", 0), ("report", 2)):
        shown = cli(*command.split())
        assert shown.status == status and f"no runs in {home} yet" in shown.err
    make_run(home, "metro-2", 2e9)
    assert names_of_runs() == ["metro-2"]
    # A folder of an older version, where one stands.
    make_run(here, "metro-1", 1e9)
    make_run(here, "metro-3", 3e9)
    assert names_of_runs() == ["metro-3", "metro-2", "metro-1"], "the latest first"
    shown = cli("ls", "runs")
    for text in ("metro-1", "metro-2", "metro-3", str(home), str(here)):
        assert text in shown.out
    for name, path in (
        ("metro-1", here / "metro-1"),
        ("metro-2", home / "metro-2"),
        ("runs/metro-2", home / "metro-2"),
        ("runs/metro-3", Path("runs/metro-3")),
    ):
        assert f"report: {path}/index.html" in cli("report", name).out
    assert api.report()[1].parent.name == "metro-3"
    with pytest.raises(UnknownName, match="available: metro-1, metro-2, metro-3"):
        api.report(Path("nope"))
    with pytest.raises(UnknownName):
        api.report(tmp_path / "elsewhere" / "metro-2")
    # Who names a folder means that one only.
    caller.environment(TESTBED_RUNS=str(home))
    assert names_of_runs() == ["metro-2"]


def test_a_users_data_folder_does_not_hide_what_ran_behind_sudo(caller: Caller) -> None:
    caller.user(1234, caller.home)
    data, home = Path.cwd() / "data", caller.runs
    caller.environment(XDG_DATA_HOME=str(data))
    assert runs_folder.searched() == (data / "testbed" / "runs",)
    make_run(home, "metro-1")
    assert runs_folder.searched() == (data / "testbed" / "runs", home)
    assert runs_folder.latest().name == "metro-1"
    caller.environment(XDG_DATA_HOME=str(caller.home / ".local" / "share"))
    assert runs_folder.searched() == (home,)


def test_who_has_no_home_still_finds_the_runs_where_one_stands(caller: Caller) -> None:
    caller.user(1234)
    make_run(Path.cwd() / "runs", "metro-1")
    assert names_of_runs() == ["metro-1"]
    assert runs_folder.find(Path("metro-1")).path == Path.cwd() / "runs" / "metro-1"


@table(
    "name",
    {
        "a long name": "a" * 300,
        "in a folder": "runs/" + "a" * 300,
        "a path": "/" + "a" * 300,
        "deep": "/" + "a/" * 3000,
    },
)
def test_a_name_that_no_file_can_have_is_unknown(caller: Caller, cli: Cli, name: str) -> None:
    caller.user(1234, caller.home)
    shown = cli("report", name)
    assert shown.status in (2, 3) and "bug" not in shown.err, shown.err


def test_the_same_folder_is_not_looked_through_twice(caller: Caller) -> None:
    caller.user(1234)
    caller.environment(XDG_DATA_HOME=str(Path.cwd() / "data"))
    make_run(runs := Path.cwd() / "data" / "testbed" / "runs", "metro-1")
    Path("runs").symlink_to(runs)
    assert names_of_runs() == ["metro-1"]


def test_the_line_at_the_beginning_of_a_run_says_how_to_name_another_folder(caller: Caller) -> None:
    caller.user(0)
    assert runs_folder.note(Path("/a/r")) == ("run directory: /a/r (the default; --runs or TESTBED_RUNS names another)")
    assert runs_folder.note(Path("/a/r"), Path("/a")) == "run directory: /a/r"
    caller.environment(TESTBED_RUNS="/a")
    assert runs_folder.note(Path("/a/r")) == "run directory: /a/r"


@pytest.mark.parametrize("command", ["report", "report before", "down", "validate mpich --baseline"])
def test_a_name_longer_than_a_files_is_a_mistake(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("TESTBED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv(runs_folder.VARIABLE, str(tmp_path / "runs"))
    make_run(tmp_path / "runs", "before")
    shown = cli(*command.split(), "x" * 300)
    assert shown.status in (2, 3) and "bug" not in shown.err, shown.err


COMMANDS = """
import os, sys
import testbed.cli.app
from testbed.cli.entry import main
for command in sys.argv[1:]:
    if (pid := os.fork()) == 0:
        os.dup2(2, 1)
        sys.argv[1:] = command.split()
        main()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Runs commands, each in a process of its own, after one import of the testbed; prints their statuses."""


@needs_root
@pytest.mark.parametrize(
    "variable",
    [runs_folder.VARIABLE, *(pytest.param(name, marks=pytest.mark.thorough) for name in ("XDG_DATA_HOME", "HOME"))],
)
def test_a_folder_that_cannot_be_entered_is_said(tmp_path: Path, variable: str) -> None:
    barred = tmp_path / "barred"
    barred.mkdir(mode=0o700)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), variable: str(barred / "below")}
    for name in {runs_folder.VARIABLE, "XDG_DATA_HOME"} - {variable}:
        environment.pop(name, None)
    commands = ("ls runs", "report x", f"report {barred}/run", "doctor")
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *commands],
        env=environment, cwd="/", user=UID, group=UID, extra_groups=[], capture_output=True, text=True,
    )  # fmt: skip
    assert "bug" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert [int(status) in (0, 2, 3) for status in done.stdout.splitlines()] == [True] * 4, done.stderr
