"""Does my library survive this fiber? Tests in a certified lab, with the plugin pytest-testbed.

    sudo .venv/bin/python -m pytest examples/pytest_suite

The lab (two sites, two fibers of 40 and 47 km) is brought up and measured once, shared by these tests, healed after
each and taken down at the end, whatever happens.
"""

from __future__ import annotations

import pytest
from on_ranks import summed

from testbed.pytest_plugin import RanksFailed

pytestmark = pytest.mark.testbed("metro-40km")


@pytest.mark.parametrize("count", [1, 100_000])
def test_the_sum_is_right_on_every_rank(ranks, count):
    assert ranks(summed, count) == (1.0 + 2.0 + 3.0 + 4.0,) * 4


def test_a_cut_that_leaves_a_way_is_survived(lab, ranks):
    job = ranks.start(summed, 1000, times=400)
    job.wait_for("step 20")
    with lab.cut("north") as cut:
        job.wait_for("step 100")
    assert cut.ended is not None
    assert job.results() == (10.0,) * 4


def test_loss_makes_it_slow_and_not_wrong(lab, ranks):
    with lab.inject("impair", "north", loss="1%"):
        assert ranks(summed, 10_000, times=5) == (10.0,) * 4


def test_no_way_left_is_an_error_in_time_and_no_hang(lab, ranks):
    job = ranks.start(summed, 1000, times=100_000, timeout_s=2.0)
    job.wait_for("step 20")
    with lab.cut("north"), lab.cut("south"), pytest.raises(RanksFailed) as raised:
        job.results()
    errors = [failure.error for failure in raised.value.failures.values()]
    assert len(errors) == 4
    assert any(isinstance(error, TimeoutError) for error in errors)
    assert all(isinstance(error, TimeoutError | ConnectionError) for error in errors)
