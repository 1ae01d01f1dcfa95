"""Ages of updates where no site waits, against small cases by hand."""

from __future__ import annotations

import statistics

import pytest
from builders.predicted_jobs import job, plain
from builders.tables import table

from testbed.core.prediction.prediction import predict
from testbed.errors import UserError

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Of the time between two pushes: when the steps ended whose ages are taken."""


def ages_s(round_s: float, adopted_s: float) -> list[float]:
    """Return the ages of an update that is adopted so long after its push, which has the steps of a round."""
    return sorted(adopted_s + (1 - share) * round_s for share in SHARES)


@table(
    "delay_s, adopted_s",
    {
        "there before the next step ends": (0.3, 1.0),
        "there and back in two steps": (0.9, 2.0),
        "more than a round away": (6.2, 9.0),
    },
)
def test_an_update_is_adopted_at_the_end_of_a_step(delay_s: float, adopted_s: float) -> None:
    """Steps of 1 s, pushes every 4: one trip to the server, which is at the first site, or two for the second site.

    The first site adopts what the second one pushed after one trip, the second one what the first pushed after one
    trip back from the merge, which needs both. Where a trip takes more than a round, a merge has the first site's next
    push, which is 4 s younger: 13 s less 4.
    """
    found = predict(job("decoupled:every=4,quorum=2,grace=0s", step_s=1.0, delay_s=delay_s)).merges
    at_home_s = float(-(-delay_s // 1.0))
    both = ages_s(4.0, at_home_s) + ages_s(4.0, adopted_s)
    assert found is not None
    assert found.age_s == pytest.approx(statistics.median(both))
    assert found.age_p99_s == pytest.approx(max(both))
    assert found.merge_s == pytest.approx(4.0)
    assert (found.steps_per_push, found.saturated) == (4.0, False)


def test_fragments_are_merged_one_after_the_other() -> None:
    """Each of two fragments once in 8 steps."""
    found = predict(job("decoupled:every=8,fragments=2,quorum=2,grace=0s", step_s=1.0, delay_s=0.3)).merges
    assert found is not None
    assert found.merge_s == pytest.approx(8.0)
    assert found.age_p99_s == pytest.approx(0.9 * 8 + 1)


def test_a_quorum_of_one_merges_each_push() -> None:
    """The first site's push is merged without delay, the second one's a trip later."""
    found = predict(job("decoupled:every=4,quorum=1,grace=0s", step_s=1.0, delay_s=0.3)).merges
    assert found is not None and found.merge_s == pytest.approx(2.0)
    together = predict(job("decoupled:every=4,quorum=1,grace=500ms", step_s=1.0, delay_s=0.3)).merges
    assert together is not None and together.merge_s == pytest.approx(4.0)


BITS = 32 * 2**20


@table(
    "load, withheld",
    {"half of the rate": (0.5, 0.0), "almost all of it": (0.95, 0.0), "twice the rate": (2.0, 1 / 2),
     "three times the rate": (3.0, 2 / 3), "five times the rate": (5.0, 4 / 5 + 1 / 5)},
)  # fmt: skip
def test_pushes_are_withheld_where_the_fiber_carries_less(load: float, withheld: float) -> None:
    """A push of all parameters every 4 steps of 1 s; the fiber carries one in 4 x load seconds.

    ``withheld``: shares of both sites. The server's own site has nothing on a fiber, but a merge has at most
    4 of its pushes.
    """
    found = predict(job("decoupled:every=4,quorum=2,grace=0s", step_s=1.0, rate_bps=BITS / (4 * load)))
    assert found.merges is not None and found.outcome.steady
    assert found.utilization == pytest.approx(1.0)
    assert found.merges.saturated == (load > 1)
    assert found.merges.steps_per_push == pytest.approx(4.0 / (1 - withheld / 2))
    assert found.merges.merge_s == pytest.approx(4.0 * max(1.0, load))
    assert found.bits_per_step == pytest.approx(BITS / (4 * max(1.0, load)))


def test_sites_that_wait_have_no_merges() -> None:
    assert predict(job("async-diloco:every=4")).merges is None


def test_a_target_needs_an_age() -> None:
    of = job("decoupled:every=4,quorum=2,grace=0s", step_s=1.0, delay_s=0.3)
    with pytest.raises(UserError, match="sites never wait with strategy decoupled, so --target needs --merge-within"):
        predict(of, target=0.9)
    with pytest.raises(UserError, match="needs --target, and a strategy whose sites never wait"):
        predict(job("diloco"), target=0.9, merge_within_s=1.0)
    found = predict(of, target=0.9, merge_within_s=6.0)
    assert found.merges is not None and found.rate_bps is not None
    assert found.merges.age_s <= 6.0
    slower = predict(of.but(network=of.network.with_rate(found.rate_bps * 0.9)))
    assert slower.merges is not None and slower.merges.age_s > 6.0
    assert predict(of, target=0.9, merge_within_s=1.0).rate_bps is None


def test_a_learner_never_waits_for_a_slow_one() -> None:
    found = predict(job("decoupled:every=4,grace=0s", step_s=1.0, slowdowns={1: 3.0}, delay_s=0.1, library=plain()))
    assert found.utilization == pytest.approx(1.0)
