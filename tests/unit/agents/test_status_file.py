"""The status: all ranks end after the same step, whenever and of whomever an order is asked."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from testbed_agents.records import RecordsError
from testbed_agents.status_file import Order, StatusFile


def in_threads(call: Callable[[int], Any], ranks: int) -> list[Any]:
    """Return the results of ``call(rank)`` of all ranks at once."""
    with ThreadPoolExecutor(ranks) as pool:
        return [*pool.map(call, range(ranks), timeout=60)]


@pytest.fixture
def statuses(tmp_path: Path) -> list[StatusFile]:
    return [StatusFile(tmp_path / "folder" / "status", rank, 4) for rank in range(4)]


def test_an_order_names_the_newest_step_that_any_rank_has_entered(statuses: list[StatusFile]) -> None:
    for rank, step in enumerate((3, 7, 5, 7)):
        assert statuses[rank].enter(step) == ""
    assert statuses[0].enter(4, "stop") == "", "it has not reached step 7 yet"
    assert statuses[1].enter(8) == "stop"
    for step in (6, 7):
        assert statuses[2].enter(step) == ""
    assert statuses[2].enter(8) == "stop"
    assert statuses[3].enter(8, "save") == "stop", "the first order stands"


@pytest.mark.parametrize("order", ["stop", "save"])
def test_an_order_is_obeyed_at_once_by_ranks_that_are_level(statuses: list[StatusFile], order: Order) -> None:
    for status in statuses:
        assert status.enter(1) == ""
    assert [status.enter(2, order if rank == 2 else "") for rank, status in enumerate(statuses)] == [""] * 4
    # Ranks 0 and 1 had entered step 2 before rank 2 was asked; so all end after step 2.
    assert [status.enter(3) for status in statuses] == [order] * 4


@pytest.mark.parametrize("seed", range(5))
def test_all_ranks_end_after_the_same_step_at_whatever_pace(tmp_path: Path, seed: int) -> None:
    """Threads with statuses of their own: flock(2) excludes open files, not processes."""
    chance = random.Random(seed)
    ranks = 6
    statuses = [StatusFile(tmp_path / "status", rank, ranks) for rank in range(ranks)]
    asked = {chance.randrange(ranks): chance.randrange(1, 60) for _ in range(2)}

    def run(rank: int) -> tuple[int, Order]:
        pace = random.Random(seed * 100 + rank)
        step = 0
        while step < 10_000:
            wish: Order = "stop" if asked.get(rank, 10_001) <= step else ""
            if order := statuses[rank].enter(step + 1, wish):
                return step, order
            step += 1
            for _ in range(pace.randrange(300)):
                pass
        raise AssertionError(f"rank {rank} did not end")

    ends = in_threads(run, ranks)
    assert len(set(ends)) == 1, ends


def test_times_and_losses_are_those_of_the_step(statuses: list[StatusFile]) -> None:
    for rank, status in enumerate(statuses[:3]):
        status.publish(5, ready_t=10.0 + rank, updated_t=20.0, loss=1.0 + rank)
    assert statuses[0].gradients_lag_s(5, range(4)) == 2.0
    assert statuses[2].gradients_lag_s(5, range(4)) == 0.0
    assert statuses[0].gradients_lag_s(5, (0, 1)) == 1.0, "of those that step together only"
    assert statuses[3].gradients_lag_s(5, range(4)) == 0.0, "its own time is not known"
    assert statuses[0].update_lag_s(5, range(4)) == 0.0
    assert statuses[3].mean_loss(5, range(4)) == 2.0
    statuses[0].publish(6, loss=9.0)
    assert statuses[1].mean_loss(5, range(4)) == 2.0, "the step before is kept"
    for step in range(6, 10):
        statuses[0].publish(step, loss=9.0)
    assert statuses[1].mean_loss(5, (0,)) != 9.0
    assert math.isnan(statuses[1].mean_loss(5, (0,))), "overwritten after four steps"


def test_a_note_that_is_being_written_again_is_seen_whole(tmp_path: Path) -> None:
    """By another process, while its owner adds what it knows: never as zeros."""
    program = (
        "import sys; from pathlib import Path; from testbed_agents.status_file import StatusFile\n"
        "status = StatusFile(Path(sys.argv[1]), 1, 2)\n"
        "for _ in range(100_000): status.publish(5, ready_t=10.0, updated_t=20.0, loss=2.0)\n"
    )
    status = StatusFile(tmp_path / "status", 0, 2)
    status.publish(5, ready_t=4.0)
    child = subprocess.Popen([sys.executable, "-c", program, status.path])
    losses: list[float] = []
    later: list[float] = []
    while child.poll() is None:  # the two are read one after the other, so each has its own order
        for seen, noted in ((losses, status.mean_loss(5, (1,))), (later, status.gradients_lag_s(5, (1,)))):
            if repr(noted) not in map(repr, seen[-1:]):
                seen.append(noted)
    assert child.returncode == 0
    assert losses[-1:] == [2.0] and all(map(math.isnan, losses[:-1])), "first nothing, then the loss"
    assert later[-1:] == [6.0] and later[:-1] in ([], [0.0]), "first nothing, then the time"


def test_what_all_ranks_have_saved_is_what_the_last_one_has(statuses: list[StatusFile]) -> None:
    assert [status.saved(300) for status in statuses] == [0, 0, 0, 0]
    assert [status.saved(600) for status in statuses[:2]] == [300, 300]
    assert statuses[0].saved(900) == 300, "two ranks are still at step 300"
    assert [status.saved(600) for status in statuses[2:]] == [300, 300]
    assert statuses[3].saved(900) == 600


def test_a_loss_that_is_no_number_is_not_an_unknown_one(statuses: list[StatusFile]) -> None:
    statuses[0].publish(1, loss=math.nan)
    statuses[1].publish(1, ready_t=1.0)
    assert math.isinf(statuses[2].mean_loss(1, range(4)))
    assert math.isnan(statuses[2].mean_loss(1, (1, 2, 3)))


def test_a_status_file_needs_no_name_once_all_have_it(statuses: list[StatusFile]) -> None:
    statuses[0].unlink()
    statuses[0].unlink()
    assert list(statuses[0].path.parent.iterdir()) == []
    assert statuses[1].enter(1, "save") == "save", "no rank has entered a step, so none is run"
    for status in statuses:
        status.close()
        status.close()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordsError, match="cannot write"):
        StatusFile(tmp_path / "file" / "status", 0, 2)


def test_all_ranks_leave_a_meeting_with_the_last_time_and_the_greatest_value(statuses: list[StatusFile]) -> None:
    def meet(rank: int) -> list[tuple[float, float]]:
        chance, meetings = random.Random(rank), []
        for number in range(1, 30):
            time.sleep(chance.random() / 1000)
            meetings.append(statuses[rank].barrier(number, number + chance.random() * rank, 10.0))
        return meetings

    began_t = time.monotonic()
    meetings, *others = in_threads(meet, 4)
    assert others == [meetings] * 3
    times = [came_t for came_t, _ in meetings]
    assert [began_t, *times] == sorted([began_t, *times])
    assert all(number <= value < number + 3 for number, (_, value) in enumerate(meetings, 1))


def test_a_rank_that_does_not_come_to_a_meeting_is_named(statuses: list[StatusFile]) -> None:
    with pytest.raises(RuntimeError, match=r"rank 1 did not reach a barrier within 0\.01 s"):
        statuses[0].barrier(1, 0.0, 0.01)
