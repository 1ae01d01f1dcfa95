"""Random faults from failure statistics: the expected number by length and time, and reproducible by seed."""

from __future__ import annotations

import dataclasses
import math
import statistics
from itertools import pairwise
from typing import Any

import pytest
from builders.experiments import load, replayed
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import topology

from testbed.core.experiment import fault_schedule
from testbed.core.experiment.compression import parse_compression
from testbed.core.experiment.draw import Compression, Outages, draw, expected
from testbed.core.faults import causes
from testbed.core.faults.causes import CAUSES
from testbed.core.faults.fault_registry import registry
from testbed.core.units import Unreadable

YEAR_S = 365.25 * 24 * 3600
TOPOLOGY = topology(
    "sites: {east: , west: }\nducts: {bridge: 100 km, road: 300 km}\n"
    "defaults: {link: {optics: OpenZR+}}\n"
    "links: {north: {between: [east, west], via: [bridge, road]}, south: {between: [east, west], via: [bridge]},\n"
    "  third: {between: [east, west], km: 100}}\n"
)
FAST = Compression(time=YEAR_S, repair=3600.0)
"""A year in a second."""
MENDED = Compression(time=YEAR_S, repair=1e9)
"""The same, with repairs that take no time."""


def outages(to_s: float, **fields: Any) -> Outages:
    return Outages(to_s=to_s, **{"cuts_per_1000_km_year": 2.0, **fields})


def test_draw_as_many_as_kilometres_and_years_ask_for() -> None:
    """500 km of duct at 2 cuts for 1000 km and year is one a year: a Poisson number with a mean of 400."""
    cuts = outages(400.0, causes={"excavator": 1})
    assert expected(cuts, TOPOLOGY, FAST) == pytest.approx(400)
    counts = [len(draw(cuts, TOPOLOGY, MENDED, seed)) for seed in range(30)]
    assert statistics.mean(counts) == pytest.approx(400, abs=4 * math.sqrt(400 / 30))
    assert 10 < statistics.stdev(counts) < 35, "a Poisson number of that mean spreads by 20"


def test_draw_cuts_ducts_by_their_length_and_a_shared_one_once() -> None:
    targets = [fault.target for fault in draw(outages(3000.0), TOPOLOGY, MENDED, 1)]
    share = {name: targets.count(name) / len(targets) for name in ("bridge", "road", "third")}
    assert share == pytest.approx({"bridge": 0.2, "road": 0.6, "third": 0.2}, abs=0.03)


def test_draw_repairs_with_the_median_of_their_cause_and_nine_of_ten_in_its_range() -> None:
    drawn = draw(outages(3000.0, causes={"rodent": 2}), TOPOLOGY, FAST, 3)
    assert {fault.cause for fault in drawn} == {"rodent"}
    low, median, high = (hours / 3600 for hours in CAUSES["rodent"].repair_s)
    lasting = [fault.lasts_s for fault in drawn]
    assert statistics.median(lasting) == pytest.approx(median, rel=0.15)
    assert 0.8 < sum(low <= length_s <= high for length_s in lasting) / len(lasting) < 0.97


def test_draw_the_same_by_the_same_seed_and_something_else_by_another() -> None:
    early = outages(60.0, from_s=10.0)
    drawn = draw(early, TOPOLOGY, FAST, 7)
    assert drawn == draw(early, TOPOLOGY, FAST, 7) == draw(dataclasses.replace(early, seed=7), TOPOLOGY, FAST, 1)
    assert drawn != draw(early, TOPOLOGY, FAST, 8)
    assert all(10 <= fault.at_s < 60 for fault in drawn)


def test_draw_no_cut_of_a_duct_before_its_repair() -> None:
    drawn = draw(outages(60.0), TOPOLOGY, FAST, 2)
    for duct in {fault.target for fault in drawn}:
        cuts = [fault for fault in drawn if fault.target == duct]
        assert all(cut.at_s + cut.lasts_s <= following.at_s for cut, following in pairwise(cuts))


def test_nothing_is_drawn_where_nothing_ever_breaks() -> None:
    assert draw(outages(60.0, cuts_per_1000_km_year=0.0), TOPOLOGY, FAST, 0) == ()


def test_what_was_drawn_can_be_done_again_from_the_file_that_a_run_leaves() -> None:
    experiment = load(
        "workload: {steps: 90, seed: 5, timeout: 20s}\ncompress: {time: 1 year = 1s, repair: 1 h = 1s}\n"
        "set: {links.north.mtu: 1400}\n"
        "random: {to: 30s, cuts_per_1000_km_year: 2}\n"
        "hypothesis: {after: [{check: tokens_per_s > 5% of before, within: 7s}], before: [ranks_up == 2]}\n"
        "schedule:\n  - {when: train_loss < 3, inject: flap, target: 'link[0]', for: 2s, repeat: 3, every: 5s}\n"
        "  - {after: step 50%, inject: impair, target: third, with: {loss: 1%}}\n"
        "expect: [goodput >= 0.5, wrong_sums == 0]\n"
    )
    planned = fault_schedule.plan(experiment, TOPOLOGY)
    assert len(planned) > 5
    again = replayed(experiment, planned)
    assert fault_schedule.plan(again, TOPOLOGY) == planned
    assert again.outages is None
    for same in ("expectations", "seed", "steps", "set", "workload"):
        assert getattr(again, same) == getattr(experiment, same)
    hypotheses = [
        {(condition.when, condition.check.text, condition.within_s) for condition in run.hypothesis}
        for run in (again, experiment)
    ]
    assert hypotheses[0] == hypotheses[1]


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


@table("cause", CAUSES)
def test_each_cause_can_be_injected_and_says_where_its_time_is_from(cause: causes.Cause) -> None:
    kind = registry()[cause.fault]
    compiled = kind.compile(TOPOLOGY, "third", {**dict(cause.parameters), "cause": cause.name})
    assert compiled.links == ("third",)
    low, median, high = cause.repair_s
    assert low < median < high
    assert cause.source


def test_for_repair_is_the_usual_time_of_the_cause() -> None:
    experiment = load(
        "compress: {repair: 12 h = 6s}\n"
        "schedule: [{at: 1s, inject: cut, target: third, with: {cause: excavator}, for: repair}]\n"
    )
    assert fault_schedule.plan(experiment, TOPOLOGY)[0].for_s == pytest.approx(6.0)
