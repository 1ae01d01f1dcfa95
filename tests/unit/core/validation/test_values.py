"""The input of calls, against the document in exact arithmetic, and against the helper of rank programs."""

from __future__ import annotations

import re
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.rank_inputs import input_bytes
from testbed_agents.adapters.elements import generate

from testbed.core.validation.elements import TYPES
from testbed.core.validation.values import decode, encode, numerators

DOCUMENT = (Path(__file__).parents[4] / "docs" / "validate.md").read_text(encoding="utf-8")
NUMBERS = st.integers(0, 2**63 - 1)


def _word(seed: int, call: int, rank: int, index: int) -> int:
    """w, read out of the document: its constants and its shifts, in Python's unbounded whole numbers."""
    block = re.search(r"```\n(z = s·.*?)```", DOCUMENT, re.DOTALL)
    assert block
    of_seed, of_call, of_rank, of_index, first, second = (int(it, 16) for it in re.findall(r"0x[0-9A-F]+", block[1]))
    a, b, c = (int(it) for it in re.findall(r">> (\d+)", block[1]))
    whole = 2**64
    z = (seed * of_seed + call * of_call + rank * of_rank + index * of_index) % whole
    z = (z ^ (z >> a)) * first % whole
    z = (z ^ (z >> b)) * second % whole
    return z ^ (z >> c)


_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


def _element(name: str, word: int) -> Fraction:
    """Return the element for a word, by the document's table."""
    row = re.search(rf"^\| `{name}` \| \(w >> (\d+)\) (.*) \|$", DOCUMENT, re.MULTILINE)
    assert row
    shift, rest = int(row[1]), row[2].translate(_SUPERSCRIPTS)
    if less := re.fullmatch(r"− 2(\d+)", rest):
        return Fraction((word >> shift) - 2 ** int(less[1]))
    scale = re.fullmatch(r"/ 2(\d+) − 1", rest)
    assert scale
    return Fraction(word >> shift, 2 ** int(scale[1])) - 1


def _read(name: str, data: bytes) -> Fraction:
    """Decode one element of an output with struct alone."""
    if name == "bfloat16":
        return Fraction(struct.unpack("<f", b"\0\0" + data)[0])
    kind = {"int32": "<i", "int64": "<q", "float16": "<e", "float32": "<f", "float64": "<d"}[name]
    return Fraction(struct.unpack(kind, data)[0])


@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=25)
@given(seed=NUMBERS, call=NUMBERS, rank=st.integers(0, 4096), count=st.integers(1, 40))
def test_numerators_are_those_of_the_document(name: str, seed: int, call: int, rank: int, count: int) -> None:
    data, size = input_bytes(name, count, seed=seed, call=call, rank=rank), TYPES[name].size
    assert len(data) == count * size
    for index in range(count):
        expected = _element(name, _word(seed, call, rank, index))
        assert _read(name, data[index * size : (index + 1) * size]) == expected


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("count", [0, 1, 1000, 70_001])
def test_numerators_are_those_of_the_helper_of_rank_programs(name: str, count: int) -> None:
    for seed, call, rank in ((0, 1, 0), (5, 7, 3), (2**62 + 1, 200_003, 63)):
        there = generate(name, count, seed=seed, call=call, rank=rank).tobytes()
        assert input_bytes(name, count, seed=seed, call=call, rank=rank) == there


@pytest.mark.parametrize("name", TYPES)
def test_encode_and_decode_extreme_numerators(name: str) -> None:
    """The ends of each range, and zero, which must be positive zero."""
    kind = TYPES[name]
    most = 2 ** (63 - kind.shift)
    ends = np.array([-most, -most + 1, -1, 0, 1, most - 1], np.int64)
    data = encode(kind, ends).tobytes()
    assert [_read(name, data[i * kind.size : (i + 1) * kind.size]) for i in range(len(ends))] == [
        Fraction(int(it), 2**kind.scale) for it in ends
    ]
    assert (decode(kind, data) * 2.0**kind.scale == ends).all()
    assert data[3 * kind.size : 4 * kind.size] == bytes(kind.size)


def test_numerators_of_a_thousand_ranks_have_sums_that_fit() -> None:
    """The claim that all arithmetic on numerators is exact: 1023 of the largest stay below 2**63."""
    assert all(1023 * 2 ** (63 - kind.shift) < 2**63 for kind in TYPES.values())


def test_numerators_of_ranks_and_calls_have_nothing_in_common() -> None:
    kind, indices = TYPES["int64"], np.arange(1000, dtype=np.uint64)
    seen = {
        numerators(kind, indices, seed=seed, call=call, rank=rank).tobytes()
        for seed in range(3)
        for call in range(5)
        for rank in range(8)
    }
    assert len(seen) == 3 * 5 * 8
