"""A collective that bypasses the fiber is detected by the missing bytes."""

from __future__ import annotations

import pytest

from testbed.core.analysis.fidelity import quantile, under_load
from testbed.core.analysis.wire_check import check
from testbed.core.records.rank_log import JobRecord, RankLog, StepRecord
from testbed.core.records.samples import FiberSample
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.strategy_operation import Operation

GRADIENT = 1_000_000
SITES = ("east", "east", "west", "west")


def logs(sites=SITES, steps: int = 100, scheme: str = "ddp"):
    rows = tuple(StepRecord(i, i, i + 0.5, i + 0.9, i + 1.0, 8) for i in range(1, steps + 1))
    return [
        RankLog(r, (JobRecord(0.5, r, len(sites), f"n{r}", site, scheme, 1, GRADIENT, steps),), rows)
        for r, site in enumerate(sites)
    ]


def track(direction: str, total: float, *, first_t: float = 0.0, last_t: float = 102.0, start: int = 7_000):
    """Two samples between which ``total`` wire bytes crossed."""
    return [fiber(direction, first_t, start), fiber(direction, last_t, start + int(total))]


def fiber(direction: str, t: float, count: int, **changes) -> FiberSample:
    fields = {
        "packets": 0,
        "segments": 0,
        "drops": {},
        "queue_bytes": 0,
        "lateness_bounds_s": (),
        "lateness_counts": (),
    }
    return FiberSample(t=t, direction=direction, byte_count=count, **{**fields, **changes})


def wire_bytes(payload: float) -> float:
    return payload * 1514 / 1448


@pytest.mark.parametrize(
    ("sites", "factor"),
    [
        (("east", "east", "west", "west"), 1.5),
        (("east", "west", "east", "west"), 3.0),
        (("east", "west"), 1.0),
    ],
)
def test_a_ring_carries_2_w_minus_1_over_w_per_hop(sites, factor):
    ring = Operation("all_reduce", tuple(range(len(sites))), GRADIENT, "gradients")
    assert site_bytes([ring], sites)["east", "west"] == pytest.approx(factor * GRADIENT)


def test_parallel_links_toward_a_site_are_summed():
    half = wire_bytes(0.75 * GRADIENT * 100)
    fibers = [
        sample for link in ("north", "south") for site in ("east", "west") for sample in track(f"{link}:{site}", half)
    ]
    verdict = check(logs(), fibers)
    assert verdict.ok is True
    assert verdict.steps == 100
    assert verdict.measured_bytes == pytest.approx(2 * 1.5 * GRADIENT * 100, rel=1e-4)
    assert verdict.expected_bytes == pytest.approx(2 * 1.5 * GRADIENT * 100)
    assert verdict.minimum_bytes == pytest.approx(2 * GRADIENT * 100)


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.96, True), (0.9, False), (0.0, False)])
def test_less_than_any_all_reduce_must_move_went_around(share, ok):
    fibers = track("north:west", wire_bytes(1.5 * GRADIENT * 100)) + track(
        "north:east", wire_bytes(share * GRADIENT * 100)
    )
    verdict = check(logs(), fibers)
    assert verdict.ok is ok
    if not ok:
        assert "bypassed the fiber" in verdict.sentence
        assert "toward east" in verdict.sentence


def test_steps_outside_the_samples_are_not_asked_for():
    # Samples cover steps 11..90; only their bytes are in the counters' difference.
    moved = wire_bytes(GRADIENT * 80)
    fibers = track("north:west", moved, first_t=10.5, last_t=91.5) + track(
        "north:east", moved, first_t=10.5, last_t=91.5
    )
    verdict = check(logs(), fibers)
    assert (verdict.ok, verdict.steps) == (True, 80)


def test_an_emulator_that_started_again_counts_from_zero():
    part = int(wire_bytes(GRADIENT * 50))
    fibers = [
        fiber(f"north:{site}", t, count)
        for site in ("east", "west")
        for t, count in ((0.0, 0), (50.0, part), (51.0, 0), (102.0, part))
    ]
    assert check(logs(), fibers).ok is True


@pytest.mark.parametrize(
    "case",
    [
        ([], []),
        (logs(), []),
        (logs(scheme="novel"), track("north:west", 1) + track("north:east", 1)),
        (logs()[:3], track("north:west", 1) + track("north:east", 1)),
        (logs(), track("north:west", 1)),
        (logs(), track("north:west", 1, last_t=0.2) + track("north:east", 1, last_t=0.2)),
    ],
)
def test_what_cannot_be_told_is_not_told(case):
    verdict = check(*case)
    assert verdict.ok is None
    assert verdict.sentence


def test_one_site_has_nothing_to_move():
    assert check(logs(("east", "east")), []).ok is True


def test_quantiles_of_a_histogram():
    bounds, counts = (1.0, 2.0, 4.0), (0.0, 50.0, 50.0, 0.0)
    assert quantile(bounds, counts, 0.5) == pytest.approx(2.0)
    assert quantile(bounds, counts, 0.25) == pytest.approx(1.5)
    assert quantile(bounds, counts, 0.75) == pytest.approx(3.0)
    assert quantile(bounds, (0.0, 0.0, 0.0, 3.0), 0.5) == float("inf")
    assert quantile(bounds, (0.0,) * 4, 0.5) is None


def load(counts_before, counts_after, bounds=(10e-6, 100e-6, 1e-3), drops=None):
    samples = [
        fiber(
            "north:west", t, 0, packets=int(sum(counts)), lateness_bounds_s=bounds, lateness_counts=counts, drops=lost
        )
        for t, counts, lost in ((0.0, counts_before, {}), (10.0, counts_after, drops or {}))
    ]
    (only,) = under_load(samples, 1.0, 9.0)
    return only


def test_only_what_was_late_during_the_job_is_judged():
    before = (0.0, 0.0, 0.0, 900.0)  # the emulator was late before the job, as while it started
    assert load(before, (1000.0, 0.0, 0.0, 900.0)).held is True
    assert load(before, (0.0, 1000.0, 0.0, 900.0)).held is False  # median above 50 us
    late = load(before, (950.0, 0.0, 0.0, 950.0))
    assert late.held is False
    assert late.p99_s == float("inf")


def test_drops_of_the_emulator_itself_break_the_promise():
    after = (1000.0, 0.0, 0.0, 0.0)
    assert load((0.0,) * 4, after, drops={"loss": 5, "queue": 9, "down": 3}).held is True
    for cause in ("receive", "memory", "transmit"):
        assert load((0.0,) * 4, after, drops={cause: 1}).held is False


def test_a_silent_fiber_is_not_judged():
    assert load((0.0,) * 4, (0.0,) * 4).held is None
