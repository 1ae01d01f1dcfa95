"""What the trainer makes of messages and of torch's words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from testbed_agents.training.job import Job, TrainingFailed, reason_of

MESSAGE: dict[str, Any] = {
    "do": "train",
    "job": "j1",
    "world_size": 4,
    "master": ["10.1.1.1", 29500],
    "interface": "fabric0",
    "directory": "/runs/x/ranks",
    "steps": 400,
    "seed": 7,
    "timeout_s": 30.0,
    "batch": 2,
    "context": 32,
    "model": {"layers": 1, "heads": 2, "width": 64},
    "data": None,
    "learning_rate": 1e-3,
}


def test_a_message_becomes_a_job() -> None:
    job = Job.from_message(MESSAGE)
    assert job.master == ("10.1.1.1", 29500)
    assert job.directory == Path("/runs/x/ranks")
    assert (job.shape.layers, job.shape.heads, job.shape.width, job.shape.context) == (1, 2, 64, 32)


@pytest.mark.parametrize("name", ["job", "world_size", "master", "interface", "directory", "steps"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(TrainingFailed, match=f"has no '{name}'"):
        Job.from_message({key: value for key, value in MESSAGE.items() if key != name})


@pytest.mark.parametrize(
    "wrong", [{"steps": "many"}, {"master": "10.1.1.1"}, {"model": {"layres": 1}}, {"model": {"width": 0}}]
)
def test_nonsense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingFailed, match="invalid train message"):
        Job.from_message(MESSAGE | wrong)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "[/w/third_party/gloo/gloo/transport/tcp/pair.cc:561] Connection closed by peer [10.1.1.2]:41234",
            "Connection closed by peer [10.1.1.2]:41234",
        ),
        (
            "Got the following error when running the callback: RuntimeError: [/w/gloo/transport/tcp/pair.cc:545] "
            "Read error [10.88.0.4]:32914: Connection reset by peer. This is typically caused by a remote worker.",
            "Read error [10.88.0.4]:32914: Connection reset by peer",
        ),
        (
            "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 2000ms for recv operation to complete",
            "Timed out waiting 2000ms for recv operation to complete",
        ),
        ("no luck.\nException raised from here: frame #0", "no luck"),
        ("", "RuntimeError"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_reasons_are_for_people(said: str, reason: str) -> None:
    assert reason_of(RuntimeError(said)) == reason
