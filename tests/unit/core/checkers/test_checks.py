"""The four checkers on synthetic records: each finds its fault, and none passes on missing data."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from builders.check_records import Line, at_step, begin, checker, judged, named
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.checkers.checks import Checked, check
from testbed.core.checkers.finding import Checker
from testbed.core.checkers.sums import summation_bound
from testbed.core.records.check_record import read_checks

Lines = list[list[Line]]
WORLD = 3
RANKS = tuple(range(WORLD))


def hexed(*values: float) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def step(number: int, attempt: int = 1) -> Line:
    """A step of which nothing is wrong: 0.1 s after the one before, one collective of 10 ms, parameters drawn."""
    t = 100.0 * attempt + 0.1 * number
    return {
        "kind": "step", "attempt": attempt, "t": t + 0.09, "step": number, "optimizer_steps": number,
        "collectives": [
            {"elements": 10, "began_t": t, "ended_t": t + 0.01, "crc32": f"{attempt}{number:07d}"},
            {"elements": 20, "began_t": t, "ended_t": t + 0.02, "crc32": f"{attempt}{number:06d}b"},
        ],
        "trained_on": f"p{number - 1}", "became": f"p{number}",
    }  # fmt: skip


def sample(number: int, inputs: Sequence[float], outputs: Sequence[float], attempt: int = 1, sequence: int = 0) -> Line:
    tag = {"attempt": attempt, "step": number, "sequence": sequence}
    places = list(range(len(inputs)))
    return {"kind": "sample", **tag, "at": places, "inputs": hexed(*inputs), "outputs": hexed(*outputs)}


def recorded(numbers: Iterable[int], inputs: Sequence[Sequence[float]], rank: int, attempt: int = 1) -> list[Line]:
    """Steps of a rank, each with the samples of its two collectives."""
    sums = [float32(sum(column)) for column in zip(*inputs, strict=True)]
    return [
        line
        for number in numbers
        for line in (
            step(number, attempt),
            *(sample(number, inputs[rank], sums, attempt, sequence) for sequence in (0, 1)),
        )
    ]


def good_run(steps: int = 5) -> Lines:
    """rank -> its lines."""
    inputs = [[0.5, 1.0 + rank] for rank in RANKS]
    return [[begin(rank), *recorded(range(1, steps + 1), inputs, rank)] for rank in RANKS]


def second_attempt(run: Lines, **fields: Any) -> None:
    """Continue from the checkpoint after step 4; ``fields``: of the begin of rank 1."""
    for rank, lines in enumerate(run):
        again = recorded((5, 6), [[float(peer)] for peer in RANKS], rank, 2)
        lines += [begin(rank, 2, 4, **(fields if rank == 1 else {})), *again]


def change(run: Lines, ranks: Iterable[int], numbers: Iterable[int], attempt: int = 1, **fields: Any) -> None:
    """Change fields of steps; a function computes the field from the step's number."""
    for rank, number in product(ranks, numbers):
        values = {name: value(number) if callable(value) else value for name, value in fields.items()}
        at_step(run, rank, number, attempt=attempt).update(values)


def others_hold(checked: Checked, *but: str) -> bool:
    return all(result.holds is True for result in checked.checkers if result.id not in but)


def test_checks_of_a_good_run_hold() -> None:
    checked = judged(good_run())
    assert [result.id for result in checked.checkers] == ["sums", "hangs", "parameters", "updates"]
    assert checked.holds is True
    assert checked.metrics() == {"wrong_sums": 0, "hangs": 0, "stale_parameters": 0, "lost_updates": 0}
    looked_at = "10 collectives compared over 3 ranks; 20 elements of 10 of them recomputed"
    assert named(checked, "sums").looked_at == looked_at


def test_checks_without_any_record_are_unknown() -> None:
    checked = check([])
    assert checked.holds is None
    assert set(checked.metrics().values()) == {None}


# ---- one thing is wrong


def wrong_crc(run: Lines) -> None:
    at_step(run, 1, 4)["collectives"][1]["crc32"] = "bad"


def wrong_everywhere(run: Lines) -> None:
    for rank in RANKS:
        at_step(run, rank, 3, "sample")["outputs"] = hexed(1.0, 4.0)


def unrestored(run: Lines) -> None:
    second_attempt(run, optimizer_steps=0)
    change(run, [1], (5, 6), 2, optimizer_steps=lambda number: number - 4)


def without_effect(run: Lines) -> None:
    change(run, RANKS, [3], became="p2")
    change(run, RANKS, [4], trained_on="p2")


