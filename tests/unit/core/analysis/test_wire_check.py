"""A collective that bypasses the fiber is detected by the missing bytes."""

from __future__ import annotations

import pytest
from builders.tables import table
from builders.wire_records import SITES, job_logs, sample

from testbed.core.analysis.wire.fidelity import quantile, under_load
from testbed.core.analysis.wire.wire_check import check
from testbed.core.records.rank_log import StepRecord
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.strategy_operation import Operation

GRADIENT = 1_000_000


def logs(sites=SITES, **job):
    return job_logs([StepRecord(i, i, i + 0.5, i + 0.9, i + 1.0, 8) for i in range(1, 101)], GRADIENT, sites, **job)


def moved(gradients: float, *links: str, first_t: float = 0.0, last_t: float = 102.0, west: float | None = None):
    """Two samples of each direction of ``links``, between which so many gradients crossed, in full segments."""
    return [
        sample(t, 7_000 + int(count * GRADIENT * 1514 / 1448) * (t == last_t), f"{link}:{site}")
        for link in links or ("north",)
        for site, count in (("east", gradients), ("west", gradients if west is None else west))
        for t in (first_t, last_t)
    ]


@table(
    "sites, factor",
    {
        "sites one after the other": (SITES, 1.5),
        "sites by turns": (("east", "west", "east", "west"), 3.0),
        "one rank at each site": (("east", "west"), 1.0),
    },
)
def test_site_bytes_of_a_ring_are_2_w_minus_1_over_w_per_hop(sites, factor):
    ring = Operation("all_reduce", tuple(range(len(sites))), GRADIENT, "gradients")
    assert site_bytes([ring], sites)["east", "west"] == pytest.approx(factor * GRADIENT)


def test_check_sums_parallel_links_toward_a_site():
    verdict = check(logs(), moved(75, "north", "south"))
    assert (verdict.ok, verdict.steps) == (True, 100)
    assert verdict.measured_bytes == pytest.approx(2 * 1.5 * GRADIENT * 100, rel=1e-4)
    assert verdict.expected_bytes == pytest.approx(2 * 1.5 * GRADIENT * 100)
    assert verdict.minimum_bytes == pytest.approx(2 * GRADIENT * 100)


@pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.96, True), (0.9, False), (0.0, False)])
def test_check_finds_a_bypass_by_less_than_any_all_reduce_must_move(share, ok):
    verdict = check(logs(), moved(100 * share, west=150))
    assert verdict.ok is ok
    if not ok:
        assert "bypassed the fiber" in verdict.sentence
        assert "toward east" in verdict.sentence


def test_check_leaves_out_steps_outside_the_samples():
    # Samples cover steps 11..90; only their bytes are in the counters' difference.
    verdict = check(logs(), moved(80, first_t=10.5, last_t=91.5))
    assert (verdict.ok, verdict.steps) == (True, 80)


def test_check_of_an_emulator_that_started_again_counts_from_zero():
    part = int(50 * GRADIENT * 1514 / 1448)
    counts = ((0.0, 0), (50.0, part), (51.0, 0), (102.0, part))
    fibers = [sample(t, count, f"north:{site}") for site in ("east", "west") for t, count in counts]
    assert check(logs(), fibers).ok is True


@table(
    "job, fibers",
    {
        "no records": ([], []),
        "no samples": (logs(), []),
        "an unknown scheme": (logs(scheme="novel"), moved(1e-6)),
        "a rank without records": (logs()[:3], moved(1e-6)),
        "a direction without samples": (logs(), moved(1e-6)[2:]),
        "samples before the first step": (logs(), moved(1e-6, last_t=0.2)),
    },
)
def test_check_without_evidence_is_unknown(job, fibers):
    verdict = check(job, fibers)
    assert verdict.ok is None
    assert verdict.sentence


def test_check_of_one_site_has_nothing_to_move():
    assert check(logs(("east", "east")), []).ok is True


@table(
    "counts, share, expected",
    {
        "at a bound": ((0.0, 50.0, 50.0, 0.0), 0.5, 2.0),
        "within the first half": ((0.0, 50.0, 50.0, 0.0), 0.25, 1.5),
        "within the second half": ((0.0, 50.0, 50.0, 0.0), 0.75, 3.0),
        "beyond the last bound": ((0.0, 0.0, 0.0, 3.0), 0.5, float("inf")),
        "of nothing": ((0.0,) * 4, 0.5, None),
    },
)
def test_quantile_of_a_histogram(counts, share, expected):
    value = quantile((1.0, 2.0, 4.0), counts, share)
    assert value == (pytest.approx(expected))


def load(before, after, **drops):
    """What the emulator held between two samples of a histogram of its lateness."""
    samples = [
        sample(t, 0, packets=int(sum(counts)), lateness_bounds_s=(10e-6, 100e-6, 1e-3), lateness_counts=counts,
               drops=lost)
        for t, counts, lost in ((0.0, before, {}), (10.0, after, drops))
    ]  # fmt: skip
    (fidelity,) = under_load(samples, 1.0, 9.0)
    return fidelity


def test_under_load_judges_only_what_was_late_during_the_job():
    before = (0.0, 0.0, 0.0, 900.0)  # the emulator was late before the job, as while it started
    assert load(before, (1000.0, 0.0, 0.0, 900.0)).held is True
    assert load(before, (0.0, 1000.0, 0.0, 900.0)).held is False  # median above 50 us
    late = load(before, (950.0, 0.0, 0.0, 950.0))
    assert (late.held, late.p99_s) == (False, float("inf"))


@table(
    "drops, held",
    {
        "drops of the emulated fiber": ({"loss": 5, "queue": 9, "down": 3}, True),
        **{f"{cause} drops of the emulator": ({cause: 1}, False) for cause in ("receive", "memory", "transmit")},
    },
)
def test_under_load_counts_own_drops_of_the_emulator(drops, held):
    assert load((0.0,) * 4, (1000.0, 0.0, 0.0, 0.0), **drops).held is held


def test_under_load_does_not_judge_a_silent_fiber():
    assert load((0.0,) * 4, (0.0,) * 4).held is None
