"""Files of programs, read as they grow: nothing is followed, nothing blocks, nothing is read twice."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from testbed.host.progress import file_tail
from testbed.host.progress.file_tail import FileTail, monotonic

Read = tuple[bytes, bool, bool] | None


def read(tail: FileTail) -> Read:
    """Return what is new: the data, whether the file is another one, and whether there is more."""
    grown = tail.read()
    return (grown.data, grown.anew, grown.has_unread) if grown else None


def data(tail: FileTail) -> bytes:
    grown = tail.read()
    return grown.data if grown else b""


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(content)


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    tail, path = FileTail(tmp_path, "a/x"), tmp_path / "a" / "x"
    assert tail.read() is None
    path.parent.mkdir()
    append(path, b"one")
    assert read(tail) == (b"one", True, False)
    assert tail.read() is None
    append(path, b"two")
    assert read(tail) == (b"two", False, False)


def test_what_was_there_before_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"step,loss\n1,2\n")
    tail = FileTail(tmp_path, "x", skip=True)
    assert tail.head == b"step,loss\n1,2\n"
    assert tail.read() is None
    append(path, b"2,1\n")
    assert data(tail) == b"2,1\n"


@pytest.mark.parametrize("skip", [True, False])
def test_a_file_that_is_shorter_or_another_is_read_from_its_begin(tmp_path: Path, skip: bool) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old old old")
    tail = FileTail(tmp_path, "x", skip=skip)
    assert data(tail) == (b"" if skip else b"old old old")
    path.write_bytes(b"new")
    assert read(tail) == (b"new", True, False)
    other = tmp_path / "y"
    other.write_bytes(b"another one, longer")
    other.replace(path)
    assert data(tail) == b"another one, longer"


def test_a_large_file_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tail, "MOST_BYTES", 4)
    (tmp_path / "x").write_bytes(b"0123456789")
    tail = FileTail(tmp_path, "x")
    parts = [read(tail) for _ in range(4)]
    assert parts == [(b"0123", True, True), (b"4567", False, True), (b"89", False, False), None]


def test_links_pipes_and_folders_are_no_files(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "x").write_bytes(b"secret")
    (inside / "link").symlink_to(outside / "x")
    (inside / "folder").symlink_to(outside)
    os.mkfifo(inside / "pipe")
    (inside / "x").mkdir()
    names = ("link", "folder/x", "pipe", "x", "../outside/x")
    contents: list[bytes] = []
    thread = threading.Thread(
        target=lambda: contents.extend(data(FileTail(inside, name)) for name in names), daemon=True
    )
    thread.start()
    thread.join(10.0)
    assert contents == [b""] * len(names), "and opening a pipe would wait for a writer"


def test_the_time_of_a_file_is_when_it_was_written(tmp_path: Path) -> None:
    before_t = time.monotonic()
    (tmp_path / "x").write_bytes(b"1")
    after_t = time.monotonic()
    time.sleep(0.05)  # so that the time of reading is another
    grown = FileTail(tmp_path, "x").read()
    assert before_t - 0.02 <= grown.t <= after_t + 0.02
    os.utime(tmp_path / "x", (2e9, 4e9))
    future = FileTail(tmp_path, "x").read()
    assert future.t <= time.monotonic(), "nothing was written later than now"


def test_times_are_brought_onto_the_monotonic_clock() -> None:
    offsets = [monotonic(time.time() - 5.0) - time.monotonic() for _ in range(20)]
    assert min(abs(offset + 5.0) for offset in offsets) < 0.001
