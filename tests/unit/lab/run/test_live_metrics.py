"""A job's rates as it runs: of steps as they are committed, in a stall, and when the job begins again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.topology import resolve
from testbed.lab.jobs.job import Job
from testbed.lab.run.live_metrics import LiveMetrics

METRO = resolve.load_text(
    b"sites: {east: {nodes: 2}, west: {nodes: 2}}\nlinks: {north: {between: [east, west], km: 4}}", "x"
)
STATES = ["training", "training", "finished", "gone"]


@pytest.fixture
def followed() -> LiveMetrics:
    said: Any = SimpleNamespace(last={"tokens": 50, "train_loss": 3.5}, _tails=[None] * 4)
    job: Any = SimpleNamespace(
        last=said.last,
        reports_steps=True,
        tokens_per_step=Job.tokens_per_step.fget(said),  # type: ignore[attr-defined]
        ranks_up=lambda agents: Job.ranks_up(said, agents),
    )
    recorder: Any = SimpleNamespace(events=[], ranks=[{"state": state} for state in STATES])
    return LiveMetrics(METRO, job, recorder)


def go(followed: LiveMetrics, steps: list[int], t: float, each_s: float) -> float:
    for step in steps:
        t += each_s
        followed.note(t, step)
    return t


def test_rates_of_a_job_that_runs_evenly(followed: LiveMetrics) -> None:
    t = go(followed, list(range(1, 101)), 0.0, 0.1)
    values = followed.values(t)
    assert values["steps_per_s"] == pytest.approx(10, rel=0.05)
    assert values["tokens_per_s"] == pytest.approx(10 * 50 * 4, rel=0.05)
    assert values["step_seconds"] == pytest.approx(0.1)
    assert (values["train_loss"], values["ranks_up"], followed.links_up) == (3.5, 3, 1)


def test_nothing_is_told_before_there_is_enough(followed: LiveMetrics) -> None:
    t = go(followed, [1, 2], 0.0, 0.1)
    assert (followed.values(t)["steps_per_s"], followed.values(t)["step_seconds"]) == (None, None)
    assert not followed.is_warm(t)
    t = go(followed, list(range(3, 60)), t, 0.1)
    assert followed.is_warm(t)


def test_a_stall_is_seen_while_it_lasts(followed: LiveMetrics) -> None:
    t = go(followed, list(range(1, 101)), 0.0, 0.1)
    assert followed.values(t + 3)["step_seconds"] == pytest.approx(3.0)
    assert followed.values(t + 2)["steps_per_s"] == pytest.approx(5, rel=0.1)
    assert followed.values(t + 9)["steps_per_s"] == 0


def test_a_job_that_begins_again_works_from_then_on(followed: LiveMetrics) -> None:
    t = go(followed, list(range(1, 101)), 0.0, 0.1)
    t = go(followed, [80], t, 5.0)
    assert followed.values(t)["steps_per_s"] == 0
    t = go(followed, list(range(81, 131)), t, 0.1)
    assert followed.values(t)["steps_per_s"] == pytest.approx(10, rel=0.05)


def test_a_link_is_up_when_both_its_ends_are(followed: LiveMetrics) -> None:
    events: list[dict[str, Any]] = followed._recorder.events
    for t, site, up in ((1.0, "east", False), (2.0, "west", False), (3.0, "east", True), (4.0, "west", True)):
        events.append({"t": t, "event": "carrier", "link": "north", "site": site, "up": up})
    followed.hear(3.5)
    assert followed.links_up == 0
    followed.hear()
    assert followed.links_up == 1


def test_faults_of_the_schedule_are_told_from_those_of_others(followed: LiveMetrics) -> None:
    cut = {"event": "fault-began", "type": "cut", "target": "north"}
    events: list[dict[str, Any]] = followed._recorder.events
    events += [
        {**cut, "t": 5.1, "command_t": 5.0, "fault": "f1", "scheduled": 0},
        {**cut, "t": 6.1, "command_t": 6.0, "fault": "f2", "scheduled": None},
        {"t": 7.0, "event": "fault-ended", "fault": "f1"},
    ]
    followed.hear(4.99)
    assert (followed.began, followed.active) == ({}, {})
    followed.hear(5.0)
    assert list(followed.active) == ["f1"], "it may have acted from its command on"
    followed.hear()
    assert (followed.began, followed.ended, list(followed.active)) == ({0: 1}, 1, ["f2"])
