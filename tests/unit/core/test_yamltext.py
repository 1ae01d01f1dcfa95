"""YAML text: what is accepted, what is rejected, and that time and memory stay bounded."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.core import yamltext
from testbed.errors import FileMistakes


def data(text: str) -> Any:
    return yamltext.read(text.encode(), "f.yaml").data


def refusal(text: bytes) -> str:
    with pytest.raises(FileMistakes) as caught:
        yamltext.read(text, "f.yaml").raise_if_any()
    return str(caught.value)


def test_plain_data_with_lines() -> None:
    document = yamltext.read(b"a: 1\n\nb:\n  - x\n  - {c: 40 km}\n", "f.yaml")
    assert document.data == {"a": 1, "b": ["x", {"c": "40 km"}]}
    assert [document.line(path) for path in (("a",), ("b",), ("b", 0), ("b", 1, "c"))] == [1, 3, 4, 5]
    assert document.line(("b", 1, "not there")) == 5, "the nearest thing above it"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # YAML 1.2.2, 10.3.2, and the words that YAML 1.1 took for something else
        *[(word, None) for word in ("null", "Null", "NULL", "~", "")],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[
            (word, word)
            for word in ("yes", "no", "on", "off", "y", "n", "1:30", "1_000", "1+1", "tRUE", "0b1", "2001-01-01")
        ],
        ("0o14", 12),
        ("0x1F", 31),
        ("014", 14),
        ("-12", -12),
        ("1e-9", 1e-9),
        (".5", 0.5),
        ("1.", 1.0),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        ("'12'", "12"),
        ('"true"', "true"),
    ],
)
def test_scalars_of_the_core_schema(text: str, value: object) -> None:
    read = data(f"k: {text}\n")["k"]
    assert read == value
    assert type(read) is type(value)


def test_keys_are_text() -> None:
    assert data("1: a\nno: b\nnull: c\n") == {"1": "a", "no": "b", "null": "c"}


def test_byte_order_mark_and_windows_lines() -> None:
    assert yamltext.read(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", "f").data == {"a": 1, "b": 2}


def test_anchors_are_copies() -> None:
    read = data("a: &x {k: [1]}\nb: *x\n")
    assert read == {"a": {"k": [1]}, "b": {"k": [1]}}
    assert read["a"] is not read["b"]


def test_all_duplicate_keys_at_once() -> None:
    assert refusal(b"a: 1\nb: {c: 1, c: 2}\na: 2\na: 3\n").count("duplicate key") == 3


def test_a_duplicate_key_does_not_hinder_from_looking_further() -> None:
    document = yamltext.read(b"a: 1\na: 2\nb: !x 3\n", "f.yaml")
    assert document.data == {"a": 1, "b": 3}, "the first counts"
    assert sorted(finding.line for finding in document.findings) == [2, 3]


def test_values_of_set_have_no_lines() -> None:
    assert yamltext.read_value("[a, b]", "--set x") == ["a", "b"]
    for text in ('"', "{a: 1, a: 2}", "!x 1"):
        with pytest.raises(FileMistakes, match=r"^--set x: "):
            yamltext.read_value(text, "--set x")


def test_encodings_are_named() -> None:
    for name in ("utf-16", "utf-16-le", "utf-16-be"):
        assert "UTF-16" in refusal("sites: {}\n".encode(name))
    assert "UTF-32" in refusal("sites: {}\n".encode("utf-32"))
    assert refusal("a: 1\nb: café\n".encode("latin-1")).startswith("f.yaml:2: expected UTF-8, got byte 0xe9")
    assert "zero byte" in refusal(b"\x7fELF\x02\x01\x01\x00 and so on and on and on")


def test_findings_are_capped() -> None:
    assert len(refusal(b"a: 1\n" * 1000).splitlines()) == yamltext.MOST_FINDINGS


BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(12)
)
HOSTILE = {
    "alias bomb": BOMB,
    "nested lists": b"[" * 100_000,
    "nested mappings": b"{a: " * 100_000,
    "nested block": b"- " * 100_000,
    "nested by indentation": b"".join(b" " * i + b"a:\n" for i in range(1000)),
    "nested by alias": b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d]\n" % (i, i, i - 1) for i in range(1, 100)),
    "many items": b"- a\n" * 250_000,
    "many keys": b"{" + b"a," * 300_000,
    "question marks": b"? " * 100_000,
    "exclamation marks": b"!" * 100_000,
    "too large": b"#" * (yamltext.MOST_BYTES + 1),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused_in_bounded_time_and_memory(text: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    refusal(text)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kilobytes"


@pytest.mark.parametrize(
    "text", [b"\n" * 1_000_000, b"x" * 1_000_000, b"a: " + b"9" * 100_000, b'"' + b"\\x41" * 200_000 + b'"']
)
def test_large_but_harmless_text_is_read(text: bytes) -> None:
    began = time.process_time()
    yamltext.read(text, "f.yaml")
    assert time.process_time() - began < 10


YAMLISH = st.text(st.sampled_from("ab01:,-?[]{}&*!|>'\"%@`#~ \n\t.<=\\\u00e9\u2028\ufeff"), max_size=80)


@settings(max_examples=400, deadline=2000)
@example(b"&a")
@example(b"%YAML 9.9\n---\na: b")
@example(b"%TAG ! x\n--- !foo a")
@example(b"a: |9\n b")
@example(b'"\\UFFFFFFFF"')
@example(b'"\\ud800"')
@given(st.one_of(st.binary(max_size=200), YAMLISH.map(str.encode)))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    try:
        yamltext.read(text, "f.yaml")
    except FileMistakes as error:
        assert str(error).startswith("f.yaml")


def test_characters_as_json_escapes_them() -> None:
    assert data(r'{"\ud83d\ude80": "\ud83d\ude80"}') == {"\U0001f680": "\U0001f680"}
    assert "f.yaml:2: an escape is half of a character" in refusal(b'a: 1\n"b\\ud83d": 2\n')
