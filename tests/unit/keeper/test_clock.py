"""The keeper's clocks: work when it is due, in order, and none of an owner whose work was dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from oracles import oracle

from testbed.keeper.clock import Clock

BOUND_S = 5.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    made, ended = Clock(), threading.Event()
    thread = threading.Thread(target=made.run, args=(ended,), daemon=True)
    thread.start()
    yield made
    ended.set()
    made.at(0.0, lambda: None)
    thread.join(BOUND_S)
    assert not thread.is_alive()


def test_work_of_one_time_is_done_in_the_order_in_which_it_was_added(clock: Clock) -> None:
    done, due_t = list[int](), time.monotonic() + 0.05
    for number in (1, 2, 3):
        clock.at(due_t, partial(done.append, number))
    clock.at(due_t - 0.02, lambda: done.append(0))
    oracle.until(lambda: len(done) == 4, BOUND_S, "all is done")
    assert done == [0, 1, 2, 3] and time.monotonic() >= due_t


def test_failed_work_keeps_no_other_from_its_time(clock: Clock) -> None:
    def fail() -> None:
        raise ValueError("no")

    done = threading.Event()
    clock.at(0.0, fail)
    clock.at(0.0, done.set)
    assert done.wait(BOUND_S)


def test_no_work_of_an_owner_begins_once_it_was_dropped(clock: Clock) -> None:
    mine, other = object(), object()
    done, begun, hold = list[str](), threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        hold.wait(BOUND_S)
        done.append("slow")

    clock.at(0.0, slow, mine)
    clock.at(0.0, lambda: done.append("dropped"), mine)
    clock.at(0.0, lambda: done.append("kept"), other)
    assert begun.wait(BOUND_S)
    dropping = threading.Thread(target=clock.cancel, args=(mine,))
    dropping.start()
    dropping.join(0.05)
    assert dropping.is_alive(), "it waits for work in progress"
    hold.set()
    dropping.join(BOUND_S)
    assert not dropping.is_alive()
    oracle.until(lambda: done == ["slow", "kept"], BOUND_S, "the other's work is done")


def test_clock_ends_with_the_engine() -> None:
    def refuse() -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    clock, run = Clock(), list[Callable[[], object]]()
    clock.at(0.0, refuse)
    clock.at(0.0, lambda: run.append(print))
    clock.run(threading.Event())
    assert run == []
