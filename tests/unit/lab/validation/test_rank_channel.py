"""The two ends of a rank program: no output, and no silence, may block the reader."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator

import pytest

from testbed.lab.validation.rank_channel import Lines


class Program:
    """The other side: the descriptors of a rank program."""

    def __init__(self) -> None:
        self.stdin, into = os.pipe()
        out, self.stdout = os.pipe()
        self.log = io.BytesIO()
        self.lines = Lines(into, out, self.log)

    def close(self) -> None:
        for each in (self.stdin, self.stdout):
            os.close(each)


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    yield made
    made.close()
    made.lines.close()


def test_an_operation_is_one_line_and_so_is_an_answer(program: Program) -> None:
    assert program.lines.say({"do": "barrier", "call": 1})
    assert os.read(program.stdin, 100) == b'{"do": "barrier", "call": 1}\n'
    os.write(program.stdout, b'{"call": 1, "ended": 2.5}\n')
    assert list(program.lines.read()) == [{"call": 1, "ended": 2.5}]
    assert list(program.lines.read()) == []


def test_an_answer_that_comes_in_parts_is_one_answer(program: Program) -> None:
    os.write(program.stdout, b'{"ca')
    assert list(program.lines.read()) == []
    os.write(program.stdout, b'll": 1}\n{"call": 2}\n{"call"')
    assert list(program.lines.read()) == [{"call": 1}, {"call": 2}]


@pytest.mark.parametrize("words", [b"hello", b"[1, 2]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"call": 1'])
def test_what_is_no_object_goes_to_the_log(program: Program, words: bytes) -> None:
    os.set_blocking(program.stdout, False)
    for begin in range(0, len(words), 4096):
        os.write(program.stdout, words[begin : begin + 4096])
        assert list(program.lines.read()) == []
    os.write(program.stdout, b"\n")
    assert list(program.lines.read()) == []
    assert program.log.getvalue() == words + b"\n"


def test_a_flood_without_an_end_of_line_does_not_fill_our_memory(program: Program) -> None:
    for _ in range(40):
        os.write(program.stdout, b"x" * 60_000)
        assert list(program.lines.read()) == []
    assert len(program.log.getvalue()) > 1_000_000
    os.write(program.stdout, b'\n{"call": 1}\n')
    assert list(program.lines.read()) == [{"call": 1}]


def test_the_last_words_of_a_program_that_ended_are_heard() -> None:
    program = Program()
    os.write(program.stdout, b'{"call": 1}\n{"call": 2}')
    program.close()
    assert list(program.lines.read()) == [{"call": 1}, {"call": 2}]
    assert not program.lines.open
    assert not program.lines.say({"do": "leave"})
    program.lines.close()


def test_a_program_that_reads_nothing_does_not_hold_us_up(program: Program) -> None:
    taken = 0
    while program.lines.say({"do": "barrier", "call": taken}):
        taken += 1
        assert taken < 1_000_000
    assert taken > 100


def test_a_program_that_never_stops_talking_does_not_hold_us_up(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood such as that of ``yes``: after each read, as much is available again."""
    reads = 0

    def endless(file: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        assert reads < 1000, "it reads for ever"
        return b"yes\n" * (size // 4)

    monkeypatch.setattr(os, "read", endless)
    for _ in range(4):
        assert list(program.lines.read()) == []
