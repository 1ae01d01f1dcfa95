"""The stall log of a job: the keeper's stalls while the job ran, and no file if the keeper logs none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.core.records.stalls import Stall
from testbed.errors import LabError
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import recorder as recorders
from testbed.lab.jobs.recorder import StallRecorder


class Keeper:
    """Answers as the keeper does; ``logged`` are all stalls so far."""

    def __init__(self, *, watching: bool = True) -> None:
        self.watching = watching
        self.logged: list[tuple[int, float, float]] = [(0, 5.0, 0.5)]
        self.requests, self.ended = 0, False

    @property
    def keeper(self) -> Keeper:
        """Itself, as the keeper of a connection."""
        return self

    def stalls(self, *, since: int) -> Any:
        self.requests += 1
        if self.ended:
            raise LabError("the keeper ended")
        return {"watching": self.watching, "next": len(self.logged), "stalls": self.logged[since:]}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


@pytest.fixture
def recorder(run: RunDirectory) -> Any:
    return StallRecorder(run)


def test_stalls_are_recorded_once_from_the_beginning_of_the_job(run: RunDirectory, recorder: Any) -> None:
    keeper = Keeper()
    recorder.sample(keeper)
    assert run.stall_log().watched
    assert run.stall_log().stalls == (), "stalls before the job do not count"
    keeper.logged.append((1, 7.25, 0.012))
    recorder.sample(keeper)
    recorder.sample(keeper)
    keeper.logged.append((0, 8.0, 0.0003))
    recorder.sample(keeper)
    expected = (Stall(1, 7.25, 0.012), Stall(0, 8.0, 0.0003))
    assert run.stall_log().stalls == run.read().stalls == tuple(recorder.stalls) == expected
    assert (run.path / "stalls.jsonl").read_text().splitlines()[0] == '{"core":1,"t":7.25,"s":0.012}'


def test_file_has_stalls_that_memory_has_no_room_for(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorders, "MOST_KEPT", 2)
    keeper: Any = Keeper()
    recorder = StallRecorder(run)
    for number in range(4):
        recorder.sample(keeper)
        keeper.logged.append((0, 6.0 + number, 0.01))
    assert [stall.began_t for stall in recorder.stalls] == [7.0, 8.0]
    assert [stall.began_t for stall in run.stall_log().stalls] == [6.0, 7.0, 8.0]


def test_without_a_log_there_is_no_file(run: RunDirectory, recorder: Any) -> None:
    keeper = Keeper(watching=False)
    for _ in range(3):
        recorder.sample(keeper)
    assert keeper.requests == 1, "one request is enough"
    assert not (run.path / "stalls.jsonl").exists()
    assert not run.stall_log().watched
    assert "stalls.jsonl" not in run.read().missing


def test_keeper_that_ends_leaves_the_log_as_it_is(recorder: Any) -> None:
    keeper = Keeper()
    recorder.sample(keeper)
    keeper.ended = True
    recorder.sample(keeper)
    assert recorder.watching
