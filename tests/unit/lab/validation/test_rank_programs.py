"""How the processes of rank programs end, with their own children; where their output goes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import psutil
import pytest
from oracles import oracle

import testbed
from testbed.core.validation.library import CollectiveLibrary, Launcher
from testbed.errors import HostError
from testbed.host import lab_nodes, launcher_proxy
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper import client
from testbed.lab.validation import output_capture, rank_programs
from testbed.lab.validation.rank_programs import Starter, end, exit_code

Child = subprocess.Popen[bytes]


def with_helper(and_then: str) -> tuple[Child, int, int]:
    """Start a program with a child; return it, and the child's pid and start time."""
    argv = ["sh", "-c", f"sleep 1000 & echo $!; {and_then}"]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    pid = int(child.stdout.readline())
    return child, pid, process.started(pid)


def wait(child: Child) -> None:
    oracle.until(lambda: exit_code(child) is not None, 10.0, "the program has ended")


@pytest.mark.parametrize(("and_then", "ending", "code"), [("exit 3", wait, 3), ("exit 3", end, 3), ("wait", end, -9)])
def test_end_of_a_program_ends_what_it_started(and_then: str, ending: Callable[[Child], None], code: int) -> None:
    child, helper, began = with_helper(and_then)
    assert process.is_same(helper, began)
    if and_then == "exit 3":
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has waited for it
    ending(child)
    assert process.wait_gone(helper, began, 10.0)
    assert (exit_code(child), child.returncode) == (code, code)


def test_exit_code_of_a_program_that_runs_is_none() -> None:
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


Make = Callable[..., Starter]


@pytest.fixture
def make_starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """``make_starter(driver, launcher, argv)``: each node runs ``argv``, by default the library's: a flood."""

    def make(driver: str = "netns", launcher: Launcher = "direct", argv: Sequence[str] = ()) -> Starter:
        def enter(own: Sequence[str], *where: object, framed: bool = False) -> list[str]:
            return [*(argv or own)]

        def refuse(*words: object, **more: object) -> Any:
            raise HostError("cannot start mpiexec in its container")

        monkeypatch.setattr(lab_nodes, "driver", lambda lab: lab_nodes.DRIVERS[driver])
        monkeypatch.setattr(
            lab_nodes, "place", lambda *words, **more: SimpleNamespace(enter=enter, enter_watched=enter)
        )
        monkeypatch.setattr(lab_nodes, "netns", lambda lab, node: Path("/proc/self/ns/net"))
        monkeypatch.setattr(client, "keeper", lambda lab: SimpleNamespace(share_folder=lambda folder, management: None))
        monkeypatch.setattr(Starter, "_give", lambda starter, path: None)
        monkeypatch.setattr(launcher_proxy, "start", refuse)
        library = CollectiveLibrary("flood", "a flood", argv=(sys.executable, "-c", FLOOD), launcher=launcher)
        return Starter(LabFolder(tmp_path / "lab"), testbed.load("metro-40km"), library, tmp_path / "run")

    return make


def flooding_mpiexec(*words: object, log: IO[bytes], **more: object) -> Child:
    return subprocess.Popen([sys.executable, "-c", FLOOD], stdout=log, stderr=log, start_new_session=True)


@pytest.mark.parametrize(
    ("driver", "launcher", "name"),
    [("netns", "direct", "rank-1"), ("containerlab", "direct", "rank-1"), ("netns", "mpich", "mpiexec")],
)
def test_log_of_a_flood_is_bounded_and_the_program_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_starter: Make, driver: str, launcher: Launcher, name: str
) -> None:
    monkeypatch.setattr(output_capture, "MOST_KEPT", 100_000)
    monkeypatch.setattr(rank_programs, "start_mpiexec", flooding_mpiexec)
    starter = make_starter(driver, launcher)
    programs, mpiexec = starter.start()
    try:
        child = mpiexec if mpiexec is not None else programs[1].child
        assert child is not None
        assert child.wait(20) == 0
        last_line = starter.mpiexec_last_line if mpiexec is not None else programs[1].log.last_line
        assert last_line() == "the end"
    finally:
        for program in programs.values():
            program.end()
        starter.sweep()
    log = tmp_path / "run" / f"{name}.log"
    assert 100_000 < log.stat().st_size < 100_000 + output_capture.LAST_BYTES + 200
    assert log.read_text().endswith("\nthe end\n")
    assert "capture" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("replaced", ["outputs", "reach.json", "1.answers", "rank-1.log", "notes"])
def test_sweep_removes_links_that_a_program_made_and_nothing_that_they_lead_to(
    tmp_path: Path, make_starter: Make, replaced: str
) -> None:
    starter = make_starter()
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


def test_sweep_removes_a_file_in_the_way_of_outputs(make_starter: Make) -> None:
    """Otherwise the programs could not be restarted, and the machine would get the blame."""
    starter = make_starter()
    starter.folder.mkdir()
    starter.outputs.write_text("no folder")
    starter.sweep()
    assert not starter.outputs.exists()


def test_log_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "accounts").write_text("all of them")
    (tmp_path / "rank-1.log").symlink_to(tmp_path / "accounts")
    with pytest.raises(OSError, match="symbolic links"):
        output_capture.CappedLog(tmp_path / "rank-1.log")
    assert (tmp_path / "accounts").read_text() == "all of them"


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("launcher", ["direct", "mpich"])
@pytest.mark.parametrize("driver", ["netns", "containerlab"])
def test_starts_that_fail_leave_no_descriptors(make_starter: Make, driver: str, launcher: Launcher) -> None:
    starter = make_starter(driver, launcher, ["/nowhere/sleep", "1000"])
    before = descriptors()
    for _ in range(5):
        with pytest.raises(HostError, match="cannot start"):
            starter.start()
        starter.sweep()
    assert descriptors() <= before


@pytest.mark.parametrize(("driver", "function"), [("netns", "dup"), ("containerlab", "open")])
def test_program_without_pipes_is_ended_and_leaves_no_descriptors(
    make_starter: Make, monkeypatch: pytest.MonkeyPatch, driver: str, function: str
) -> None:
    starter = make_starter(driver, argv=["sleep", "1000"])
    before, whole, times = descriptors(), getattr(os, function), 0
    others = {*psutil.Process().children()}

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
    assert {*psutil.Process().children()} <= others
