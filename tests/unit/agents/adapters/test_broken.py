"""Each deliberate defect of the reference library has exactly its documented effect."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.forked_program import ForkedProgram
from builders.rank_programs import Ranks, decoded, expected, slack, started, vector
from testbed_agents.adapters.broken import BROKEN as IMPLEMENTED

from testbed.core.validation.shipped_libraries import BROKEN, BROKEN_RINGS

SIZE = 3
TIMEOUT_S = 0.5


JOINS = 5
"""How often the ranks try to join: a busy host takes longer than the short timeouts that these tests are about."""


@contextlib.contextmanager
def ring(folder: Path, defect: str = "", size: int = SIZE, timeout_s: float = 20.0) -> Iterator[Ranks]:
    program = ["-m", "testbed_agents.adapters.broken", defect] if defect else ["-m", "testbed_agents.adapters.ring"]
    for left in reversed(range(JOINS)):
        with started(program, size, folder, subprocess.Popen if defect == "bypass" else ForkedProgram) as ranks:
            errors = [answer for answer in ranks.join(timeout_s) if "error" in answer]
            if not errors:
                yield ranks
                return
        assert left, errors


def call(ranks: Ranks, do: str, element_type: str, count: int) -> tuple[list[Any], list[Any]]:
    """Return the right output and the answer of each rank."""
    number, answers = ranks.call(do, type=element_type, count=count)
    right = [expected(do, rank, number, element_type, count, ranks.size) for rank in range(ranks.size)]
    return right, [decoded(element_type, ranks.output(answer)) for answer in answers]


def are_right(ranks: Ranks, do: str, count: int) -> list[bool]:
    return [bool(np.array_equal(*pair)) for pair in zip(*call(ranks, do, "int32", count), strict=True)]


def test_what_the_testbed_names_is_what_the_agents_have() -> None:
    assert set(BROKEN) == set(IMPLEMENTED)
    assert [library.argv[-1] for library in BROKEN_RINGS.values()] == list(BROKEN)


def test_a_wrong_sum_is_wrong_at_every_size(tmp_path: Path) -> None:
    with ring(tmp_path, "wrong-sum") as ranks:
        for count in (1, 7, 1000):
            assert not all(are_right(ranks, "all_reduce", count)), count


def test_a_lost_byte_spoils_a_message_without_an_error(tmp_path: Path) -> None:
    with ring(tmp_path, "lost-byte") as ranks:
        assert not are_right(ranks, "broadcast", 100)[1]


def test_a_stale_buffer_shows_from_the_second_call_on(tmp_path: Path) -> None:
    with ring(tmp_path, "stale") as ranks:
        assert [all(are_right(ranks, "all_reduce", 7)) for _ in range(3)] == [True, False, False]


def test_swapped_blocks_are_all_there_in_the_wrong_places(tmp_path: Path) -> None:
    with ring(tmp_path, "swapped") as ranks:
        for do in ("all_gather", "all_to_all"):
            (right, *_), (got, *_) = call(ranks, do, "int32", 1)
            assert list(got) != list(right) and sorted(got) == sorted(right), do


def test_different_bits_are_each_right_within_the_bound(tmp_path: Path) -> None:
    with ring(tmp_path, "different-bits", size=4) as ranks:
        (right, *_), sums = call(ranks, "all_reduce", "float32", 1000)
        assert all(np.max(np.abs(right - values)) <= slack("float32", 4) for values in sums)
        assert any(not np.array_equal(sums[0], values) for values in sums)


def test_a_hang_answers_nothing_any_more(tmp_path: Path) -> None:
    with ring(tmp_path, "hang") as ranks:
        assert all(are_right(ranks, "all_reduce", 1000))
        with pytest.raises(TimeoutError):
            ranks.ask({"do": "all_reduce", "call": 99, "type": "int32", "count": 7}, within_s=1.0)


def miss(ranks: Ranks, within_s: float = 60.0) -> list[dict[str, Any]]:
    """Return the answers to a call that one rank misses."""
    return ranks.ask({"do": "all_reduce", "call": 99, "type": "int32", "count": 7, "keep": True}, [0, 1], within_s)


@pytest.mark.parametrize(
    ("defect", "least", "most"),
    [
        pytest.param("", 1.0, 1.8, id="the right ring errs at its timeout"),
        pytest.param("late-error", 1.8, math.inf, id="a late error is late"),
    ],
)
def test_a_missed_call_is_an_error(tmp_path: Path, defect: str, least: float, most: float) -> None:
    with ring(tmp_path, defect, timeout_s=TIMEOUT_S) as ranks:
        answers = miss(ranks)
        assert all("error" in answer for answer in answers)
        # Whoever comes first to its timeout ends it for all.
        took_s = max(answer["ended"] for answer in answers) - min(answer["began"] for answer in answers)
        assert least * TIMEOUT_S <= took_s < most * TIMEOUT_S


def test_without_a_timeout_it_waits_for_ever(tmp_path: Path) -> None:
    with ring(tmp_path, "no-timeout", timeout_s=TIMEOUT_S) as ranks, pytest.raises(TimeoutError):
        miss(ranks, within_s=4 * TIMEOUT_S)


def test_a_swallowed_error_is_a_wrong_answer(tmp_path: Path) -> None:
    with ring(tmp_path, "swallowed-error", timeout_s=TIMEOUT_S) as ranks:
        answers = miss(ranks)
        right = sum(vector("int32", 7, rank, 99) for rank in range(SIZE))
        for answer in answers:
            assert "error" not in answer
            assert not np.array_equal(decoded("int32", ranks.output(answer)), right)


def test_a_crash_ends_the_process(tmp_path: Path) -> None:
    with ring(tmp_path, "crash", timeout_s=TIMEOUT_S) as ranks:
        ranks.ranks[0].tell('{"do": "all_reduce", "call": 99, "type": "int32", "count": 7}')
        assert ranks.ranks[0].process.wait(timeout=30) == -signal.SIGABRT


def test_what_cannot_be_rebuilt_says_so_the_second_time(tmp_path: Path) -> None:
    with ring(tmp_path, "no-rebuild") as ranks:
        assert all("error" in answer for answer in ranks.join())


@pytest.mark.parametrize("defect", ["", "bypass"])
def test_a_bypass_is_right_and_nothing_crosses_the_wire(tmp_path: Path, defect: str) -> None:
    with ring(tmp_path, defect) as ranks:
        assert all(are_right(ranks, "all_reduce", 25_000))
        sent = sent_bytes(ranks)
        # A ring: each of the ranks sends 2 (P - 1) n / P bytes.
        expected = 2 * (SIZE - 1) * 100_000
        assert sent < 1000 if defect else expected < sent < 1.1 * expected


def sent_bytes(ranks: Ranks) -> int:
    """By TCP's own count, over all connections between the ranks."""
    lines = subprocess.run(["ss", "-tinHO"], capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    between = [line for line in lines if any(f" {it}:{ranks.port} " in line for it in ranks.addresses)]
    return sum(int(count) for line in between for count in re.findall(r"bytes_sent:(\d+)", line))