@table(
    "plant, name, metric, places, text",
    {
        "a sum that one rank has alone names the rank": (wrong_crc, "sums", 1, [(1, 4, 1, (1,))], ""),
        "a sum that is wrong on all ranks is found by adding again": (
            wrong_everywhere, "sums", 1, [(1, 3, 0, RANKS)],
            "element 0, expected 1.5, got 1, as if the input of rank 1 were missing",
        ),
        "ranks that entered another number of collectives are found": (
            lambda run: at_step(run, 2, 2)["collectives"].pop(), "sums", 1, [(1, 2, 1, (2,))], "",
        ),
        "an optimizer that makes something else of the same is found": (
            lambda run: change(run, [0], [5], became="q"), "parameters", 1, [(1, 5, None, (0,))], "",
        ),
        "a rank on stale parameters is named with their age": (
            lambda run: change(run, [2], (4, 5), trained_on=lambda n: f"p{n - 3}", became=lambda n: f"q{n}"),
            "parameters", 2, [(1, 4, None, (2,)), (1, 5, None, (2,))],
            "rank 2 trained on other parameters than ranks 0, 1, namely those after step 1",
        ),
        "an attempt that begins on other parameters is found": (
            lambda run: second_attempt(run, parameters="p3"), "parameters", 1, [(2, 4, None, (1,))], "",
        ),
        "an optimizer that was not restored is found": (unrestored, "updates", 1, [(2, 4, None, (1,))], ""),
        "an optimizer that left a step out is named": (
            lambda run: change(run, [1], (3, 4, 5), optimizer_steps=lambda number: number - 1),
            "updates", 1, [(1, 3, None, (1,))], "",
        ),
        "a step that was counted and changed nothing is found on each rank": (
            without_effect, "updates", WORLD, [(1, 3, None, RANKS)], "",
        ),
    },
)  # fmt: skip
def test_check_finds(plant: Callable[[Lines], None], name: str, metric: int, places: list, text: str) -> None:
    run = good_run()
    plant(run)
    checked = judged(run)
    result = named(checked, name)
    assert (result.holds, result.metric) == (False, metric)
    assert [(found.attempt, found.step, found.sequence, found.ranks) for found in result.findings] == places
    assert result.findings[0].text.endswith(text)
    assert others_hold(checked, name)


def test_check_counts_the_same_collective_once() -> None:
    run = good_run()
    at_step(run, 1, 3)["collectives"][0]["crc32"] = "bad"
    at_step(run, 1, 3, "sample")["outputs"] = hexed(1.5, 7.0)
    sums = checker(run, "sums")
    assert (sums.found, len(sums.findings)) == (1, 2)
    assert {found.ranks for found in sums.findings} == {(1,)}


def test_check_of_an_attempt_that_begins_as_the_one_before_ended() -> None:
    run = good_run()
    second_attempt(run)
    assert judged(run).holds is True


# ---- sums


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**99), max_value=2.0**99), max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_summation_bound_holds_in_any_order_of_float32(inputs: list[float], chance: random.Random) -> None:
    """Oracle: exact rational arithmetic, and one rounding to float32 after each addition."""
    left = list(inputs)
    while len(left) > 1:  # any two of what is left, as a ring or a tree may
        # float64 adds two float32 so that rounding again is rounding once.
        left.append(float32(sum(left.pop(chance.randrange(len(left))) for _ in range(2))))
    exact = sum(map(Fraction, inputs), Fraction(0))
    assert abs(Fraction(left[0] if left else 0.0) - exact) <= Fraction(summation_bound(inputs))


def test_summation_bound_is_tight_enough_to_find_a_small_error() -> None:
    assert summation_bound([0.1, 0.2, 0.3, 0.4]) < 3 * 2.0**-24 * 1.0000003


INFINITE, NAN = float("inf"), float("nan")


@table(
    "inputs, output, holds",
    {
        "an infinite input makes the sum infinite": ([INFINITE, 1.0, 1.0], INFINITE, True),
        "an infinite input has no finite sum": ([INFINITE, 1.0, 1.0], 2.0, False),
        "an input that is no number makes the sum none": ([NAN, 1.0, 1.0], NAN, True),
        "a sum may overflow": ([3e38, 3e38, 1.0], INFINITE, True),
        "a sum may overflow on the way, in that order": ([3e38, 3e38, -3e38], INFINITE, True),
        "a sum of numbers is a number": ([1.0, 1.0, 1.0], NAN, False),
    },
)
def test_check_of_sums_that_are_no_numbers(inputs: list[float], output: float, holds: bool) -> None:
    run = good_run(1)
    for rank, value in enumerate(inputs):
        run[rank][-1] = sample(1, [value], [output])
    assert checker(run, "sums").holds is holds


def test_check_of_sums_without_a_sample_is_unknown() -> None:
    run = [[line for line in lines if line["kind"] != "sample"] for lines in good_run()]
    sums = checker(run, "sums")
    assert (sums.holds, sums.metric) == (None, None)
    assert sums.why.startswith("not all ranks recorded elements of step 1, collective 0")


def test_check_of_sums_is_unknown_if_a_rank_lacks_a_sample_unless_it_is_of_the_last_step() -> None:
    run = good_run()
    run[2].remove(at_step(run, 2, 5, "sample"))
    assert judged(run).holds is True
    run[2].remove(at_step(run, 2, 4, "sample"))
    checked = judged(run)
    sums = named(checked, "sums")
    assert sums.holds is None
    assert sums.why == "not all ranks recorded elements of step 4, collective 0, in attempt 1"
    assert others_hold(checked, "sums")


