"""A job's rates as it runs: of steps as they are committed, in a stall, and when the job begins again."""

from __future__ import annotations

from collections.abc import Iterable
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
def events() -> list[dict[str, Any]]:
    """The events that the recorder has."""
    return []


@pytest.fixture
def followed(events: list[dict[str, Any]]) -> LiveMetrics:
    said: Any = SimpleNamespace(last={"tokens": 50, "train_loss": 3.5}, _tails=[None] * 4)
    job: Any = SimpleNamespace(
        last=said.last,
        reports_steps=True,
        tokens_per_step=Job.tokens_per_step.fget(said),  # type: ignore[attr-defined]
        ranks_up=lambda agents: Job.ranks_up(said, agents),
    )
    recorder: Any = SimpleNamespace(events=events, ranks=[{"state": state} for state in STATES])
    return LiveMetrics(METRO, job, recorder)


def go(followed: LiveMetrics, steps: Iterable[int], t: float = 0.0, step_s: float = 0.1) -> float:
    for step in steps:
        t += step_s
        followed.note(t, step)
    return t


def test_values_of_a_job_that_runs_evenly(followed: LiveMetrics) -> None:
    values = followed.values(go(followed, range(1, 101)))
    assert values["steps_per_s"] == pytest.approx(10, rel=0.05)
    assert values["tokens_per_s"] == pytest.approx(10 * 50 * 4, rel=0.05)
    assert values["step_seconds"] == pytest.approx(0.1)
    assert (values["train_loss"], values["ranks_up"], followed.links_up) == (3.5, 3, 1)


def test_values_are_unknown_before_there_are_enough_steps(followed: LiveMetrics) -> None:
    t = go(followed, [1, 2])
    assert (followed.values(t)["steps_per_s"], followed.values(t)["step_seconds"]) == (None, None)
    assert not followed.is_warm(t)
    assert followed.is_warm(go(followed, range(3, 60), t))


def test_values_show_a_stall_while_it_lasts(followed: LiveMetrics) -> None:
    t = go(followed, range(1, 101))
    assert followed.values(t + 3)["step_seconds"] == pytest.approx(3.0)
    assert followed.values(t + 2)["steps_per_s"] == pytest.approx(5, rel=0.1)
    assert followed.values(t + 9)["steps_per_s"] == 0


def test_values_of_a_job_that_begins_again_are_from_then_on(followed: LiveMetrics) -> None:
    t = go(followed, [80], go(followed, range(1, 101)), 5.0)
    assert followed.values(t)["steps_per_s"] == 0
    t = go(followed, range(81, 131), t)
    assert followed.values(t)["steps_per_s"] == pytest.approx(10, rel=0.05)


def test_link_is_up_when_both_its_ends_are(followed: LiveMetrics, events: list[dict[str, Any]]) -> None:
    for t, site, up in ((1.0, "east", False), (2.0, "west", False), (3.0, "east", True), (4.0, "west", True)):
        events.append({"t": t, "event": "carrier", "link": "north", "site": site, "up": up})
    followed.hear(3.5)
    assert followed.links_up == 0
    followed.hear()
    assert followed.links_up == 1


def test_faults_of_the_schedule_are_told_from_those_of_others(
    followed: LiveMetrics, events: list[dict[str, Any]]
) -> None:
    cut = {"event": "fault-began", "type": "cut", "target": "north"}
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
