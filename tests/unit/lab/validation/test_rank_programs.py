"""How the processes of rank programs end, with their own children; where their output goes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from oracles import oracle

import testbed
from testbed.core.validation.library import Launcher, Library
from testbed.errors import HostError
from testbed.host import lab_nodes, launcher_proxy
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper import client
from testbed.lab.validation import output_capture
from testbed.lab.validation.rank_programs import Starter, end, exit_code

Child = subprocess.Popen[bytes]


def with_helper(and_then: str) -> tuple[Child, int, int]:
    """A program with a child: the program, the child's pid and start time."""
    argv = ["sh", "-c", f"sleep 1000 & echo $!; {and_then}"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    return child, pid, process.started(pid)


def known(child: Child) -> None:
    oracle.until(lambda: exit_code(child) is not None, 10.0, "the program has ended")


@pytest.mark.parametrize(("and_then", "ending", "code"), [("exit 3", known, 3), ("exit 3", end, 3), ("wait", end, -9)])
def test_what_a_program_started_ends_with_it(and_then: str, ending: Callable[[Child], None], code: int) -> None:
    child, helper, began = with_helper(and_then)
    assert process.is_same(helper, began)
    if and_then == "exit 3":
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has been told
    ending(child)
    assert process.wait_gone(helper, began, 10.0)
    assert (exit_code(child), child.returncode) == (code, code)


def test_one_that_runs_has_no_exit_code() -> None:
    child, helper, began = with_helper("wait")
    try:
        assert exit_code(child) is None
        assert process.is_same(helper, began)
    finally:
        end(child)


FLOOD = """
import os
for _ in range(1000):
    os.write(2, b"x" * 999 + b"\\n")
os.write(2, b"the end\\n")
"""


class Here:
    """In place of a node: a program runs here."""

    user = ""

    def enter(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None, *, tied: bool = True
    ) -> list[str]:
        return list(argv)


def flooding_mpiexec(starter: Starter, hosts: object, ways: object, own: object, log: IO[bytes]) -> Child:
    return subprocess.Popen([sys.executable, "-c", FLOOD], stdout=log, stderr=log, start_new_session=True)


@pytest.mark.parametrize(
    ("driver", "launcher", "name"),
    [("netns", "direct", "rank-1"), ("containerlab", "direct", "rank-1"), ("netns", "mpich", "mpiexec")],
)
def test_however_much_a_program_says_its_log_is_bounded_and_it_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, launcher: Launcher, name: str
) -> None:
    def place(*words: object, **more: object) -> Any:
        return Here()

    monkeypatch.setattr(output_capture, "MOST_KEPT", 100_000)
    monkeypatch.setattr(lab_nodes, "driver", lambda lab: driver)
    monkeypatch.setattr(lab_nodes, "place", place)
    monkeypatch.setattr(client, "ask", lambda lab, request: None)
    monkeypatch.setattr(Starter, "_give", lambda starter, path: None)
    monkeypatch.setattr(Starter, "_mpiexec", flooding_mpiexec)
    library = Library("flood", "a flood", argv=(sys.executable, "-c", FLOOD), launcher=launcher)
    starter = Starter(LabFolder(tmp_path / "lab"), testbed.load("metro-40km"), library, tmp_path / "run")
    programs, mpiexec = starter.start()
    try:
        child = mpiexec if mpiexec is not None else programs[1].child
        assert child is not None
        assert child.wait(20) == 0
        said = starter.mpiexec_last_line() if mpiexec is not None else programs[1].log.last_line()
        assert said == "the end"
    finally:
        for it in programs.values():
            it.end()
        starter.sweep()
    log = tmp_path / "run" / f"{name}.log"
    assert 100_000 < log.stat().st_size < 100_000 + output_capture.LAST_BYTES + 200
    assert log.read_text().endswith("\nthe end\n")
    assert "capture" not in {it.name for it in threading.enumerate()}


