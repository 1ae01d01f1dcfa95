"""A step of real compute has the CPU time of its rank, so that waiting for a core can be told from computing."""

from __future__ import annotations

import time

import pytest
from testbed_agents.training.compute import Compute
from testbed_agents.training.model import Shape


def test_a_step_has_the_cpu_time_since_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 1.25, 7.0, 7.5])
    monkeypatch.setattr(time, "process_time", lambda: next(times))
    compute = Compute.from_message(None, rank=0, seed=0, shape=Shape())
    for step, cpu_s in ((1, 0.25), (2, 0.5)):
        compute.begin(step)
        assert compute.end(100.0, 100.6, 100.7, 100.7) == {"cpu_s": cpu_s}
