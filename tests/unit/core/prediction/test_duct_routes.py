"""Routes of a topology by their ducts, failures by cause, energy by class of path."""

from __future__ import annotations

import math
import random

import pytest
from testbed.core.prediction.from_topology import from_topology
from testbed.core.prediction.inputs import Inputs, Tier
from testbed.core.prediction.strategies import STRATEGIES

from testbed.core.prediction.duct_routes import duct_routes
from testbed.core.prediction.energy import Power, bits_by_class
from testbed.core.prediction.failure_costs import YEAR_S, goodput_elastic
from testbed.core.prediction.job_failures import Failures, UnderFailures
from testbed.core.prediction.prediction import predict
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError

CUTS = 2.13
REPAIR_S = 12 * 3600.0

SHARED = b"""
sites: {a: {nodes: 2}, b: {nodes: 2}}
ducts: {bridge: 10, left: 30, right: 50}
links:
  one: {between: [a, b], via: [bridge, left]}
  two: {between: [a, b], via: [bridge, right]}
"""
APART = SHARED.replace(b"via: [bridge, right]", b"via: [right]")


def down(km: float) -> float:
    """Return the share of time in which a duct is cut."""
    per_repair = CUTS * km / 1000 / YEAR_S * REPAIR_S
    return per_repair / (1 + per_repair)


def test_routes_that_share_a_duct_are_as_available_as_that_duct_allows() -> None:
    routes = duct_routes(load_text(SHARED, "shared.yaml"))
    assert routes.separating == {"bridge"}
    assert routes.total_m() == pytest.approx(90e3)
    found = routes.availability(CUTS, REPAIR_S)
    assert (found.between, found.routes) == (("a", "b"), 2)
    assert 1 - found.share == pytest.approx(down(10) + down(30) * down(50), rel=1e-3)


def test_routes_apart_fail_together_only() -> None:
    routes = duct_routes(load_text(APART, "apart.yaml"))
    assert routes.separating == frozenset()
    up = (1 - down(10)) * (1 - down(30))
    assert 1 - routes.availability(CUTS, REPAIR_S).share == pytest.approx((1 - up) * down(50), rel=1e-6)


def test_cuts_without_a_bypass_count_among_the_failures() -> None:
    it = Inputs(0.8, 1e10, 48, 1e12, ranks_per_site=8192, delay_s=50e-6)
    topology = duct_routes(load_text(SHARED, "shared.yaml"))
    failures = Failures(3600.0, mtbf_rank_s=5.785 * YEAR_S, mtbf_site_s=YEAR_S, cuts_per_1000_km_year=CUTS,
                        routes=topology)  # fmt: skip
    rates = failures.rates_hz(it)
    assert rates["fibers"] * YEAR_S == pytest.approx(CUTS * 10 / 1000)
    assert rates["sites"] * YEAR_S == pytest.approx(2)
    assert 1 / rates["accelerators"] / 3600 == pytest.approx(3.095, abs=0.005)  # Llama 3, 16,384 accelerators
    assert 1 / failures.job_mtbf_s(it) == pytest.approx(sum(rates.values()))
    alone = Failures(cuts_per_1000_km_year=CUTS)  # without a topology: one fiber of 10 km
    assert alone.rates_hz(it)["fibers"] * YEAR_S == pytest.approx(CUTS * 10 / 1000)


def test_goodput_of_a_job_that_loses_one_site_at_a_time_is_what_a_plain_simulation_says() -> None:
    """Up for an exponential time, then away; each failure costs lost_s of the work of that site."""
    chance, learners, mtbf_s, rejoin_s, lost_s = random.Random(3), 4, 5_000.0, 300.0, 40.0
    work_s = total_s = 0.0
    for _ in range(learners):
        for _ in range(20_000):
            up_s = chance.expovariate(1 / mtbf_s)
            work_s += max(0.0, up_s - lost_s)
            total_s += up_s + rejoin_s
    found = goodput_elastic(0.9, learners, mtbf_s, rejoin_s, lost_s)
    assert found == pytest.approx(0.9 * work_s / total_s, rel=0.01)


