"""What a program says goes to a log; a flood of it neither fills the disk nor stops the program."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testbed.lab.validate import words as words_module
from testbed.lab.validate.words import LAST_BYTES, Words

BOUND_S = 20.0

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
def listen(log: Path) -> Iterator[Callable[[], Words]]:
    """Makes Words of ``log`` that are closed afterwards."""
    made: list[Words] = []

    def another() -> Words:
        made.append(Words(log))
        return made[-1]

    yield another
    for it in made:
        it.close()


def say(words: Words, *argv: str) -> int:
    """The status of a program that says its words."""
    return subprocess.run(argv, stderr=words.pipe, timeout=BOUND_S).returncode


def test_what_is_said_is_logged_and_the_last_line_is_known_as_soon_as_the_program_has_ended(
    listen: Callable[[], Words], log: Path
) -> None:
    words = listen()
    assert words.last_line() == ""
    assert say(words, "sh", "-c", "echo one >&2; echo two >&2; printf '  three \\n\\n' >&2") == 0
    assert words.last_line() == "three"
    words.write(b"four\n")
    assert words.last_line() == "four"
    words.close()
    assert log.read_bytes() == b"one\ntwo\n  three \n\nfour\n"
    assert words.last_line() == "four"


def test_of_a_flood_the_beginning_and_the_end_are_kept(
    listen: Callable[[], Words], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "MOST_KEPT", 100_000)
    words = listen()
    assert say(words, sys.executable, "-c", FLOOD) == 0, "it neither stood still nor died of it"
    assert words.last_line() == "out of ideas"
    assert log.stat().st_size < 100_200
    words.close()
    said = log.read_text()
    first, full, rest = said.partition("\n[testbed: the log is full; of what follows the end is kept]\n")
    assert full
    assert first == "".join(f"{number:09d}\n" for number in range(10_000))
    left_out = re.match(r"\[testbed: (\d+) bytes are left out here\]\n", rest)
    assert left_out is not None
    last = rest.removeprefix(left_out[0])
    assert last.endswith("000299999\nout of ideas\n")
    assert len(last) == LAST_BYTES
    assert len(first) + int(left_out[1]) + len(last) == FLOOD_BYTES


def test_programs_that_follow_one_another_share_a_log_and_its_bound(
    listen: Callable[[], Words], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "MOST_KEPT", 1000)
    for number in range(5):
        words = listen()
        words.write(b"x" * 900 + b"\n")
        assert say(words, "sh", "-c", f"echo program {number} says >&2") == 0
        assert words.last_line() == f"program {number} says"
        words.close()
    said = log.read_text()
    assert [f"program {number} says" in said for number in range(5)] == [True] * 5
    assert log.stat().st_size < 1000 + 5 * (LAST_BYTES + 200)


def test_what_is_said_exactly_up_to_the_bound_is_all_there(
    listen: Callable[[], Words], log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "MOST_KEPT", 1000)
    words = listen()
    words.write(b"x" * 1000)
    words.close()
    assert log.read_bytes() == b"x" * 1000


def test_a_full_disk_loses_words_and_nothing_else() -> None:
    words = Words(Path("/dev/full"))
    assert say(words, sys.executable, "-c", FLOOD) == 0
    assert words.last_line() == "out of ideas"
    words.close()


def test_one_that_holds_on_to_the_pipe_holds_nobody_up(listen: Callable[[], Words], log: Path) -> None:
    words = listen()
    other = subprocess.Popen(["sleep", "1000"], stderr=words.pipe)
    try:
        assert say(words, "sh", "-c", "echo gone >&2") == 0
        began = time.monotonic()
        words.close()
        assert time.monotonic() - began < BOUND_S / 4
        words.close()
    finally:
        other.kill()
        other.wait()
    assert log.read_text() == "gone\n"
    assert "words" not in {it.name for it in threading.enumerate()}
