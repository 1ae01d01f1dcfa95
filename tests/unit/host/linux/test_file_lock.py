"""The lock between processes, against filelock: an independent lock of the same kernel."""

from __future__ import annotations

from pathlib import Path

import filelock
import pytest
from builders.processes import python

from testbed.host.linux.file_lock import FileLock

HOLD = "import filelock, sys; held = filelock.FileLock(sys.argv[1]); held.acquire(); print('held', flush=True); input()"


def test_it_excludes_and_is_excluded(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path), pytest.raises(filelock.Timeout):
        filelock.FileLock(path).acquire(timeout=0)
    with filelock.FileLock(path), pytest.raises(TimeoutError, match="lock is locked by another process"):
        FileLock(path, timeout_s=0.05)
    FileLock(path, timeout_s=0.0).release()


def test_a_killed_holder_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with python(HOLD, path) as holder:
        assert holder.read_line() == "held"
        with pytest.raises(TimeoutError):
            FileLock(path, timeout_s=0.0)
    FileLock(path, timeout_s=5.0).release()


def test_a_removed_folder_does_not_come_back(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FileLock(tmp_path / "gone" / "lock", timeout_s=0.0)
    assert not (tmp_path / "gone").exists()


def test_the_next_holder_locks_the_file_that_has_the_name(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FileLock(path)
    path.unlink()
    with FileLock(path, timeout_s=0.0), pytest.raises(filelock.Timeout):
        filelock.FileLock(path).acquire(timeout=0)
    first.release()
