"""The four checkers on synthetic records: each finds its fault, and none passes on missing data."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.checkers.checks import Checked, check
from testbed.core.checkers.finding import Checker
from testbed.core.checkers.sums import summation_bound
from testbed.core.records.check_record import read_checks

Line = dict[str, Any]
WORLD = 3
HANG_S = 2.0


def hexed(values: Sequence[float]) -> str:
    return struct.pack(f"<{len(values)}f", *values).hex()


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def step(number: int, attempt: int = 1, **changes: Any) -> Line:
    """A step of which nothing is wrong: 0.1 s after the one before, one collective of 10 ms, parameters drawn."""
    t = 100.0 * attempt + 0.1 * number
    return {
        "kind": "step",
        "attempt": attempt,
        "t": t + 0.09,
        "step": number,
        "optimizer_steps": number,
        "collectives": [
            {"elements": 10, "began_t": t, "ended_t": t + 0.01, "crc32": f"{attempt}{number:07d}"},
            {"elements": 20, "began_t": t, "ended_t": t + 0.02, "crc32": f"{attempt}{number:06d}b"},
        ],
        "trained_on": f"p{number - 1}",
        "became": f"p{number}",
    } | changes


def sample(number: int, inputs: Sequence[float], outputs: Sequence[float], attempt: int = 1, sequence: int = 0) -> Line:
    at = list(range(len(inputs)))
    tag = {"attempt": attempt, "step": number, "sequence": sequence}
    return {"kind": "sample", **tag, "at": at, "inputs": hexed(inputs), "outputs": hexed(outputs)}


def begin(rank: int, attempt: int = 1, after: int = 0, **changes: Any) -> Line:
    return {
        "kind": "begin",
        "attempt": attempt,
        "t": 100.0 * attempt,
        "rank": rank,
        "world_size": WORLD,
        "step": after,
        "hang_s": HANG_S,
        "parameters": f"p{after}",
        "optimizer_steps": after,
    } | changes


def good_run(steps: int = 5) -> list[list[Line]]:
    """rank -> its lines."""
    inputs = [[0.5, 1.0 + rank] for rank in range(WORLD)]
    sums = [float32(sum(column)) for column in zip(*inputs, strict=True)]
    return [
        [begin(rank)]
        + [
            line
            for number in range(1, steps + 1)
            for line in (
                step(number),
                sample(number, inputs[rank], sums, sequence=0),
                sample(number, inputs[rank], sums, sequence=1),
            )
        ]
        for rank in range(WORLD)
    ]


def judged(run: Sequence[Sequence[Line]]) -> Checked:
    logs = []
    for rank, lines in enumerate(run):
        log, malformed = read_checks(rank, lines)
        assert malformed == 0
        logs.append(log)
    return check(logs)


def of(checked: Checked, name: str) -> Checker:
    return next(each for each in checked.checkers if each.id == name)


def at_step(run: Sequence[Sequence[Line]], rank: int, number: int, kind: str = "step", attempt: int = 1) -> Line:
    return next(
        line for line in run[rank] if (line["kind"], line.get("step"), line.get("attempt")) == (kind, number, attempt)
    )


def others_hold(checked: Checked, *but: str) -> bool:
    return all(each.holds is True for each in checked.checkers if each.id not in but)


def test_of_a_good_run_all_hold() -> None:
    checked = judged(good_run())
    assert [each.id for each in checked.checkers] == ["sums", "hangs", "parameters", "updates"]
    assert checked.holds is True
    assert checked.metrics() == {"wrong_sums": 0, "hangs": 0, "stale_parameters": 0, "lost_updates": 0}
    assert of(checked, "sums").looked_at == "10 collectives compared over 3 ranks; 20 elements of 10 of them recomputed"


def test_without_any_record_nothing_is_known() -> None:
    checked = check([])
    assert checked.holds is None
    assert set(checked.metrics().values()) == {None}


# Sums


def test_a_sum_that_one_rank_has_alone_is_found_and_it_is_named() -> None:
    run = good_run()
    at_step(run, 1, 4)["collectives"][1]["crc32"] = "bad"
    sums = of(judged(run), "sums")
    assert (sums.holds, sums.found) == (False, 1)
    (found,) = sums.findings
    assert (found.attempt, found.step, found.sequence, found.ranks) == (1, 4, 1, (1,))
    assert others_hold(judged(run), "sums")


def test_a_sum_that_is_wrong_on_all_ranks_alike_is_found_by_adding_again() -> None:
    run = good_run()
    for rank in range(WORLD):
        at_step(run, rank, 3, "sample")["outputs"] = hexed([1.0, 4.0])
    sums = of(judged(run), "sums")
    (found,) = sums.findings
    assert (found.step, found.sequence, found.ranks) == (3, 0, (0, 1, 2))
    assert found.text.endswith("element 0, expected 1.5, got 1, as if the input of rank 1 were missing")
    assert of(judged(run), "sums").metric == 1


def test_the_same_collective_counts_once() -> None:
    run = good_run()
    at_step(run, 1, 3)["collectives"][0]["crc32"] = "bad"
    at_step(run, 1, 3, "sample")["outputs"] = hexed([1.5, 7.0])
    sums = of(judged(run), "sums")
    assert (sums.found, len(sums.findings)) == (1, 2)
    assert {found.ranks for found in sums.findings} == {(1,)}


def test_ranks_that_entered_another_number_of_collectives_are_found() -> None:
    run = good_run()
    at_step(run, 2, 2)["collectives"].pop()
    (found,) = of(judged(run), "sums").findings
    assert (found.step, found.sequence, found.ranks) == (2, 1, (2,))


@given(
    st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**99), max_value=2.0**99), max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_a_float32_sum_in_any_order_is_within_its_bound(inputs: list[float], chance: random.Random) -> None:
    """Oracle: exact rational arithmetic, and one rounding to float32 after each addition."""
    left = list(inputs)
    while len(left) > 1:  # any two of what is left, as a ring or a tree may
        one, other = (left.pop(chance.randrange(len(left))) for _ in range(2))
        left.append(float32(one + other))  # float64 adds two float32 so that rounding again is rounding once
    exact = sum(map(Fraction, inputs), Fraction(0))
    assert abs(Fraction(left[0] if left else 0.0) - exact) <= Fraction(summation_bound(inputs))


def test_the_bound_is_tight_enough_to_find_a_small_error() -> None:
    inputs = [0.1, 0.2, 0.3, 0.4]
    assert summation_bound(inputs) < 3 * 2.0**-24 * 1.0000003


@pytest.mark.parametrize(
    ("inputs", "output", "holds"),
    [
        ([float("inf"), 1.0, 1.0], float("inf"), True),
        ([float("inf"), 1.0, 1.0], 2.0, False),
        ([float("nan"), 1.0, 1.0], float("nan"), True),
        ([3e38, 3e38, 1.0], float("inf"), True),
        ([3e38, 3e38, -3e38], float("inf"), True),  # overflows on the way, in that order
        ([1.0, 1.0, 1.0], float("nan"), False),
    ],
)
def test_sums_that_are_no_numbers(inputs: list[float], output: float, holds: bool) -> None:
    run = good_run(1)
    for rank, value in enumerate(inputs):
        run[rank][-1] = sample(1, [value], [output])
    assert of(judged(run), "sums").holds is holds


def test_without_a_sample_sums_are_unknown() -> None:
    run = [[line for line in lines if line["kind"] != "sample"] for lines in good_run()]
    sums = of(judged(run), "sums")
    assert (sums.holds, sums.metric) == (None, None)
    assert sums.why.startswith("not all ranks recorded elements of step 1, collective 0")


def test_a_sample_that_one_rank_lacks_makes_sums_unknown_unless_it_is_of_the_last_step() -> None:
    run = good_run()
    run[2].remove(at_step(run, 2, 5, "sample"))
    assert judged(run).holds is True
    run[2].remove(at_step(run, 2, 4, "sample"))
    sums = of(judged(run), "sums")
    assert sums.holds is None
    assert sums.why == "not all ranks recorded elements of step 4, collective 0, in attempt 1"
    assert others_hold(judged(run), "sums")


# What is missing


@pytest.mark.parametrize(
    ("take", "why"),
    [
        (lambda line: True, "rank 2 has no record of step 1 in attempt 1"),
        (lambda line: line["kind"] == "begin", "rank 2 has no record of how it began attempt 1"),
        (lambda line: line.get("step") == 3, "rank 2 has no record of step 3 in attempt 1"),
        (lambda line: line["kind"] == "step" and line["step"] > 3, "rank 2 has no record of step 4 in attempt 1"),
    ],
)
def test_nothing_holds_on_missing_records(take: Any, why: str) -> None:
    run = good_run()
    run[2] = [line for line in run[2] if not take(line)]
    checked = judged(run)
    assert {each.holds for each in checked.checkers} == {None}
    assert {each.why for each in checked.checkers} == {why}
    assert set(checked.metrics().values()) == {None}


def test_a_fault_is_known_however_much_is_missing() -> None:
    run = good_run()
    run[2] = []
    at_step(run, 1, 4)["collectives"][1]["crc32"] = "bad"
    checked = judged(run)
    assert of(checked, "sums").holds is False
    assert of(checked, "sums").metric == 1
    assert checked.holds is False


def test_a_rank_that_died_a_step_before_the_others_ended_theirs_is_no_gap() -> None:
    run = good_run()
    run[2] = [line for line in run[2] if line["step"] < 5]
    assert judged(run).holds is True


@pytest.mark.parametrize(
    "line", [{"kind": "step"}, {"kind": "other"}, 7, None, {}, sample(1, [1.0], [1.0]) | {"at": [1, 2]}]
)
def test_what_cannot_be_read_is_counted(line: object) -> None:
    assert read_checks(0, [begin(0), line])[1] == 1


# Hangs


def wait(number: int, sequence: int | None, since_t: float, t: float) -> Line:
    return {"kind": "waits", "attempt": 1, "step": number, "sequence": sequence, "t": t, "since_t": since_t}


def held(since_t: float, t: float) -> Line:
    return {"kind": "held", "attempt": 1, "t": t, "since_t": since_t}


def hung(*waits: tuple[int, Line]) -> Checker:
    """Records of waits in step 6, which no rank ended."""
    run = good_run()
    for rank, line in waits:
        run[rank].append(line)
    checked = judged(run)
    assert others_hold(checked, "hangs")
    return of(checked, "hangs")


def test_who_waited_for_whom() -> None:
    hangs = hung((0, wait(6, 0, 100.7, 102.8)), (2, wait(6, 0, 100.7, 102.9)), (1, wait(6, None, 100.6, 102.7)))
    assert hangs.holds is False
    (found,) = hangs.findings
    assert (found.step, found.sequence, found.ranks) == (6, 0, (1,))
    assert found.text == (
        "ranks 0, 2 waited more than 2.2 s for rank 1: rank 1 was in no collective of step 6 for at least 2.1 s"
    )


def test_a_silent_rank_is_waited_for() -> None:
    (found,) = hung((0, wait(6, 0, 100.7, 102.8)), (2, wait(6, 0, 100.7, 102.9))).findings
    assert found.ranks == (1,)
    assert found.text.endswith("the last record of rank 1 is the end of step 5")


def test_a_rank_that_is_slow_by_itself_hangs_nobody() -> None:
    assert hung((1, wait(6, None, 100.6, 102.7))).holds is True


def test_all_in_it_is_the_network() -> None:
    hangs = hung(*((rank, wait(6, 1, 100.7, 102.8)) for rank in range(WORLD)))
    (found,) = hangs.findings
    assert found.ranks == (0, 1, 2)
    assert "the data in flight between them did not arrive" in found.text


def test_a_rank_that_was_held_while_all_were_in_it_is_named() -> None:
    waits = [(rank, wait(6, 1, 100.7, 105.8)) for rank in range(WORLD)]
    (found,) = hung(*waits, (2, held(100.8, 105.7)), (1, held(90.0, 101.0))).findings
    assert found.ranks == (2,)
    assert "the process of rank 2 did not run for 4.9 s" in found.text


def test_a_collective_that_ended_late_is_a_hang_once_and_the_late_rank_is_named() -> None:
    run = good_run()
    for rank in range(WORLD):
        for collective in at_step(run, rank, 5)["collectives"]:
            collective["began_t"], collective["ended_t"] = 200.0 + 3.0 * (rank == 1), 203.1
    hangs = of(judged(run), "hangs")
    (found,) = hangs.findings
    assert (hangs.metric, found.sequence, found.ranks) == (1, 0, (1,))
    assert found.text == "ranks 0, 2 waited 3.1 s for rank 1, which entered it 3.0 s late"
    run[1].append(held(200.2, 202.9))
    (found,) = of(judged(run), "hangs").findings
    assert found.text.endswith("; the process of rank 1 did not run for 2.7 s of it")


# Parameters


def test_a_rank_on_stale_parameters_is_named_and_how_old_they_are() -> None:
    run = good_run()
    for number in (4, 5):
        at_step(run, 2, number).update(trained_on=f"p{number - 3}", became=f"q{number}")
    checked = judged(run)
    parameters = of(checked, "parameters")
    assert (parameters.holds, parameters.metric) == (False, 2)
    first = parameters.findings[0]
    assert (first.step, first.ranks) == (4, (2,))
    assert first.text == "rank 2 trained on other parameters than ranks 0, 1, namely those after step 1"
    assert others_hold(checked, "parameters")


def test_an_optimizer_that_makes_something_else_of_the_same_is_found() -> None:
    run = good_run()
    at_step(run, 0, 5)["became"] = "q"
    (found,) = of(judged(run), "parameters").findings
    assert (found.step, found.ranks) == (5, (0,))


def second_attempt(run: list[list[Line]], **changes: Any) -> list[list[Line]]:
    """From the checkpoint after step 4."""
    inputs = [[float(rank)] for rank in range(WORLD)]
    for rank, lines in enumerate(run):
        lines += [begin(rank, 2, 4, **(changes if rank == 1 else {}))]
        for number in (5, 6):
            lines += [step(number, 2)]
            lines += [sample(number, inputs[rank], [3.0], attempt=2, sequence=sequence) for sequence in (0, 1)]
    return run


def test_an_attempt_that_begins_as_the_one_before_ended_is_right() -> None:
    assert judged(second_attempt(good_run())).holds is True


def test_an_attempt_that_begins_on_other_parameters_is_found() -> None:
    (found,) = of(judged(second_attempt(good_run(), parameters="p3")), "parameters").findings
    assert (found.attempt, found.step, found.ranks) == (2, 4, (1,))


def test_an_optimizer_that_was_not_restored_is_found() -> None:
    run = second_attempt(good_run(), optimizer_steps=0)
    for number in (5, 6):
        at_step(run, 1, number, attempt=2)["optimizer_steps"] = number - 4
    (found,) = of(judged(run), "updates").findings
    assert (found.attempt, found.step, found.ranks) == (2, 4, (1,))


# Updates


def test_an_optimizer_that_left_a_step_out_is_named() -> None:
    run = good_run()
    for number in (3, 4, 5):
        at_step(run, 1, number)["optimizer_steps"] = number - 1
    checked = judged(run)
    updates = of(checked, "updates")
    assert (updates.holds, updates.metric) == (False, 1)
    (found,) = updates.findings
    assert (found.step, found.ranks) == (3, (1,))
    assert others_hold(checked, "updates")


def test_a_step_that_was_counted_and_changed_nothing_is_found_on_each_rank() -> None:
    run = good_run()
    for rank in range(WORLD):
        at_step(run, rank, 3)["became"] = "p2"
        at_step(run, rank, 4)["trained_on"] = "p2"
    updates = of(judged(run), "updates")
    assert updates.metric == WORLD
    (found,) = updates.findings
    assert (found.step, found.ranks) == (3, (0, 1, 2))
