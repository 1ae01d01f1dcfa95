"""Where captured packets are written: files that are none are refused, and nothing stays open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from builders.processes import open_files

from testbed.errors import StorageError, UserError
from testbed.host.files.capture_file import CaptureFile


@pytest.mark.parametrize("name", ["", ".", "..", "/", "folder", "folder/", "folder/.."])
def test_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match="expected a file to write"):
        CaptureFile(Path(name))


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_what_is_no_file_is_refused_and_closed(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "x", tmp_path / "victim"
    victim.write_text("kept")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    before = len(open_files())
    with pytest.raises(StorageError):
        CaptureFile(Path("/dev/full") if kind == "device" else path)
    assert len(open_files()) <= before
    assert victim.read_text() == "kept"
