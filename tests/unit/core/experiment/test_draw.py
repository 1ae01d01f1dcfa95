"""Random faults from failure statistics: the expected number by length and time, and reproducible by seed."""

from __future__ import annotations

import dataclasses
import math
import statistics
from itertools import pairwise

import pytest
from builders.inputs import by_input

from testbed.core.experiment import fault_schedule, replay
from testbed.core.experiment.compression import parse_compression
from testbed.core.experiment.draw import Compression, Outages, draw, expected
from testbed.core.experiment.experiment_schema import load_text
from testbed.core.faults import causes
from testbed.core.faults.causes import CAUSES
from testbed.core.faults.fault_registry import registry
from testbed.core.topology import resolve
from testbed.core.units import Unreadable

YEAR_S = 365.25 * 24 * 3600
TOPOLOGY = resolve.load_text(
    b"sites: {east: , west: }\nducts: {bridge: 100 km, road: 300 km}\n"
    b"defaults: {link: {optics: OpenZR+}}\n"
    b"links: {north: {between: [east, west], via: [bridge, road]}, south: {between: [east, west], via: [bridge]},\n"
    b"  third: {between: [east, west], km: 100}}\n",
    "t.yaml",
)
FAST = Compression(time=YEAR_S, repair=3600.0)
"""A year in a second."""


def test_as_many_as_kilometres_and_years_ask_for() -> None:
    """500 km of duct at 2 cuts for 1000 km and year is one a year: a Poisson number with a mean of 400."""
    outages = Outages(to_s=400.0, cuts_per_1000_km_year=2.0, causes={"excavator": 1})
    assert expected(outages, TOPOLOGY, FAST) == pytest.approx(400)
    counts = [len(draw(outages, TOPOLOGY, Compression(YEAR_S, 1e9), seed)) for seed in range(30)]
    assert statistics.mean(counts) == pytest.approx(400, abs=4 * math.sqrt(400 / 30))
    assert 10 < statistics.stdev(counts) < 35, "a Poisson number of that mean spreads by 20"


def test_ducts_are_cut_by_their_length_and_a_shared_one_counts_once() -> None:
    outages = Outages(to_s=3000.0, cuts_per_1000_km_year=2.0)
    drawn = draw(outages, TOPOLOGY, Compression(YEAR_S, 1e9), 1)
    share = {name: sum(it.target == name for it in drawn) / len(drawn) for name in ("bridge", "road", "third")}
    assert share == pytest.approx({"bridge": 0.2, "road": 0.6, "third": 0.2}, abs=0.03)


def test_repairs_have_the_median_of_their_cause_and_nine_of_ten_lie_in_its_range() -> None:
    outages = Outages(to_s=3000.0, cuts_per_1000_km_year=2.0, causes={"rodent": 2})
    drawn = draw(outages, TOPOLOGY, Compression(YEAR_S, 3600.0), 3)
    assert {it.cause for it in drawn} == {"rodent"}
    low, median, high = (hours / 3600 for hours in CAUSES["rodent"].repair_s)
    lasting = [it.lasts_s for it in drawn]
    assert statistics.median(lasting) == pytest.approx(median, rel=0.15)
    assert 0.8 < sum(low <= it <= high for it in lasting) / len(lasting) < 0.97


def test_the_same_seed_draws_the_same_and_another_one_another() -> None:
    outages = Outages(to_s=60.0, from_s=10.0, cuts_per_1000_km_year=2.0)
    assert draw(outages, TOPOLOGY, FAST, 7) == draw(outages, TOPOLOGY, FAST, 7)
    assert draw(outages, TOPOLOGY, FAST, 7) != draw(outages, TOPOLOGY, FAST, 8)
    own = dataclasses.replace(outages, seed=7)
    assert draw(own, TOPOLOGY, FAST, 1) == draw(outages, TOPOLOGY, FAST, 7)
    assert all(10 <= it.at_s < 60 for it in draw(outages, TOPOLOGY, FAST, 7))


def test_a_duct_that_is_cut_is_not_cut_again_before_its_repair() -> None:
    drawn = draw(Outages(to_s=60.0, cuts_per_1000_km_year=2.0), TOPOLOGY, FAST, 2)
    for duct in {it.target for it in drawn}:
        mine = [it for it in drawn if it.target == duct]
        assert all(one.at_s + one.lasts_s <= other.at_s for one, other in pairwise(mine))


def test_nothing_is_drawn_where_nothing_ever_breaks() -> None:
    assert draw(Outages(to_s=60.0, cuts_per_1000_km_year=0.0), TOPOLOGY, FAST, 0) == ()


def test_what_was_drawn_can_be_done_again_from_the_file_that_a_run_leaves() -> None:
    experiment = load_text(
        b"workload: {steps: 90, seed: 5, timeout: 20s}\ncompress: {time: 1 year = 1s, repair: 1 h = 1s}\n"
        b"set: {links.north.mtu: 1400}\n"
        b"random: {to: 30s, cuts_per_1000_km_year: 2}\n"
        b"hypothesis: {after: [{check: tokens_per_s > 5% of before, within: 7s}], before: [ranks_up == 2]}\n"
        b"schedule:\n  - {when: train_loss < 3, inject: flap, target: 'link[0]', for: 2s, repeat: 3, every: 5s}\n"
        b"  - {after: step 50%, inject: impair, target: third, with: {loss: 1%}}\n"
        b"expect: [goodput >= 0.5, wrong_sums == 0]\n",
        "x.yaml",
    )
    planned = fault_schedule.plan(experiment, TOPOLOGY)
    assert len(planned) > 5
    text = replay.to_yaml(
        experiment, planned, topology="t.yaml", overrides=experiment.set, workload=experiment.workload
    )
    again = load_text(text.encode(), "again.yaml")
    assert fault_schedule.plan(again, TOPOLOGY) == planned
    assert again.outages is None
    for same in ("expectations", "seed", "steps", "set", "workload"):
        assert getattr(again, same) == getattr(experiment, same)
    assert {(it.when, it.check.text, it.within_s) for it in again.hypothesis} == {
        (it.when, it.check.text, it.within_s) for it in experiment.hypothesis
    }


@by_input(
    "written, factor",
    {"1 year = 60s": YEAR_S / 60, "12 h=5s": 8640, "2 days = 1 min": 2880, 3600: 3600, "90 s = 90 s": 1},
)
def test_compression(written: object, factor: float) -> None:
    assert parse_compression(written) == pytest.approx(factor)


@pytest.mark.parametrize(
    "written", [None, True, "fast", "1 year", "1 year = 0s", "1 s = 1 h", -1, 1e300, "1 lightyear = 1s"]
)
def test_what_is_no_compression(written: object) -> None:
    with pytest.raises(Unreadable):
        parse_compression(written)


@pytest.mark.parametrize("cause", CAUSES.values(), ids=lambda cause: cause.name)
def test_each_cause_can_be_injected_and_says_where_its_time_is_from(cause: causes.Cause) -> None:
    kind = registry()[cause.fault]
    compiled = kind.compile(TOPOLOGY, "third", {**dict(cause.parameters), "cause": cause.name})
    assert compiled.links == ("third",)
    low, median, high = cause.repair_s
    assert low < median < high
    assert cause.source


def test_for_repair_is_the_usual_time_of_the_cause() -> None:
    experiment = load_text(
        b"compress: {repair: 12 h = 6s}\n"
        b"schedule: [{at: 1s, inject: cut, target: third, with: {cause: excavator}, for: repair}]\n",
        "x.yaml",
    )
    assert fault_schedule.plan(experiment, TOPOLOGY)[0].for_s == pytest.approx(6.0)
