"""The folder of a command stays as long as any of its users, seen by another process, and goes with the last one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders.processes import Child, python

from testbed.core.remote.leash_frames import COMMAND_FOLDER
from testbed.host.remote.command_folder import CommandFolder

USER = """
import sys
from testbed.host.remote.command_folder import CommandFolder
used = CommandFolder.of_this_process()
print("used" if used else "none", flush=True)
sys.stdin.read()
used.leave()
"""


def user(folder: Path) -> Child:
    child = python(USER, env={**os.environ, COMMAND_FOLDER: str(folder)})
    assert child.read_line() == "used"
    return child


def test_the_last_user_removes_it(tmp_path: Path) -> None:
    leash = CommandFolder.make(tmp_path)
    (leash.path / "program.py").write_text("")
    job = user(leash.path)
    leash.leave()
    CommandFolder.make(tmp_path).leave()
    assert [*tmp_path.iterdir()] == [leash.path], "the job keeps its folder; no other leash removes it"
    job.communicate(timeout=10)
    assert job.returncode == 0
    assert not [*tmp_path.iterdir()]


def test_one_of_killed_users_goes_with_the_next_leash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = CommandFolder.make(tmp_path)
    job = user(left.path)
    left.leave()
    job.kill()
    job.communicate(timeout=10)
    other = tmp_path / "testbed-on-file"
    other.write_text("no folder")
    now = CommandFolder.make(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([now.path, other])
    now.leave()
    monkeypatch.setenv(COMMAND_FOLDER, str(now.path))
    assert CommandFolder.of_this_process() is None, "it was removed"
