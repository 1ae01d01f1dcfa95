"""Each deliberate defect of the reference library has exactly its documented effect."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.rank_programs import Ranks, decoded, slack, started, vector
from testbed_agents.adapters.broken import BROKEN as IMPLEMENTED

from testbed.core.validation.shipped_libraries import BROKEN, BROKEN_RINGS

SIZE = 3
TIMEOUT_S = 0.5


JOINS = 5
"""How often the ranks try to join: a busy host takes longer than the short timeouts that these tests are about."""


@contextlib.contextmanager
def ring(folder: Path, *how: str, size: int = SIZE, timeout_s: float = 20.0) -> Iterator[Ranks]:
    program = ["-m", f"testbed_agents.adapters.{'broken' if how else 'ring'}", *how]
    for left in reversed(range(JOINS)):
        with started(program, size, folder) as ranks:
            errors = [answer for answer in ranks.join(timeout_s) if "error" in answer]
            if not errors:
                yield ranks
                return
        assert left, errors


def sums(ranks: Ranks, element_type: str, count: int) -> tuple[Any, list[Any]]:
    """Return the right sum, and the ranks' answers."""
    call, answers = ranks.call("all_reduce", type=element_type, count=count)
    right = sum(vector(element_type, count, rank, call) for rank in range(ranks.size))
    return right, [decoded(element_type, ranks.output(answer)) for answer in answers]


def test_what_the_testbed_names_is_what_the_agents_have() -> None:
    assert set(BROKEN) == set(IMPLEMENTED)
    assert [library.argv[-1] for library in BROKEN_RINGS.values()] == list(BROKEN)


def test_a_wrong_sum_is_wrong_at_every_size(tmp_path: Path) -> None:
    with ring(tmp_path, "wrong-sum") as ranks:
        for count in (1, 7, 1000):
            right, said = sums(ranks, "int32", count)
            assert any(not np.array_equal(right, it) for it in said), count


def test_a_lost_byte_spoils_a_message_without_an_error(tmp_path: Path) -> None:
    with ring(tmp_path, "lost-byte") as ranks:
        call, answers = ranks.call("broadcast", type="int32", count=100)
        assert not np.array_equal(decoded("int32", ranks.output(answers[1])), vector("int32", 100, 0, call))


def test_a_stale_buffer_shows_from_the_second_call_on(tmp_path: Path) -> None:
    with ring(tmp_path, "stale") as ranks:
        for wrong in (False, True, True):
            right, said = sums(ranks, "int32", 7)
            assert any(not np.array_equal(right, it) for it in said) is wrong


def test_swapped_blocks_are_all_there_in_the_wrong_places(tmp_path: Path) -> None:
    with ring(tmp_path, "swapped") as ranks:
        for do, blocks in (("all_gather", 1), ("all_to_all", SIZE)):
            call, answers = ranks.call(do, type="int32", count=1)
            right = [vector("int32", blocks, rank, call)[0] for rank in range(SIZE)]
            got = list(decoded("int32", ranks.output(answers[0])))
            assert got != right and sorted(got) == sorted(right), do


def test_different_bits_are_each_right_within_the_bound(tmp_path: Path) -> None:
    with ring(tmp_path, "different-bits", size=4) as ranks:
        right, said = sums(ranks, "float32", 1000)
        assert all(np.max(np.abs(right - it)) <= slack("float32", 4) for it in said)
        assert any(not np.array_equal(said[0], it) for it in said)


def test_a_hang_answers_nothing_any_more(tmp_path: Path) -> None:
    with ring(tmp_path, "hang") as ranks:
        right, said = sums(ranks, "int32", 1000)
        assert all(np.array_equal(right, it) for it in said)
        with pytest.raises(TimeoutError):
            ranks.ask({"do": "all_reduce", "call": 99, "type": "int32", "count": 7}, within_s=1.0)


def errors_of_a_call_that_one_rank_misses(ranks: Ranks, within_s: float = 60.0) -> list[dict[str, Any]]:
    return ranks.ask({"do": "all_reduce", "call": 99, "type": "int32", "count": 7, "keep": True}, [0, 1], within_s)


def test_the_right_ring_errs_at_its_timeout(tmp_path: Path) -> None:
    with ring(tmp_path, timeout_s=TIMEOUT_S) as ranks:
        answers = errors_of_a_call_that_one_rank_misses(ranks)
        assert all("error" in it for it in answers)
        # Whoever comes first to its timeout ends it for all.
        assert TIMEOUT_S <= max(it["ended"] for it in answers) - min(it["began"] for it in answers) < 1.8 * TIMEOUT_S


def test_without_a_timeout_it_waits_for_ever(tmp_path: Path) -> None:
    with ring(tmp_path, "no-timeout", timeout_s=TIMEOUT_S) as ranks, pytest.raises(TimeoutError):
        errors_of_a_call_that_one_rank_misses(ranks, within_s=4 * TIMEOUT_S)


def test_a_late_error_is_late(tmp_path: Path) -> None:
    with ring(tmp_path, "late-error", timeout_s=TIMEOUT_S) as ranks:
        answers = errors_of_a_call_that_one_rank_misses(ranks)
        assert all("error" in it for it in answers)
        assert max(it["ended"] for it in answers) - min(it["began"] for it in answers) > 1.8 * TIMEOUT_S


def test_a_swallowed_error_is_a_wrong_answer(tmp_path: Path) -> None:
    with ring(tmp_path, "swallowed-error", timeout_s=TIMEOUT_S) as ranks:
        answers = errors_of_a_call_that_one_rank_misses(ranks)
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


@pytest.mark.parametrize("how", [(), ("bypass",)])
def test_a_bypass_is_right_and_nothing_crosses_the_wire(tmp_path: Path, how: tuple[str, ...]) -> None:
    with ring(tmp_path, *how) as ranks:
        right, said = sums(ranks, "int32", 25_000)
        assert all(np.array_equal(right, it) for it in said)
        sent = sent_bytes(ranks)
        # A ring: each of the ranks sends 2 (P - 1) n / P bytes.
        expected = 2 * (SIZE - 1) * 100_000
        assert sent < 1000 if how else expected < sent < 1.1 * expected


def sent_bytes(ranks: Ranks) -> int:
    """By TCP's own count, over all connections between the ranks."""
    lines = subprocess.run(["ss", "-tinHO"], capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    between = [line for line in lines if any(f" {it}:{ranks.port} " in line for it in ranks.addresses)]
    return sum(int(count) for line in between for count in re.findall(r"bytes_sent:(\d+)", line))
