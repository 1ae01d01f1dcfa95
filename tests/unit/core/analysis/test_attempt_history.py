"""The cost of attempts, against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from builders.tables import table
from builders.wire_records import sample

from testbed.core.analysis import attempt_history
from testbed.core.analysis.commits import commits
from testbed.core.analysis.goodput import evaluate
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.analysis.wire import wire_check
from testbed.core.records.event import Event
from testbed.core.records.rank_log import RankLog, read_rank

SITES = ("east", "west")


def job(attempt: int, t: float, rank: int = 0, resumed_from: int = 0, world_size: int = 2) -> dict[str, Any]:
    return {
        "kind": "job", "attempt": attempt, "t": t, "rank": rank, "world_size": world_size, "node": f"{SITES[rank]}-0",
        "site": SITES[rank], "scheme": "ddp", "gradient_bytes": 1000, "steps": 8, "resumed_from": resumed_from,
    }  # fmt: skip


def step(attempt: int, number: int, t_end: float) -> dict[str, Any]:
    times = {"t_begin": t_end - 1.0, "t_ready": t_end - 0.5, "t_sync": t_end - 0.2, "t_end": t_end}
    return {"kind": "step", "attempt": attempt, "step": number, "tokens": 10, "train_loss": 1.0, **times}


def end(attempt: int, t: float, status: str, reason: str, step: int) -> dict[str, Any]:
    return {"kind": "end", "t": t, "attempt": attempt, "status": status, "reason": reason, "step": step}


def read(rank: int, lines: list[dict[str, Any]]) -> RankLog:
    log, malformed = read_rank(rank, lines)
    assert not malformed
    return log


FIRST = [step(1, number, 100.0 + number) for number in range(1, 8)]
SECOND = [step(2, number, 117.0 + number) for number in range(5, 9)]


def logs(late: Sequence[dict[str, Any]] = ()) -> list[RankLog]:
    """Two ranks. Attempt 1 begins at 100 and does steps 1 to 6, rank 0 step 7 too; attempt 2 goes on from 4 at 120 and
    does 5 to 8. A step takes a second."""
    return [
        read(
            rank,
            [
                job(1, 100.0, rank),
                *FIRST[: 7 - rank],
                end(1, 109.0, "failed", "lost", 6),
                job(2, 120.0, rank, 4),
                *SECOND,
                end(2, 125.2, "ok", "", 8),
                *late,
            ],
        )
        for rank in (0, 1)
    ]


ENDED = Event(110.0, "attempt-ended", {"attempt": 1, "why": "rank 1 failed", "detected_t": 110.0, "step": 6})


def evaluated(events: list[Event], windows: list[FaultWindow]) -> tuple[attempt_history.Attempt, ...]:
    mine = attempt_history.fenced(logs())
    return attempt_history.evaluate(mine, events, windows, evaluate(mine, windows))


def test_evaluate_cost_of_an_attempt() -> None:
    window = FaultWindow("f1", "cut", "north", ("north",), 107.0, 119.0)
    first, second = evaluated([ENDED], [window])
    assert (first.number, first.began_t, first.ended_t, first.resumed_from) == (1, 100.0, 110.0, 0)
    assert (first.steps_committed, first.steps_lost) == (4, 3)  # 1 to 4; 5 and 6, and 7 of one rank
    assert (first.why, first.cause, first.detection_s) == ("rank 1 failed", "cut north", 3.0)
    assert first.time_to_resume_s == 12.0  # step 5 is committed at 122
    assert first.goodput == pytest.approx(4 / 10)  # four steps of a second each, of ten seconds
    assert [(it.site, it.ranks, it.stood_still_s) for it in first.blast] == [
        ("east", (0,), 14.0),  # it ended step 7 at 107 and began step 5 at 121
        ("west", (1,), 15.0),
    ]
    assert (second.number, second.resumed_from, second.steps_committed, second.steps_lost) == (2, 4, 4, 0)
    assert (second.why, second.detection_s, second.time_to_resume_s, second.blast) == ("", None, None, ())


@table(
    "died_t, written_t, cause, detection_s, lost",
    {
        "the death of a process is the cause": (109.5, 110.0, "rank 1 died", 0.5, [(), (1,)]),
        # Peers of a killed rank see its connections close some milliseconds before its end is reported, and the end of
        # the attempt is written down a moment after the detection at 110.
        "so is one that peers notice before it is reported": (110.02, 110.1, "rank 1 died", 0.0, [(), (1,)]),
        "one that was ended by what followed the attempt is not": (110.2, 110.1, "", None, None),
    },
)
def test_evaluate_cause_without_a_fault(died_t, written_t, cause, detection_s, lost) -> None:
    died = Event(died_t, "rank-died", {"rank": 1, "pid": 7, "signal": 9})
    ended = replace(ENDED, t=written_t)
    first, _ = evaluated(sorted([died, ended], key=lambda event: event.t), [])
    assert first.cause == cause
    if cause:
        assert first.detection_s == detection_s
        assert [blast.lost_ranks for blast in first.blast] == lost


def test_evaluate_attempt_that_left_in_order_lost_nothing_and_detected_nothing() -> None:
    """Attempt 1 was warned, saved its state after step 4 and left; the site lost its power later."""
    saved = end(1, 104.5, "saved", "asked to", 4)
    rows = [read(rank, [job(1, 100.0, rank), *FIRST[:4], saved, job(2, 120.0, rank, 4), *SECOND]) for rank in (0, 1)]
    left = {"attempt": 1, "why": "left", "cause": "evacuation west", "in_order": True, "detected_t": 104.6, "step": 4}
    windows = [
        FaultWindow("f1", "evacuation", "west", (), 103.2, 119.0),
        FaultWindow("f2", "flap", "x", (), 103.9, 104),
    ]
    found = evaluate(rows, windows)
    first_, second_ = attempt_history.evaluate(rows, [Event(104.6, "attempt-ended", left)], windows, found)
    assert (first_.in_order, first_.cause, first_.steps_lost, first_.steps_committed) == (True, "evacuation west", 0, 4)
    assert (first_.detection_s, first_.time_to_resume_s) == (None, pytest.approx(17.4))
    assert (second_.in_order, found.steps_lost, found.failures) == (False, 0, ())


def test_evaluate_fault_that_was_over_before_the_attempt_is_no_cause() -> None:
    first, _ = evaluated([ENDED], [FaultWindow("f1", "cut", "north", ("north",), 90.0, 95.0)])
    assert (first.cause, first.detection_s) == ("", None)


def test_fenced_has_only_the_lineage_of_the_last_parameters_is_committed() -> None:
    found = evaluate(attempt_history.fenced(logs()), [])
    assert [(it.step, it.attempt, it.resumed) for it in found.commits] == [
        *((number, 1, False) for number in (1, 2, 3, 4)),
        (5, 2, True),
        *((number, 2, False) for number in (6, 7, 8)),
    ]
    assert found.steps_lost == 3
    # The pace is that of the other steps: what lies between 4 and 5 is no step.
    assert found.fault_free_s_per_token == pytest.approx(1 / 20)
    assert found.goodput == pytest.approx(8 * 1.0 / 25.2)
    assert found.failures == ()  # attempt 1's was made good


def test_commits_of_a_last_attempt_that_dies_early_lose_what_was_beyond_its_checkpoint() -> None:
    done = [step(1, number, float(number)) for number in range(1, 7)]
    log = read(0, [job(1, 0.0, world_size=1), *done, job(2, 20.0, resumed_from=4, world_size=1), step(2, 5, 22.0)])
    assert [commit.step for commit in commits([log], 1)] == [1, 2, 3, 4, 5]


def test_fenced_drops_what_an_old_attempt_writes_late() -> None:
    woke = [
        step(1, 8, 123.0),
        {"kind": "checkpoint", "attempt": 1, "t": 123.5, "step": 8, "bytes": 9, "took_s": 0.1},
        end(1, 124.0, "failed", "woke", 8),
    ]
    late, clean = attempt_history.fenced(logs(woke)), attempt_history.fenced(logs())
    assert late == clean
    assert len(logs(woke)[0].steps) == len(clean[0].steps) + 1  # it was there


def test_wire_check_expects_the_steps_of_all_attempts() -> None:
    counts = ((99.0, 0), (126.0, 30_000))
    fibers = [sample(t, count, f"north:{site}") for t, count in counts for site in SITES]
    found = wire_check.check(attempt_history.fenced(logs()), fibers)
    assert found.steps == 10  # six that both did in attempt 1, four in attempt 2; the one that one rank did is left out
    assert found.minimum_bytes == 2 * 10 * 1000


def test_evaluate_job_that_never_began_has_no_attempts() -> None:
    assert attempt_history.evaluate([], [], [], evaluate([], [])) == ()