# ---- missing records


@table(
    "missing, why",
    {
        "all of a rank": (lambda line: True, "step 1 in"),
        "its begin": (lambda line: line["kind"] == "begin", "how it began"),
        "a step": (lambda line: line.get("step") == 3, "step 3 in"),
        "the last steps": (lambda line: line["kind"] == "step" and line["step"] > 3, "step 4 in"),
    },
)
def test_checks_are_unknown_on_missing_records(missing: Callable[[Line], bool], why: str) -> None:
    run = good_run()
    run[2] = [line for line in run[2] if not missing(line)]
    checked = judged(run)
    assert {result.holds for result in checked.checkers} == {None}
    assert {result.why for result in checked.checkers} == {f"rank 2 has no record of {why} attempt 1"}
    assert set(checked.metrics().values()) == {None}


def test_check_finds_a_fault_however_much_is_missing() -> None:
    run = good_run()
    run[2] = []
    wrong_crc(run)
    checked = judged(run)
    sums = named(checked, "sums")
    assert (sums.holds, sums.metric, checked.holds) == (False, 1, False)


def test_check_of_a_rank_that_died_a_step_before_the_others_ended_theirs_has_no_gap() -> None:
    run = good_run()
    run[2] = [line for line in run[2] if line["step"] < 5]
    assert judged(run).holds is True


@pytest.mark.parametrize(
    "line", [{"kind": "step"}, {"kind": "other"}, 7, None, {}, sample(1, [1.0], [1.0]) | {"at": [1, 2]}]
)
def test_read_checks_counts_lines_that_it_cannot_read(line: object) -> None:
    assert read_checks(0, [begin(0), line])[1] == 1


# ---- hangs


def wait(sequence: int | None, since_t: float, t: float) -> Line:
    return {"kind": "waits", "attempt": 1, "step": 6, "sequence": sequence, "t": t, "since_t": since_t}


def held(since_t: float, t: float) -> Line:
    return {"kind": "held", "attempt": 1, "t": t, "since_t": since_t}


def hung(*waits: tuple[int, Line]) -> Checker:
    """Records of waits in step 6, which no rank ended."""
    run = good_run()
    for rank, line in waits:
        run[rank].append(line)
    checked = judged(run)
    assert others_hold(checked, "hangs")
    return named(checked, "hangs")


EARLY = [(0, wait(0, 100.7, 102.8)), (2, wait(0, 100.7, 102.9))]


@table(
    "waits, place, text",
    {
        "a rank in no collective is waited for": (
            [*EARLY, (1, wait(None, 100.6, 102.7))], (6, 0, (1,)),
            "ranks 0, 2 waited more than 2.2 s for rank 1: rank 1 was in no collective of step 6 for at least 2.1 s",
        ),
        "a silent rank is waited for": (
            EARLY, (6, 0, (1,)),
            "ranks 0, 2 waited more than 2.2 s for rank 1: the last record of rank 1 is the end of step 5",
        ),
        "if all are in it, it is the network": (
            [(rank, wait(1, 100.7, 102.8)) for rank in RANKS], (6, 1, RANKS),
            "all ranks were in it for more than 2.1 s: the data in flight between them did not arrive",
        ),
        "a rank that was held while all were in it is named": (
            [*((rank, wait(1, 100.7, 105.8)) for rank in RANKS), (2, held(100.8, 105.7)), (1, held(90.0, 101.0))],
            (6, 1, (2,)),
            "all ranks were in it for more than 5.1 s; the process of rank 2 did not run for 4.9 s of it",
        ),
    },
)  # fmt: skip
def test_check_of_a_hang(waits: list[tuple[int, Line]], place: tuple, text: str) -> None:
    hangs = hung(*waits)
    assert hangs.holds is False
    (found,) = hangs.findings
    assert (found.step, found.sequence, found.ranks) == place
    assert found.text == text


def test_check_of_a_rank_that_is_slow_by_itself_finds_no_hang() -> None:
    assert hung((1, wait(None, 100.6, 102.7))).holds is True


def test_check_of_a_collective_that_ended_late_finds_one_hang_and_the_late_rank() -> None:
    run = good_run()
    for rank in RANKS:
        for collective in at_step(run, rank, 5)["collectives"]:
            collective |= {"began_t": 200.0 + 3.0 * (rank == 1), "ended_t": 203.1}
    hangs = checker(run, "hangs")
    (found,) = hangs.findings
    assert (hangs.metric, found.sequence, found.ranks) == (1, 0, (1,))
    assert found.text == "ranks 0, 2 waited 3.1 s for rank 1, which entered it 3.0 s late"
    run[1].append(held(200.2, 202.9))
    (found,) = checker(run, "hangs").findings
    assert found.text.endswith("; the process of rank 1 did not run for 2.7 s of it")
