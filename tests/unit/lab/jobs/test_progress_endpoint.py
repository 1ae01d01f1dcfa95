"""What one scrape of a program's Prometheus endpoint says of its steps."""

from __future__ import annotations

import math

import pytest

from testbed.core.workload.progress_source import Endpoint, Sources
from testbed.lab.jobs.progress_reader import numbers

ENDPOINT = Endpoint(9100, Sources(step="steps", train_loss="loss"))


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_finite_number_is_left_out(loss: float) -> None:
    """JSON has none, and one such record would end the reading of all further steps."""
    assert numbers(ENDPOINT, {"steps": 7.0, "loss": loss}) == {"step": 7.0}


def test_a_name_stands_for_its_only_series() -> None:
    assert numbers(ENDPOINT, {'steps{job="x"}': 7.0, 'loss{k="1"}': 1.0, 'loss{k="2"}': 2.0}) == {"step": 7.0}
