"""Who restarts a job, before a keeper that is made up: what it asks, and what it makes of the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.tables import table
from oracles import oracle

from testbed.errors import LabError
from testbed.host.files import catalog
from testbed.host.lab_folder import LabFolder
from testbed.keeper.subscription import LabState
from testbed.lab.jobs import attempts
from testbed.lab.jobs.attempts import Attempts

EVACUATION = "evacuation west"


class Keeper:
    """Answers what a keeper is asked; ``ranks`` are four, on metro-40km."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stops: list[tuple[str, bool]] = []
        """Each request to stop the ranks: the job, and whether with a checkpoint."""
        self.dark: list[str] = []
        self.unheard: list[tuple[str, str]] = []
        self.gone = False
        self.ranks = [
            {"rank": rank, "node": f"{site}-{rank % 2}", "site": site, "state": "waiting", "down": False, "warned": ""}
            for rank, site in enumerate(("east", "east", "west", "west"))
        ]

    def train(self, *, message: dict[str, Any]) -> None:
        self.all(state="training", saved=False, job="j1")

    def stop_ranks(self, *, job: str, save: bool = False) -> None:
        with self.lock:
            self.stops.append((job, save))
        if not save:
            self.all(only="training", state="stopped", reason="asked to", ended_t=1.0)

    def unreachable_sites(self) -> list[tuple[str, str]]:
        return self.unheard

    def add_event(self, *, event: str, fields: dict[str, Any]) -> None:
        """Accept an event."""

    def await_restart(self, *, why: str) -> None:
        """Accept the reason."""

    def all(self, only: str = "", **values: Any) -> None:
        """Set these values of all ranks, or of those in the state ``only``."""
        with self.lock:
            for rank in self.ranks:
                if only in ("", rank["state"]):
                    rank.update(values)

    def rank(self, number: int, **values: Any) -> None:
        with self.lock:
            self.ranks[number].update(values)


class Connection:
    """A conversation with it."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        return None


class Subscription:
    """What it pushes: always its present state."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def state(self, after_t: float = 0.0) -> LabState:
        with self._keeper.lock:
            if self._keeper.gone:
                raise LabError("the keeper does not answer")
            ranks: Any = tuple(map(dict, self._keeper.ranks))
            return LabState(time.monotonic(), ranks, tuple(self._keeper.dark))

    def wait(self, timeout_s: float) -> LabState:
        time.sleep(min(timeout_s, 0.002))
        return self.state()

    def close(self) -> None:
        return None


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    made = Keeper()
    monkeypatch.setattr(attempts.client, "keeper", lambda lab: made)
    monkeypatch.setattr(attempts.client, "answers", lambda lab: True)
    monkeypatch.setattr(attempts.client, "Connection", lambda lab: Connection(made))
    monkeypatch.setattr(attempts, "Subscription", lambda lab: Subscription(made))
    monkeypatch.setattr(attempts, "SETTLE_S", 0.002)
    return made


def until(condition: Callable[[], object], description: str) -> None:
    oracle.until(condition, 5.0, description)


@pytest.fixture
def noted() -> list[dict[str, Any]]:
    """The attempts in run.json."""
    return []


Begin = Callable[..., Attempts]


@pytest.fixture
def begin(keeper: Keeper, noted: list[dict[str, Any]], tmp_path: Path) -> Iterator[Begin]:
    """``begin(restarts)`` begins a job; at the end of the test its ranks finish."""
    begun: list[Attempts] = []

    def run(restarts: int) -> Attempts:
        job = Attempts(
            LabFolder(tmp_path / "lab"),
            catalog.load_topology("metro-40km", None),
            {"job": "j1", "world_size": 4},
            tmp_path,
            stall_s=60.0,
            committed=lambda: 7,
            restarts=restarts,
            note=lambda attempts: noted.__setitem__(slice(None), map(dict, attempts)),
        )
        begun.append(job)
        return job

    yield run
    keeper.all(state="finished")
    for job in begun:
        until(lambda job=job: job.over, "the job is over")  # type: ignore[misc]


@pytest.fixture
def job(begin: Begin) -> Attempts:
    return begin(0)


def warn(keeper: Keeper) -> None:
    keeper.all(warned=EVACUATION)
    until(lambda: keeper.stops, "the ranks are warned")
    assert keeper.stops == [("j1", True)]


def begin_again(keeper: Keeper, job: Attempts) -> None:
    keeper.all(down=False, state="waiting")
    until(lambda: job.number == 2, "it begins again")


def test_warned_job_leaves_in_order_and_spends_no_restart(
    keeper: Keeper, job: Attempts, noted: list[dict[str, Any]]
) -> None:
    warn(keeper)
    keeper.all(state="saved", saved=True)
    until(lambda: job.waiting == f"{EVACUATION}: a power loss is imminent", "it waits")
    keeper.all(warned="", down=True)
    until(lambda: job.waiting == "a fault keeps ranks 0, 1, 2, 3 down", "for the power")
    begin_again(keeper, job)
    assert job.failure == ""
    first, second = noted
    expected = {"attempt": 1, "in_order": True, "step": 7, "cause": EVACUATION}
    assert {name: first.get(name) for name in expected} == expected
    assert second["ended_t"] is None


