"""Who restarts a job, before a keeper that is made up: what it asks, and what it makes of the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from oracles import oracle

from testbed.errors import LabError
from testbed.host.files import catalog
from testbed.host.lab_folder import LabFolder
from testbed.keeper import protocol
from testbed.keeper.protocol import Request
from testbed.keeper.subscription import LabState
from testbed.lab.jobs import attempts
from testbed.lab.jobs.attempts import Attempts

R = TypeVar("R")
EVACUATION = "evacuation west"


class Keeper:
    """Answers what a keeper is asked; ``ranks`` are four, on metro-40km."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.said: list[Request[Any]] = []
        self.dark: list[str] = []
        self.unheard: list[tuple[str, str]] = []
        self.gone = False
        self.ranks = [
            {"rank": rank, "node": f"{site}-{rank % 2}", "site": site, "state": "waiting", "down": False, "warned": ""}
            for rank, site in enumerate(("east", "east", "west", "west"))
        ]

    def ask(self, lab: LabFolder, request: Request[Any]) -> Any:
        with self.lock:
            self.said.append(request)
            match request:
                case protocol.Train():
                    self._all(state="training", saved=False, job="j1")
                case protocol.StopJob(save=False):
                    self._all(only="training", state="stopped", reason="asked to", ended_t=1.0)
                case protocol.UnreachableSites():
                    return self.unheard
            return []

    def all(self, only: str = "", **values: Any) -> None:
        with self.lock:
            self._all(only, **values)

    def _all(self, only: str = "", **values: Any) -> None:
        for rank in self.ranks:
            if only in ("", rank["state"]):
                rank.update(values)

    def asked(self, kind: type[R]) -> list[R]:
        with self.lock:
            return [it for it in self.said if isinstance(it, kind)]


class Connection:
    """A conversation with it."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def ask(self, request: Request[Any]) -> Any:
        return self._keeper.ask(LabFolder(Path()), request)


class Subscription:
    """What it pushes: always its present state."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def state(self, after_t: float = 0.0) -> LabState:
        with self._keeper.lock:
            if self._keeper.gone:
                raise LabError("the keeper does not answer")
            ranks: Any = tuple(dict(it) for it in self._keeper.ranks)
            return LabState(time.monotonic(), ranks, tuple(self._keeper.dark))

    def wait(self, timeout_s: float) -> LabState:
        time.sleep(min(timeout_s, 0.002))
        return self.state()

    def close(self) -> None:
        return None


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Keeper:
    made = Keeper()
    monkeypatch.setattr(attempts.client, "ask", made.ask)
    monkeypatch.setattr(attempts.client, "answers", lambda lab: True)
    monkeypatch.setattr(attempts.client, "Connection", lambda lab: Connection(made))
    monkeypatch.setattr(attempts, "Subscription", lambda lab: Subscription(made))
    monkeypatch.setattr(attempts, "SETTLE_S", 0.002)
    return made


@pytest.fixture
def noted() -> list[dict[str, Any]]:
    """What run.json says."""
    return []


def begun(folder: Path, **more: Any) -> Attempts:
    return Attempts(
        LabFolder(folder / "lab"),
        catalog.load_topology("metro-40km", None),
        {"job": "j1", "world_size": 4},
        folder,
        stall_s=60.0,
        committed=lambda: 7,
        **more,
    )


@pytest.fixture
def job(keeper: Keeper, noted: list[dict[str, Any]], tmp_path: Path) -> Iterator[Attempts]:
    def note(found: Any) -> None:
        noted[:] = [dict(it) for it in found]

    made = begun(tmp_path, restarts=0, note=note)
    yield made
    keeper.all(state="finished")
    oracle.until(lambda: made.over, 5.0, "the job is over")


def warned(keeper: Keeper) -> None:
    keeper.all(warned=EVACUATION)
    oracle.until(lambda: keeper.asked(protocol.StopJob), 5.0, "the ranks are told")
    assert keeper.asked(protocol.StopJob) == [protocol.StopJob(job="j1", save=True)]


def test_a_warned_job_leaves_in_order_and_spends_no_restart(
    keeper: Keeper, job: Attempts, noted: list[dict[str, Any]]
) -> None:
    warned(keeper)
    keeper.all(state="saved", saved=True)
    oracle.until(lambda: job.waiting == f"{EVACUATION}: a power loss is imminent", 5.0, "it waits")
    keeper.all(warned="", down=True)
    oracle.until(lambda: job.waiting == "a fault keeps ranks 0, 1, 2, 3 down", 5.0, "for the power")
    keeper.all(down=False, state="waiting")
    oracle.until(lambda: job.number == 2, 5.0, "it begins again")
    assert job.failure == ""
    assert [(it["attempt"], it["in_order"], it["step"], it.get("cause")) for it in noted[:1]] == [
        (1, True, 7, EVACUATION)
    ]
    assert noted[1]["ended_t"] is None


