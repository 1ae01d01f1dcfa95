"""Violations of the steady state that stalls of the host may account for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.analysis.host_noise import StallLog
from testbed.core.analysis.steady_noise import within_noise
from testbed.core.experiment.steady import Violation
from testbed.core.records.stalls import Stall


def noise(*stalls: tuple[float, float]) -> StallLog:
    return StallLog(tuple(Stall(0, began_t, length_s) for began_t, length_s in stalls), (), True)


@pytest.mark.parametrize(
    ("text", "bound", "value", "within"),
    [
        ("tokens_per_s >= 900", 900.0, 750.0, True),  # 1 s of the 4 s before was stalled: up to 1,000
        ("tokens_per_s >= 1100", 1100.0, 750.0, False),
        ("tokens_per_s >= 80% of before", 900.0, 750.0, True),
        ("tokens_per_s >= 80% of before", 1100.0, 750.0, False),
        ("steps_per_s <= 8", 8.0, 9.5, True),
        ("step_seconds <= 1", 1.0, 1.9, True),
        ("step_seconds <= 0.8", 0.8, 1.9, False),
        ("ranks_up == 4", 4.0, 3.0, False),
        ("links_up == 2", 2.0, 1.0, False),
        ("train_loss < 6", 6.0, 6.1, False),
        ("nonsense >= 1", 1.0, 0.9, False),
        ("tokens_per_s >= 900", None, 750.0, False),
    ],
)
def test_within_noise_if_the_value_without_the_stalls_may_meet_the_condition(text, bound, value, within):
    violations = [Violation(100.0, 103.0, value)]
    stalled = noise((99.0, 1.0))
    assert within_noise(text, bound, violations, stalled) is within
    for quiet in (noise(), noise((50.0, 1.0))):  # or long before
        assert not within_noise(text, bound, violations, quiet)
    for certain in ([*violations, Violation(200.0, 203.0, value)], [Violation(100.0, 103.0, None)]):
        assert not within_noise(text, bound, certain, stalled)


STALLS = st.lists(st.tuples(st.floats(90, 110), st.floats(2e-4, 2.0)), max_size=6)


@given(STALLS, STALLS, st.floats(1, 2000), st.sampled_from(["tokens_per_s >= 900", "step_seconds <= 1"]))
def test_within_noise_stays_so_with_more_stalls(stalls, more, value, text):
    bound = float(text.split()[-1])
    violations = [Violation(100.0, 103.0, value)]
    if within_noise(text, bound, violations, noise(*stalls)):
        assert within_noise(text, bound, violations, noise(*stalls, *more))
