"""Lines of output, split as they are read."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.workload.output_lines import OutputLines

chunks = st.lists(
    st.lists(st.sampled_from([b"\n", b"\r", b"a", b"iter 1", "é".encode(), b"\x1b[A", b"\xff"])), max_size=30
)


@given(chunks)
def test_lines_do_not_depend_on_how_they_were_read(pieces: list[list[bytes]]) -> None:
    output = OutputLines()
    found = []
    for t, piece in enumerate(pieces):
        found += output.feed(float(t), b"".join(piece))
    found += output.end()
    whole = b"".join(b for piece in pieces for b in piece)
    assert [text.encode(errors="replace") for _, text in found] == [
        it.decode(errors="replace").encode(errors="replace") for it in re.split(rb"[\r\n]", whole) if it
    ]
    assert [t for t, _ in found] == sorted(t for t, _ in found)


@given(chunks)
def test_the_time_of_a_line_is_that_of_its_last_byte(pieces: list[list[bytes]]) -> None:
    output, seen = OutputLines(), []
    for t, piece in enumerate(pieces):
        seen += output.feed(float(t), b"".join(piece))
    seen += output.end()
    expected: list[float] = []
    open_at = None
    for t, piece in enumerate(pieces):
        for byte in b"".join(piece):
            if byte in b"\r\n":
                expected += [] if open_at is None else [open_at]
                open_at = None
            else:
                open_at = float(t)
    assert [t for t, _ in seen] == expected + ([] if open_at is None else [open_at])


def test_a_bar_that_is_not_ended_is_offered_once() -> None:
    output = OutputLines()
    assert output.feed(1.0, b"\r 10%| 1/10") == []
    assert output.quiet() == [(1.0, " 10%| 1/10")]
    assert output.quiet() == []
    assert output.feed(2.0, b"\r 20%| 2/10") == [], "it was returned already"
    assert output.feed(3.0, b"\r 30%") == [(2.0, " 20%| 2/10")], "nobody asked in between"
    assert output.quiet() == [(3.0, " 30%")]
    assert output.feed(4.0, b"| 3/10\n") == [(4.0, " 30%| 3/10")], "it went on after all"


def test_a_line_that_has_begun_is_not_offered() -> None:
    output = OutputLines()
    assert output.feed(1.0, b"x\nstep 1") == [(1.0, "x")]
    assert output.quiet() == [], "it could become step 12"


def test_a_line_without_an_end_is_cut() -> None:
    output = OutputLines()
    for _ in range(1000):
        assert output.feed(1.0, b"x" * 65536) == []
    ((_, text),) = output.feed(2.0, b"\n")
    assert len(text) == 16_000
