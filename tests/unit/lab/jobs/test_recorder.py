"""A recorder in a lab of 64 ranks none of which answers: fibers are sampled and events recorded all the same."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_stalls
import pytest
from builders import dead_exporters, run_factory
from builders.followed_keeper import Keeper
from oracles import oracle

from testbed.core.topology import resolve
from testbed.host.files.store import RunDirectory
from testbed.lab.jobs import recorder as recorders
from testbed.lab.jobs.recorder import Recorder

WIDE = resolve.load_text(
    b"sites: {east: {nodes: 32}, west: {nodes: 32}}\nlinks: {north: {between: [east, west], km: 4}}", "x"
)
EVENTS = 20


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    made = Keeper(tmp_path)
    yield made
    made.end()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    with dead_exporters.addresses(64) as addresses:
        ranks = [SimpleNamespace(rank=n, metrics=host, port=port) for n, (host, port) in enumerate(addresses)]
        monkeypatch.setattr(recorders.build, "ranks", lambda topology: ranks)
        monkeypatch.setattr(recorders.lab_nodes, "netns", lambda lab, node: tmp_path)
        monkeypatch.setattr(recorders.namespace, "enter", lambda path: None)
        yield tmp_path / "run"


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def recorder(keeper: Keeper, run: Path) -> Recorder:
    made = Recorder(keeper.lab, WIDE, RunDirectory(run))
    made.start()
    return made


def median_interval_s(times: list[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times))


def test_ranks_that_do_not_answer_slow_nothing_down(keeper: Keeper, run: Path, recorder: Recorder) -> None:
    delays_s = []
    for number in range(EVENTS):
        began = time.monotonic()
        keeper.events.add("note", number=number)
        oracle.until(lambda n=number: len(recorder.events) > n, 10.0, "it is recorded")  # type: ignore[misc]
        delays_s.append(time.monotonic() - began)
        time.sleep(0.2)
    recorder.stop()
    assert recorder.lab_failure == ""
    assert [line["number"] for line in lines(run / "events.jsonl")] == list(range(EVENTS))
    assert statistics.median(delays_s) < 0.1, "an event is recorded when it happens"
    metrics = lines(run / "metrics.jsonl")
    fibers = [line["t"] for line in metrics if line["kind"] == "fiber"]
    assert len(fibers) >= 4
    assert median_interval_s(fibers) < 1.2
    ranks = [line for line in metrics if line["kind"] == "rank"]
    assert {line["rank"] for line in ranks} == set(range(64))
    assert {line["why"] for line in ranks} == {"timeout", "refused"}
    assert median_interval_s([line["t"] for line in ranks if line["rank"] == 0]) < 1.2, "each second once more"


def test_what_happens_before_the_stop_is_recorded(keeper: Keeper, run: Path) -> None:
    for number in range(3):
        recorder = Recorder(keeper.lab, WIDE, RunDirectory(run))
        recorder.start()
        keeper.events.add("note", number=number)
        recorder.stop()
    assert [line["number"] for line in lines(run / "events.jsonl")] == [0, 1, 2]


def test_keeper_that_ends_is_a_failure_of_the_lab(keeper: Keeper, recorder: Recorder) -> None:
    assert keeper.subscribed.wait(10.0)
    keeper.hang_up()
    oracle.until(lambda: recorder.lab_failure, 10.0, "it is noticed")
    assert "ended" in recorder.lab_failure
    began = time.monotonic()
    recorder.stop()
    assert host_stalls.elapsed_s(began) < 10.0


def test_factory_and_recorder_agree_on_a_line(run: Path, recorder: Recorder, tmp_path: Path) -> None:
    """Otherwise tests of the report read what no recorder writes."""
    recorder.stop()
    made = run_factory.make_run(tmp_path / "made")
    run_factory.add_scrapes(made, [1010.0], {0: (0.0, 2000.0)})
    written, expected = (
        next(line for line in lines(path / "metrics.jsonl") if line["kind"] == "rank" and key in line)
        for path, key in ((run, "kind"), (made, "why"))
    )
    assert set(written) == set(expected)
