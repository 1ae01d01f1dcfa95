"""Timing by a common start: which repeats count, are repeated, or end a series; ranks are simulated."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from builders.tables import table

from testbed.core.validation.cases import SpeedSeries
from testbed.core.validation.operation import CollectiveOperation, Group
from testbed.core.validation.output_judge import RankAnswer
from testbed.lab.validation import performance
from testbed.lab.validation.library_session import Performed

TOOK_S = 0.25
Answers = Callable[[float], dict[int, RankAnswer]]


def done(late_s: float = 0.0) -> Answers:
    """Rank 1 is done last, and begins ``late_s`` after the common start."""
    return lambda at: {
        0: RankAnswer("done", None, at + 1e-5, at + TOOK_S / 2),
        1: RankAnswer("done", None, at + 1e-5 + late_s, at + TOOK_S),
    }


def unlike(answer: RankAnswer) -> Answers:
    return lambda at: {0: RankAnswer("done", None, at, at + 1), 1: answer}


class Session:
    """Answer as ``plan`` lists, then as ``done()``; record the operations."""

    world = Group("world", (0, 1))

    def __init__(self, *plan: Answers) -> None:
        self.plan = list(plan)
        self.asked: list[tuple[int, float | None]] = []

    def ready(self) -> None:
        return None

    def perform(self, operations: Sequence[tuple[CollectiveOperation, Group]], *, at: float | None = None) -> Performed:
        ((operation, _),) = operations
        self.asked.append((operation.call, at))
        behave = self.plan.pop(0) if self.plan else done()
        return Performed(behave(performance.time.monotonic() if at is None else at), 0.0)


class Wire:
    """Counters that grow from one operation to the next."""

    def __init__(self) -> None:
        self.counts = 0

    @contextlib.contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        crossed: dict[str, int] = {}
        yield crossed
        self.counts += 1
        crossed.update({"north:east": 1000 * self.counts, "north:west": 0})


def series(repeats: int = 5) -> SpeedSeries:
    return SpeedSeries(
        "all_reduce", 4000, tuple(CollectiveOperation("all_reduce", 10 + it, count=1000) for it in range(repeats + 1))
    )


def measured(session: Session, **fields: Any) -> performance.Measured:
    return performance.measure(session, Wire(), series(**fields))  # type: ignore[arg-type]


def test_time_is_from_the_common_start_to_the_last_rank() -> None:
    session = Session()
    found = measured(session)
    assert found.times_s == pytest.approx([TOOK_S] * 5)
    assert [call for call, _ in session.asked] == [10 + performance.MORE_CALLS, 10, 11, 12, 13, 14, 15]
    assert [at is None for _, at in session.asked] == [True] * 2 + [False] * 5
    assert found.crossing == {"north:east": 5000, "north:west": 0}  # the third to the seventh: 3000 … 7000
    assert (found.trouble, found.unsupported, found.late) == ("", "", 0)


def test_a_program_that_is_compiled_once_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(performance.time, "monotonic", lambda: 100.0)
    session = Session(lambda at: done()(at + 30.0), lambda at: done()(at + 0.2))
    measured(session)
    leads = [at - 100.0 for _, at in session.asked if at is not None]
    assert leads == pytest.approx([performance.LEAST_LEAD_S + performance.LEAD * 0.2] * 5, rel=1e-3)


def test_repeat_that_a_rank_came_late_to_is_done_again_with_another_number() -> None:
    session = Session(done(), done(), done(), done(late_s=0.1))
    found = measured(session)
    assert len(found.times_s) == 5 and found.late == 1
    calls = [call for call, _ in session.asked]
    assert calls == [10 + performance.MORE_CALLS, 10, 11, 12, 13, 14, 15, 12 + performance.MORE_CALLS]
    assert len(set(calls)) == len(calls)


def test_series_ends_where_ranks_always_come_late() -> None:
    found = measured(Session(*[done(late_s=0.1)] * 50))
    assert len(found.times_s) == 5 and found.late == performance.MOST_LATE


def test_rank_that_does_not_wait_has_no_time() -> None:
    found = measured(Session(done(), done(), done(late_s=-0.1)))
    assert found.times_s == () and "did not wait" in found.trouble


@table(
    "answer, trouble",
    {
        "a rank fails": (RankAnswer("error", message="broken"), "rank 1 failed: broken"),
        "a rank hangs": (RankAnswer("silent"), "rank 1 never answered"),
        "a rank dies": (RankAnswer("died", message="was killed by SIGSEGV"), "rank 1 ended: was killed by SIGSEGV"),
    },
)
def test_times_before_a_failure_stay(answer: RankAnswer, trouble: str) -> None:
    found = measured(Session(done(), done(), done(), done(), unlike(answer)))
    assert (len(found.times_s), found.trouble) == (2, trouble)


def test_refusal_is_no_trouble() -> None:
    found = measured(Session(unlike(RankAnswer("unsupported", message="not so large"))))
    assert (found.unsupported, found.trouble, found.times_s) == ("not so large", "", ())


def test_a_series_that_takes_too_long_ends_with_some_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(4.0, 4.0)
    monkeypatch.setattr(performance.time, "monotonic", lambda: next(clock))
    found = measured(Session(), repeats=20)
    assert performance.LEAST_REPEATS <= len(found.times_s) < 20