def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, launcher: Launcher, program: str) -> Starter:
    """Return a starter whose nodes run ``program`` whatever the command."""

    class Elsewhere:
        def enter(self, argv: object, folder: Path, environment: object = None, *, tied: bool = True) -> list[str]:
            return [program, "1000"]

    def refused(*words: object, **more: object) -> Any:
        raise HostError("cannot start mpiexec in its container")

    monkeypatch.setattr(lab_nodes, "driver", lambda lab: driver)
    monkeypatch.setattr(lab_nodes, "place", lambda *words, **more: Elsewhere())
    monkeypatch.setattr(lab_nodes, "netns", lambda lab, node: Path("/proc/self/ns/net"))
    monkeypatch.setattr(client, "ask", lambda lab, request: None)
    monkeypatch.setattr(Starter, "_give", lambda starter, path: None)
    monkeypatch.setattr(launcher_proxy, "start", refused)
    library = Library("none", "starts nowhere", argv=(sys.executable, "-c", ""), launcher=launcher)
    return Starter(LabFolder(tmp_path / "lab"), testbed.load("metro-40km"), library, tmp_path / "run")


@pytest.mark.parametrize("replaced", ["outputs", "reach.json", "1.answers", "rank-1.log", "notes"])
def test_what_a_program_has_made_a_link_of_is_removed_and_what_it_leads_to_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: str
) -> None:
    starter = failing(tmp_path, monkeypatch, "netns", "direct", "sleep")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "accounts").write_text("all of them")
    starter.outputs.mkdir(parents=True)
    (starter.outputs / "7-0.bin").write_bytes(b"left")
    (starter.outputs / "link").symlink_to(precious / "accounts")
    (starter.folder / "rank-2.log").write_text("kept")
    if replaced == "outputs":
        starter.outputs.rename(starter.folder / "elsewhere")
    (starter.folder / replaced).symlink_to(precious if replaced == "outputs" else precious / "accounts")
    starter.sweep()
    assert (precious / "accounts").read_text() == "all of them"
    assert not (starter.folder / replaced).is_symlink()
    assert (starter.folder / "rank-2.log").read_text() == "kept"
    assert not starter.outputs.exists() if replaced == "outputs" else list(starter.outputs.iterdir()) == []


def test_a_file_in_the_way_of_outputs_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the programs could not be restarted, and the machine would get the blame."""
    starter = failing(tmp_path, monkeypatch, "netns", "direct", "sleep")
    starter.folder.mkdir()
    starter.outputs.write_text("no folder")
    starter.sweep()
    assert not starter.outputs.exists()


def test_a_log_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "accounts").write_text("all of them")
    (tmp_path / "rank-1.log").symlink_to(tmp_path / "accounts")
    with pytest.raises(OSError, match="symbolic links"):
        output_capture.CappedLog(tmp_path / "rank-1.log")
    assert (tmp_path / "accounts").read_text() == "all of them"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("launcher", ["direct", "mpich"])
@pytest.mark.parametrize("driver", ["netns", "containerlab"])
def test_starts_that_fail_leave_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, launcher: Launcher
) -> None:
    starter = failing(tmp_path, monkeypatch, driver, launcher, "/nowhere/sleep")
    before = descriptors()
    for _ in range(5):
        with pytest.raises(HostError, match="cannot start"):
            starter.start()
        starter.sweep()
    assert descriptors() <= before


@pytest.mark.parametrize(("driver", "function"), [("netns", "dup"), ("containerlab", "open")])
def test_one_that_cannot_be_spoken_to_is_ended_and_leaves_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, function: str
) -> None:
    starter = failing(tmp_path, monkeypatch, driver, "direct", "sleep")
    before, whole, times = descriptors(), getattr(os, function), 0
    others = {it.pid for it in psutil.Process().children()}

    def every_second_fails(*words: Any, **more: Any) -> Any:
        nonlocal times
        times += isinstance(words[0], int) or str(words[0]).endswith((".operations", ".answers"))
        if times == 2:
            times = 0
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return whole(*words, **more)

    monkeypatch.setattr(os, function, every_second_fails)
    with pytest.raises(HostError, match="Too many open files"):
        starter.start()
    monkeypatch.setattr(os, function, whole)
    starter.sweep()
    assert descriptors() <= before
    assert {it.pid for it in psutil.Process().children()} <= others