@pytest.mark.parametrize(("mtbf_s", "checkpoint_s", "restart_s"), [(3 * 3600, 30, 300), (1800, 10, 60)])
def test_both_levels_agree_on_goodput(mtbf_s: float, checkpoint_s: float, restart_s: float) -> None:
    it = Inputs(0.8, 1e10, 48, 1e11, every=100)
    under = UnderFailures(Failures(mtbf_s, checkpoint_s, restart_s), it, STRATEGIES["diloco"].predict(it))
    assert under.by_events() == pytest.approx(under.synchronous, rel=0.03)
    assert under.synchronous < under.decoupled <= under.elastic < under.outcome.utilization


def test_a_job_that_never_ends_has_no_events() -> None:
    it = Inputs(0.8, 1e10, 48, 1e11)
    assert UnderFailures(Failures(10.0, 30.0, 300.0), it, STRATEGIES["ddp"].predict(it)).by_events() is None


def test_fibers_of_a_topology_have_the_classes_of_their_lengths() -> None:
    text = b"""
sites: {a: {nodes: 4}, b: {nodes: 4}, c: {nodes: 4}}
links:
  ab: {between: [a, b], km: 40}
  bc: {between: [b, c], km: 400, optics: 400G-LH}
"""
    found = from_topology(load_text(text, "chain.yaml"))
    assert found["fibers_m"] == (40e3, 400e3, 400e3, 40e3)  # a - b, b - c, and back by way of b
    it = Inputs(1.0, 1e9, 10, **found)
    outcome = STRATEGIES["hierarchical"].predict(it)
    bits = bits_by_class(it, STRATEGIES["hierarchical"].exchanged(it), outcome, flat=False)
    assert bits["metro"] == pytest.approx(2 * outcome.bits_per_step)
    assert bits["regional"] == pytest.approx(2 * outcome.bits_per_step)
    assert bits["fabric"] == pytest.approx(3 * 2 * 3 * 16e9)  # each site reduces and gathers 16 Gbit among 4 ranks


def test_tiers_cost_by_their_own_fibers() -> None:
    tiers = (Tier(1, 1e12, 1e-5), Tier(10, 1e11, 200e-6), Tier(100, 1e10, 45e-3))
    it = Inputs(0.8, 1e10, 48, 1e12, tiers=tiers)
    power = Power(by_class={"intra-metro": 1e-12, "metro": 10e-12, "intercontinental": 100e-12}, idle_watts=500.0)
    found = predict("tiers", it, power=power)
    assert found.energy is not None
    payload = 2 * 160e9  # of both sites
    by_class = {"intra-metro": payload * 1e-12, "metro": payload / 10 * 10e-12, "fabric": 0.0,
                "intercontinental": payload / 100 * 100e-12}  # fmt: skip
    for path, joules in found.energy.by_class.items():
        assert joules == pytest.approx(by_class[path])
    assert found.energy.waiting_j == pytest.approx(found.outcome.exposed.total_s * 2 * 500)
    with pytest.raises(UserError, match="expected a value for metro and intercontinental fiber"):
        predict("tiers", it, power=Power(by_class={"intra-metro": 1e-12}))
    with pytest.raises(UserError, match="unknown class of path 'ocean'"):
        predict("tiers", it, power=Power(by_class={"ocean": 1e-12}))


def test_a_flat_ring_sends_as_much_between_ranks_as_between_sites() -> None:
    it = Inputs(0.8, 1e10, 48, 1e12, 50e-6, ranks_per_site=4)
    found = predict("ddp", it, power=Power(by_class={"fabric": 1e-12, "intra-metro": 5e-12}))
    assert found.energy is not None
    sent = 2 * 7 / 8 * 160e9
    assert found.energy.by_class == pytest.approx({"intra-metro": 2 * sent * 5e-12, "fabric": 6 * sent * 1e-12})
    assert math.isclose(found.energy.exchange_j, sum(found.energy.by_class.values()))
