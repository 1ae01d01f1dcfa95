"""Routes of a topology by their ducts, failures by cause, energy by class of path."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from builders.predicted_jobs import job, plain

from testbed.core.prediction.duct_routes import duct_routes
from testbed.core.prediction.energy import Power, bits_by_class
from testbed.core.prediction.failure_costs import YEAR_S, goodput_elastic
from testbed.core.prediction.job_failures import Failures, UnderFailures
from testbed.core.prediction.prediction import predict
from testbed.core.prediction.workload_job import job_on
from testbed.core.topology.resolve import load_text
from testbed.core.workload.declared_compute import DeclaredCompute
from testbed.core.workload.workload import AgentWorkload
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
    it = replace(job("ddp", ranks=2, delay_s=50e-6), stands_for={"s0": 4096, "s1": 4096})
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
    it = job("diloco:every=100", step_s=0.8, rate_bps=1e7)
    under = UnderFailures(Failures(mtbf_s, checkpoint_s, restart_s), it, it.simulate())
    assert under.by_events() == pytest.approx(under.synchronous, rel=0.03)
    assert under.synchronous < under.decoupled <= under.elastic < under.outcome.utilization


def test_a_job_that_never_ends_has_no_events() -> None:
    it = job("ddp", step_s=0.8, rate_bps=1e9)
    assert UnderFailures(Failures(10.0, 30.0, 300.0), it, it.simulate()).by_events() is None


def test_fibers_of_a_topology_have_the_classes_of_their_lengths() -> None:
    text = b"""
sites: {a: {nodes: 4}, b: {nodes: 4}, c: {nodes: 4}}
links:
  ab: {between: [a, b], km: 40}
  bc: {between: [b, c], km: 400, optics: 400G-LH}
"""
    topology = load_text(text, "chain.yaml")
    of = job_on(AgentWorkload(strategy="hierarchical", compute=DeclaredCompute(1.0, model=1e9), layers=10), topology)
    assert {round(it) for it in of.network.lengths_m.values()} == {40_000, 400_000}
    bits = bits_by_class(of, of.simulate())
    payload = 32e9  # of 10^9 values
    # A ring of a, b and c, against its order: from a to c by way of b, and back one fiber at a time.
    passed = 4 / 3 * payload
    assert bits["metro"] == pytest.approx(2 * passed)
    assert bits["regional"] == pytest.approx(2 * passed)
    assert bits["fabric"] == pytest.approx(3 * (2 + 1) * 3 * payload, rel=1e-6)  # gloo scatters by a whole all-reduce


def test_energy_of_tiers_is_of_their_own_fibers() -> None:
    """Two regions: within them every 2 steps, between them also every 6; and waiting."""
    of = job("multi-tier:every=2,every_regions=6", sites=4, step_s=1.0, rate_bps=2**25, delay_s=1e-3)
    lengths = {lane: 1e6 if lane in ("s0>s2", "s2>s0") else 20e3 for lane in of.network.lengths_m}
    of = replace(of, network=replace(of.network, lengths_m=lengths))
    found = predict(of, power=Power(by_class={"metro": 1e-12, "long-haul": 100e-12}, idle_watts=500.0))
    payload = 32 * 2**20
    assert found.energy is not None
    # Of six steps: three exchanges in each region, one message each way, and a broadcast; one exchange between them.
    by_class = {"metro": (3 * 2 + 1) * 2 * payload / 6 * 1e-12, "long-haul": 2 * payload / 6 * 100e-12}
    assert found.energy.by_class == pytest.approx(by_class)
    assert found.energy.waiting_j == pytest.approx(found.exposed.total_s * 4 * 500)
    assert found.exposed.total_s == pytest.approx((3 + 2) * (1.0 + 1e-3) / 6)
    with pytest.raises(UserError, match="expected a value for metro fiber"):
        predict(of, power=Power(by_class={"long-haul": 1e-12}))
    with pytest.raises(UserError, match="unknown class of path 'ocean'"):
        predict(of, power=Power(by_class={"ocean": 1e-12}))


def test_a_flat_ring_sends_as_much_between_ranks_as_between_sites() -> None:
    of = job("ddp", ranks=4, delay_s=25e-6, library=plain())
    found = predict(of, power=Power(by_class={"fabric": 1e-12, "intra-metro": 5e-12}))
    assert found.energy is not None
    sent = 2 * 7 / 8 * 32 * 2**20
    assert found.energy.by_class == pytest.approx({"intra-metro": 2 * sent * 5e-12, "fabric": 6 * sent * 1e-12})
    assert found.energy.exchange_j == pytest.approx(sum(found.energy.by_class.values()))


def test_one_price_is_that_of_every_fiber_and_of_no_fabric() -> None:
    found = predict(job("ddp", ranks=4), power=Power(1e-12, by_class={"metro": 7e-12})).energy
    assert found is not None
    assert found.by_class == pytest.approx({"intra-metro": 2 * 2 * 7 / 8 * 32 * 2**20 * 1e-12, "fabric": 0.0})
