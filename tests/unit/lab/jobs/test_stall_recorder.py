"""The stall log of a job: the keeper's stalls while the job ran, and no file if the keeper logs none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.core.records.stalls import Stall
from testbed.errors import LabError
from testbed.host.files.store import RunDirectory
from testbed.keeper import protocol
from testbed.lab.jobs import stall_recorder
from testbed.lab.jobs.stall_recorder import StallRecorder


class Keeper:
    """Answers as the keeper does; ``logged`` are all stalls so far."""

    def __init__(self, *, watching: bool = True) -> None:
        self.watching = watching
        self.logged: list[tuple[int, float, float]] = [(0, 5.0, 0.5)]
        self.requests = 0

    def ask(self, request: protocol.Stalls) -> Any:
        self.requests += 1
        return {"watching": self.watching, "next": len(self.logged), "stalls": self.logged[request.since :]}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "run")


def test_stalls_are_recorded_once_from_the_beginning_of_the_job(run: RunDirectory) -> None:
    keeper, recorder = Keeper(), StallRecorder(run)
    recorder.sample(keeper)  # type: ignore[arg-type]
    assert run.stall_log().watched
    assert run.stall_log().stalls == (), "stalls before the job do not count"
    keeper.logged.append((1, 7.25, 0.012))
    recorder.sample(keeper)  # type: ignore[arg-type]
    recorder.sample(keeper)  # type: ignore[arg-type]
    keeper.logged.append((0, 8.0, 0.0003))
    recorder.sample(keeper)  # type: ignore[arg-type]
    expected = (Stall(1, 7.25, 0.012), Stall(0, 8.0, 0.0003))
    assert run.stall_log().stalls == run.read().stalls == tuple(recorder.stalls) == expected
    assert (run.path / "stalls.jsonl").read_text().splitlines()[0] == '{"core":1,"t":7.25,"s":0.012}'


def test_the_file_has_stalls_that_memory_has_no_room_for(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_recorder, "MOST_KEPT", 2)
    keeper, recorder = Keeper(), StallRecorder(run)
    for number in range(4):
        recorder.sample(keeper)  # type: ignore[arg-type]
        keeper.logged.append((0, 6.0 + number, 0.01))
    assert [stall.began_t for stall in recorder.stalls] == [7.0, 8.0]
    assert [stall.began_t for stall in run.stall_log().stalls] == [6.0, 7.0, 8.0]


def test_without_a_log_there_is_no_file(run: RunDirectory) -> None:
    keeper, recorder = Keeper(watching=False), StallRecorder(run)
    for _ in range(3):
        recorder.sample(keeper)  # type: ignore[arg-type]
    assert keeper.requests == 1, "one request is enough"
    assert not (run.path / "stalls.jsonl").exists()
    assert not run.stall_log().watched
    assert "stalls.jsonl" not in run.read().missing


def test_a_keeper_that_ends_leaves_the_log_as_it_is(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper, recorder = Keeper(), StallRecorder(run)
    recorder.sample(keeper)  # type: ignore[arg-type]

    def ended(request: object) -> None:
        raise LabError("the keeper ended")

    monkeypatch.setattr(keeper, "ask", ended)
    recorder.sample(keeper)  # type: ignore[arg-type]
    assert recorder.watching
