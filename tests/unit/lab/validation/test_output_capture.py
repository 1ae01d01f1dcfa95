"""Output of a program goes to a log; a flood neither fills the disk nor blocks the program."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import host_stalls
import pytest

from testbed.lab.validation import output_capture
from testbed.lab.validation.output_capture import LAST_BYTES, CappedLog

BOUND_S = 20.0
Listen = Callable[[], CappedLog]

FLOOD = """
import os
for number in range(300_000):
    os.write(2, b"%09d\\n" % number)
os.write(2, b"out of ideas\\n")
"""
FLOOD_BYTES = 300_000 * 10 + len("out of ideas\n")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rank-0.log"


@pytest.fixture
def listen(log: Path) -> Iterator[Listen]:
    """Open logs at ``log``, and close them afterwards."""
    made: list[CappedLog] = []

    def another() -> CappedLog:
        made.append(CappedLog(log))
        return made[-1]

    yield another
    for it in made:
        it.close()


def say(captured: CappedLog, *argv: str) -> int:
    """Return the exit status of a program that writes some text."""
    return subprocess.run(argv, stderr=captured.pipe, timeout=BOUND_S).returncode


def test_what_is_said_is_logged_and_the_last_line_is_known_as_soon_as_the_program_has_ended(
    listen: Listen, log: Path
) -> None:
    captured = listen()
    assert captured.last_line() == ""
    assert say(captured, "sh", "-c", "echo one >&2; echo two >&2; printf '  three \\n\\n' >&2") == 0
    assert captured.last_line() == "three"
    captured.write(b"four\n")
    assert captured.last_line() == "four"
    captured.close()
    assert log.read_bytes() == b"one\ntwo\n  three \n\nfour\n"
    assert captured.last_line() == "four"


def test_of_a_flood_the_beginning_and_the_end_are_kept(
    listen: Listen, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_capture, "MOST_KEPT", 100_000)
    captured = listen()
    assert say(captured, sys.executable, "-c", FLOOD) == 0, "it neither stood still nor died of it"
    assert captured.last_line() == "out of ideas"
    assert log.stat().st_size < 100_200
    captured.close()
    said = log.read_text()
    first, full, rest = said.partition("\n[testbed: the log is full; only the end of what follows is kept]\n")
    assert full
    assert first == "".join(f"{number:09d}\n" for number in range(10_000))
    left_out = re.match(r"\[testbed: (\d+) bytes are left out here\]\n", rest)
    assert left_out is not None
    last = rest.removeprefix(left_out[0])
    assert last.endswith("000299999\nout of ideas\n")
    assert len(last) == LAST_BYTES
    assert len(first) + int(left_out[1]) + len(last) == FLOOD_BYTES


def test_programs_that_follow_one_another_share_a_log_and_its_bound(
    listen: Listen, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_capture, "MOST_KEPT", 1000)
    for number in range(5):
        captured = listen()
        captured.write(b"x" * 900 + b"\n")
        assert say(captured, "sh", "-c", f"echo program {number} says >&2") == 0
        assert captured.last_line() == f"program {number} says"
        captured.close()
    said = log.read_text()
    assert [f"program {number} says" in said for number in range(5)] == [True] * 5
    assert log.stat().st_size < 1000 + 5 * (LAST_BYTES + 200)


def test_what_is_said_exactly_up_to_the_bound_is_all_there(
    listen: Listen, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_capture, "MOST_KEPT", 1000)
    captured = listen()
    captured.write(b"x" * 1000)
    captured.close()
    assert log.read_bytes() == b"x" * 1000


def test_a_full_disk_loses_words_and_nothing_else() -> None:
    captured = CappedLog(Path("/dev/full"))
    assert say(captured, sys.executable, "-c", FLOOD) == 0
    assert captured.last_line() == "out of ideas"
    captured.close()


def test_one_that_holds_on_to_the_pipe_holds_nobody_up(listen: Listen, log: Path) -> None:
    captured = listen()
    other = subprocess.Popen(["sleep", "1000"], stderr=captured.pipe)
    try:
        assert say(captured, "sh", "-c", "echo gone >&2") == 0
        began = time.monotonic()
        captured.close()
        assert host_stalls.elapsed_s(began) < BOUND_S / 4
        captured.close()
    finally:
        other.kill()
        other.wait()
    assert log.read_text() == "gone\n"
    assert "capture" not in {it.name for it in threading.enumerate()}