def test_state_that_was_saved_before_the_power_went_is_saved(keeper: Keeper, job: Attempts) -> None:
    """Both may happen between two looks."""
    warn(keeper)
    keeper.all(warned="", down=True, state="gone", reason="down by a fault", ended_t=2.0, saved=True)
    until(lambda: job.waiting, "it waits")
    begin_again(keeper, job)


def test_rank_that_has_not_saved_is_a_failure(keeper: Keeper, job: Attempts, noted: list[dict[str, Any]]) -> None:
    warn(keeper)
    with keeper.lock:
        keeper.all(state="saved", saved=True)
        keeper.rank(2, state="gone", reason="down by a fault", ended_t=2.0, saved=False)
    until(lambda: job.over, "no restart is allowed")
    assert job.failure == "rank 2 on west-0 gone: down by a fault"
    assert [(attempt["in_order"], attempt["why"]) for attempt in noted] == [(False, job.failure)]


def test_job_that_is_stopped_while_it_leaves_does_not_begin_again(keeper: Keeper, job: Attempts) -> None:
    warn(keeper)
    job.stop()
    keeper.all(state="saved", saved=True)
    until(lambda: job.over, "it is over")
    assert job.number == 1


def test_sites_that_do_not_reach_each_other_are_waited_for(keeper: Keeper, begin: Begin) -> None:
    job = begin(1)
    with keeper.lock:
        keeper.unheard = [("east", "west")]
        keeper.rank(0, state="failed", reason="timed out", ended_t=1.0)
    until(lambda: job.waiting == "east and west do not reach each other", "it waits")
    with keeper.lock:
        keeper.dark, keeper.unheard = ["north", "south"], []
    until(lambda: "not connected while north, south are dark" in job.waiting, "for another reason")
    assert job.number == 1
    with keeper.lock:
        keeper.dark = ["north"]
    until(lambda: job.number == 2, "it begins")


def test_keeper_that_is_gone_ends_the_job(keeper: Keeper, job: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lab: LabFolder) -> None:
        raise LabError("the keeper does not answer")

    monkeypatch.setattr(attempts.client, "keeper", refuse)
    keeper.gone = True
    until(lambda: job.over, "it is over")
    assert job.failure == "the keeper does not answer"


@pytest.mark.parametrize("storage", [True, False])
def test_full_disk_is_no_measured_failure(keeper: Keeper, job: Attempts, storage: bool) -> None:
    """One rank's disk takes no more; the others only lose a peer."""
    with keeper.lock:
        keeper.all(state="failed", reason="a peer hung up", ended_t=2.0)
        keeper.rank(1, reason="cannot write rank-1.jsonl", ended_t=1.0, storage=storage)
    until(lambda: job.over, "the job is over")
    assert job.failure.endswith("cannot write rank-1.jsonl")
    assert job.storage is storage


def test_job_is_over_when_all_ranks_have_ended_and_none_writes_afterwards(
    keeper: Keeper, job: Attempts, tmp_path: Path
) -> None:
    keeper.rank(3, state="gone", reason="was killed by SIGKILL", ended_t=1.0)
    until(lambda: job.over, "no restart is allowed")
    assert keeper.stops == [("j1", False)]
    assert [rank["state"] for rank in keeper.ranks] == ["stopped", "stopped", "stopped", "gone"]
    assert int((tmp_path / "attempt").read_text()) > job.number


def test_job_that_is_stopped_while_its_ranks_are_started_ends(
    keeper: Keeper, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = begin(1)

    train = keeper.train

    def stop_and_train(*, message: dict[str, Any]) -> None:
        job.stop()  # no rank trains yet that it could reach
        train(message=message)

    monkeypatch.setattr(keeper, "train", stop_and_train)
    keeper.rank(0, state="failed", reason="timed out", ended_t=1.0)
    until(lambda: job.over, "it is over")
    assert job.number == 2
    assert "training" not in {rank["state"] for rank in keeper.ranks}


def test_full_disk_spends_no_restart(keeper: Keeper, begin: Begin) -> None:
    job = begin(3)
    keeper.rank(1, state="failed", reason="cannot write rank-1.jsonl", ended_t=1.0, storage=True)
    until(lambda: job.over, "the job is over")
    assert (job.number, job.storage) == (1, True)


TIMED_OUT = "step 5: Timed out waiting 5000ms"


@table(
    "state, reason, failure",
    {
        "a rank that does not run is named before one that waited for it": (
            "failed",
            TIMED_OUT,
            f"rank 3 on west-1 is suspended by a signal (SIGSTOP); rank 0 on east-0 failed: {TIMED_OUT}",
        ),
        "a rank that is gone is the reason whatever else does not run": (
            "gone",
            "was killed by SIGKILL",
            "rank 0 on east-0 gone: was killed by SIGKILL",
        ),
    },
)
def test_failure_beside_a_suspended_rank(keeper: Keeper, job: Attempts, state: str, reason: str, failure: str) -> None:
    with keeper.lock:
        keeper.rank(3, suspended=True)
        keeper.rank(0, state=state, reason=reason, ended_t=1.0)
    until(lambda: job.over, "the job is over")
    assert job.failure == failure
