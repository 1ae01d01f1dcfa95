"""Folders of TensorBoard's event files."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import pytest

from testbed.core.workload.progress_events import masked_crc
from testbed.core.workload.progress_source import EventFiles, Sources
from testbed.host.progress.event_folder import EventFolder

BOTH = EventFiles("runs", Sources(train_loss="loss", tokens_seen="tok"))


def event(step: int, tag: str, value: float, wall_s: float) -> bytes:
    """Encode an event by hand (tensorflow/core/util/event.proto)."""
    inner = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(inner)]) + inner
    content = b"\x09" + struct.pack("<d", wall_s) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    length = struct.pack("<Q", len(content))
    return b"".join((length, struct.pack("<I", masked_crc(length)), content, struct.pack("<I", masked_crc(content))))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (runs := tmp_path / "runs").mkdir()
    return runs


def follow(runs: Path, files: EventFiles | None = None) -> EventFolder:
    return EventFolder(runs.parent, "runs", files or EventFiles("runs"), time.monotonic() - 1.0)


def test_scalars_of_one_step_are_one_reading(runs: Path) -> None:
    file = runs / "today" / "events.out.tfevents.5.host"
    file.parent.mkdir()
    now_s, now_t = time.time(), time.monotonic()
    file.write_bytes(
        event(1, "loss", 3.0, now_s)
        + event(1, "tok", 64.0, now_s + 0.001)
        + event(1, "other", 9.0, now_s)
        + event(2, "loss", 2.0, now_s - 3600)
        + event(2, "loss", 2.0, now_s + 0.002)
        + event(3, "other", 9.0, now_s)
    )
    folder = follow(runs, BOTH)
    readings = list(folder.read(last=True))
    assert [values for _, values in readings] == [
        {"step": 1.0, "train_loss": 3.0, "tokens_seen": 64.0},
        {"step": 2.0, "train_loss": 2.0},
    ], "neither a tag that nobody asked for nor an event of an hour ago"
    assert abs(readings[0][0] - now_t) < 0.01
    assert list(folder.read(last=True)) == []


def test_without_tags_every_scalar_counts(runs: Path) -> None:
    (runs / "a.tfevents").write_bytes(event(4, "x", 1.0, time.time()))
    assert [values for _, values in follow(runs).read(last=True)] == [{"step": 4.0}]


def test_files_of_runs_before_and_links_are_left_alone(runs: Path, tmp_path: Path) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    old, linked = runs / "a.tfevents", elsewhere / "b.tfevents"
    for path in (old, linked):
        path.write_bytes(event(4, "x", 1.0, time.time()))
    os.utime(old, (1e9, 1e9))
    (runs / "b.tfevents").symlink_to(linked)
    (runs / "more").symlink_to(elsewhere)
    os.mkfifo(runs / "c.tfevents")
    assert list(follow(runs).read(last=True)) == []


def test_a_torn_file_says_so(runs: Path) -> None:
    (runs / "a.tfevents").write_bytes(b"no events at all")
    folder = follow(runs)
    assert list(folder.read(last=True)) == []
    assert "checksum" in folder.damage
