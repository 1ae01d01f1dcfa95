"""The sentence about files that several nodes wrote."""

from __future__ import annotations

from testbed.lab.jobs.same_files import describe


def test_the_files_and_their_nodes_are_named_and_at_most_three() -> None:
    assert describe({}) == ""
    one = describe({"out/log.txt": ["east-0", "west-0"]})
    assert one.startswith("several nodes wrote the same file: out/log.txt (east-0, west-0); write to $TESTBED_SCRATCH")
    many = describe({f"f{number}": ["a-0", "b-0"] for number in range(5)})
    assert "f2 (a-0, b-0) and 2 more;" in many and "f3" not in many


def test_names_that_are_no_text_are_escaped() -> None:
    told = describe({"a\x1b[31m\n\udcff": ["a-0", "b-0"]})
    assert told.isprintable() and "a\\x1b[31m" in told
