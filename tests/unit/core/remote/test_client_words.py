"""Hints of a command on another host, read as the shell and the command line's own parser of its client read them."""

from __future__ import annotations

import json
import shlex

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from testbed.cli import app
from testbed.core.remote.client_words import ClientWords, decoded

WORDS = ClientWords(("testbed",), "h 1;rm", ("--on", "h 1;rm"), ("ssh", "h 1;rm"), ("up", "x"), {"there/a/b": "../b"})
GROUP = typer.main.get_command(app.app)


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "runs"),
        ("exec", "-l", "far", "east-0", "--", "ping", "--on", "x"),
        ("exec", "east-0", "bash"),
        ("launch", "--", "python", "train.py"),
        ("down", "far"),
        ("fetch", "run é"),
        ("image", "base"),
        ("host", "prepare", "h1"),
        ("observe",),
    ],
)
def test_the_host_is_where_the_parser_finds_it(words: tuple[str, ...]) -> None:
    """In one word, whatever characters it has, and no word of a child is taken for it."""
    program, verb, *after = shlex.split(WORDS.command(*words))
    context = GROUP.commands[verb].make_context(verb, list(after))  # type: ignore[attr-defined]
    plain = GROUP.commands[verb].make_context(verb, list(words[1:]))  # type: ignore[attr-defined]
    assert (program, verb, context.params.pop("on")) == ("testbed", words[0], "h 1;rm")
    assert plain.params.pop("on") is None
    assert context.params == plain.params


def test_a_variable_names_the_host() -> None:
    words = ClientWords(("sudo", "./my testbed"), "h1", (), ("ssh", "h1"))
    assert words.command("down", "far") == "sudo './my testbed' down far"
    assert words.line("--help", "") == "sudo './my testbed' --help"


def test_a_file_has_the_name_that_was_typed() -> None:
    there = "/var/tmp/testbed-on-x"
    for word, shown in (
        ("there/a/b", "../b"),
        ("there/a/c d", "/a/c d"),
        ("here/sub/é.yaml", "sub/é.yaml"),
        ("runs", f"{there}/runs"),
    ):
        assert WORDS.shown(f"{there}/{word}", there) == shown
    assert WORDS.shown("/var/tmp/testbed-on-xy/here/a", there) == "/var/tmp/testbed-on-xy/here/a"
    assert WORDS.shown("/here/a", "") == "/here/a"


@given(st.lists(st.text(), max_size=5), st.dictionaries(st.text(), st.text(), max_size=3))
def test_it_arrives_as_it_was_sent(typed: list[str], names: dict[str, str]) -> None:
    words = ClientWords(("a", "b c"), "é\udc80", ("--on", "é\udc80"), ("ssh",), tuple(typed), names)
    assert decoded(words.encoded()) == words
    words.encoded().encode("ascii")


def test_a_long_command_line_still_fits_in_a_variable() -> None:
    words = ClientWords(("testbed",), "h1", ("--on", "h1"), ("ssh", "h1"), ("launch", "x" * 200_000), {})
    assert len(words.encoded()) < 1000
    found = decoded(words.encoded())
    assert found is not None
    assert (found.on, found.typed) == (words.on, None)


@pytest.mark.parametrize("value", ["", "{", "[]", "{}", "1", json.dumps({"program": []}), "[" * 100_000])
def test_anything_else_is_no_client(value: str) -> None:
    assert decoded(value) is None
