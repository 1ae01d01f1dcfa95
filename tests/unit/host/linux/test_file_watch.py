"""Which process wrote which file; the oracle is the process itself."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from builders.processes import needs_root, open_files
from oracles import oracle

from testbed.errors import HostError
from testbed.host.linux import file_watch
from testbed.host.linux.file_watch import FileWatch

pytestmark = needs_root


@pytest.fixture
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for new folders every 50 ms, not every second."""
    monkeypatch.setattr(file_watch, "LOOK_S", 0.05)


def shell(script: str, folder: Path) -> int:
    """Run a script; return its pid."""
    with subprocess.Popen(["sh", "-c", script], cwd=folder) as child:
        child.wait(20)
    return child.pid


def test_each_written_file_is_told_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "read").write_text("x")
    (tmp_path / "link").symlink_to("/var/tmp")
    os.mkfifo(tmp_path / "pipe")
    told: list[tuple[Path, int]] = []
    watch = FileWatch(tmp_path, lambda path, pid: told.append((path, pid)))
    one = shell("echo x > top; cat read; echo x > gone; rm gone; echo x > link/none-$$; rm link/none-$$", tmp_path)
    other = shell("echo x > a/b/deep; echo y >> top", tmp_path)
    shell("cat < pipe & echo x > pipe; wait", tmp_path)
    watch.close()
    files = {(path, pid) for path, pid in told if path.name != "pipe"}
    assert files >= {(tmp_path / "top", one), (tmp_path / "top", other), (tmp_path / "a" / "b" / "deep", other)}
    assert {path.name for path, _ in files} <= {"top", "deep", "gone"}, "written ones only, and nothing behind a link"


def test_folders_that_appear_are_watched_too(look_often: None, tmp_path: Path) -> None:
    told: list[Path] = []
    watch = FileWatch(tmp_path, lambda path, pid: told.append(path))
    wanted = tmp_path / "out" / "run" / "checkpoint"

    def seen() -> bool:
        shell("mkdir -p out/run; echo x > out/run/checkpoint", tmp_path)
        return wanted in told

    oracle.until(seen, 20.0, "the new folder is watched")
    watch.close()


def test_many_files_take_few_descriptors(tmp_path: Path) -> None:
    written, most = threading.Event(), 0

    def wrote(path: Path, pid: int) -> None:
        nonlocal most
        written.wait(20)
        most = max(most, len(open_files()))

    before = len(open_files())
    watch = FileWatch(tmp_path, wrote)
    shell("for i in $(seq 2000); do : > $i; done", tmp_path)
    written.set()
    watch.close()
    assert before < most < before + 300


def test_a_process_that_writes_for_ever_does_not_keep_it_open(look_often: None, tmp_path: Path) -> None:
    told: list[Path] = []

    def wrote(path: Path, pid: int) -> None:
        told.append(path)
        for number in range(3):  # always one more to come
            (tmp_path / f"{number}").write_text("x")

    watch = FileWatch(tmp_path, wrote)
    (tmp_path / "begin").write_text("x")
    closing = threading.Thread(target=watch.close, daemon=True)
    closing.start()
    closing.join(20)
    assert told and not closing.is_alive()


def test_what_cannot_be_watched_is_said_and_nothing_stays_open(tmp_path: Path) -> None:
    before = open_files()
    with pytest.raises(HostError, match="cannot watch"):
        FileWatch(tmp_path / "none", lambda path, pid: None)
    watch = FileWatch(tmp_path, lambda path, pid: None)
    shell("for i in $(seq 100); do echo x > $i; done", tmp_path)
    watch.close()
    # Others may be closed meanwhile: those of objects of earlier tests that the garbage collector finds.
    assert open_files() <= before