def test_what_was_saved_before_the_power_went_is_saved(keeper: Keeper, job: Attempts) -> None:
    """Both may happen between two looks."""
    warned(keeper)
    keeper.all(warned="", down=True, state="gone", reason="down by a fault", ended_t=2.0, saved=True)
    oracle.until(lambda: job.waiting, 5.0, "it waits")
    keeper.all(down=False, state="waiting")
    oracle.until(lambda: job.number == 2, 5.0, "it begins again")


def test_where_one_rank_has_not_saved_it_is_a_failure(
    keeper: Keeper, job: Attempts, noted: list[dict[str, Any]]
) -> None:
    warned(keeper)
    with keeper.lock:
        keeper._all(state="saved", saved=True)
        keeper.ranks[2].update(state="gone", reason="down by a fault", ended_t=2.0, saved=False)
    oracle.until(lambda: job.over, 5.0, "no restart is allowed")
    assert job.failure == "rank 2 on west-0 gone: down by a fault"
    assert [(it["in_order"], it["why"]) for it in noted] == [(False, job.failure)]


def test_a_job_that_is_stopped_while_it_leaves_does_not_begin_again(keeper: Keeper, job: Attempts) -> None:
    warned(keeper)
    job.stop()
    keeper.all(state="saved", saved=True)
    oracle.until(lambda: job.over, 5.0, "it is over")
    assert job.number == 1


def test_sites_that_do_not_hear_each_other_are_waited_for(keeper: Keeper, tmp_path: Path) -> None:
    made = begun(tmp_path, restarts=1)
    with keeper.lock:
        keeper.unheard = [("east", "west")]
        keeper.ranks[0].update(state="failed", reason="timed out", ended_t=1.0)
    oracle.until(lambda: made.waiting == "east and west do not reach each other", 5.0, "it waits")
    with keeper.lock:
        keeper.dark, keeper.unheard = ["north", "south"], []
    oracle.until(lambda: "not connected while north, south are dark" in made.waiting, 5.0, "for another reason")
    assert made.number == 1
    with keeper.lock:
        keeper.dark = ["north"]
    oracle.until(lambda: made.number == 2, 5.0, "it begins")
    keeper.all(state="finished")
    oracle.until(lambda: made.over, 5.0, "it is over")


def test_a_keeper_that_is_gone_ends_the_job(keeper: Keeper, job: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(lab: LabFolder, request: Request[Any]) -> Any:
        raise LabError("the keeper does not answer")

    monkeypatch.setattr(attempts.client, "ask", gone)
    with keeper.lock:
        keeper.gone = True
    oracle.until(lambda: job.over, 5.0, "it is over")
    assert job.failure == "the keeper does not answer"


@pytest.mark.parametrize("storage", [True, False])
def test_a_job_whose_disk_is_full_was_not_measured_to_be_bad(keeper: Keeper, job: Attempts, storage: bool) -> None:
    """One rank's disk takes no more; the others only lose a peer."""
    with keeper.lock:
        for rank in keeper.ranks:
            rank.update(state="failed", reason="a peer hung up", ended_t=2.0)
        keeper.ranks[1].update(reason="cannot write rank-1.jsonl", ended_t=1.0, storage=storage)
    oracle.until(lambda: job.over, 5.0, "the job is over")
    assert job.failure.endswith("cannot write rank-1.jsonl")
    assert job.storage is storage


def test_a_full_disk_spends_no_restart(keeper: Keeper, tmp_path: Path) -> None:
    made = begun(tmp_path, restarts=3)
    with keeper.lock:
        keeper.ranks[1].update(state="failed", reason="cannot write rank-1.jsonl", ended_t=1.0, storage=True)
    oracle.until(lambda: made.over, 5.0, "the job is over")
    assert (made.number, made.storage) == (1, True)


def test_a_rank_that_does_not_run_is_named_before_one_that_waited_for_it(keeper: Keeper, job: Attempts) -> None:
    with keeper.lock:
        keeper.ranks[3].update(suspended=True)
        keeper.ranks[0].update(state="failed", reason="step 5: Timed out waiting 5000ms", ended_t=1.0)
    oracle.until(lambda: job.over, 5.0, "the job is over")
    assert job.failure == (
        "rank 3 on west-1 is suspended by a signal (SIGSTOP); rank 0 on east-0 failed: step 5: Timed out waiting 5000ms"
    )


def test_a_rank_that_is_gone_is_the_reason_whatever_else_does_not_run(keeper: Keeper, job: Attempts) -> None:
    with keeper.lock:
        keeper.ranks[3].update(suspended=True)
        keeper.ranks[0].update(state="gone", reason="was killed by SIGKILL", ended_t=1.0)
    oracle.until(lambda: job.over, 5.0, "the job is over")
    assert job.failure == "rank 0 on east-0 gone: was killed by SIGKILL"
