"""The tier inside a site in a prediction: by its own formula, and nothing without a rate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders.predicted_jobs import job, plain
from builders.tables import table
from builders.topologies import topology

from testbed.core.prediction.network import PAYLOAD_SHARE, Network
from testbed.core.prediction.predicted_job import Job

LAB = """\
scale: 1000
sites: {east: {nodes: 4%s}, west: {nodes: 4}}
links: {north: {between: [east, west], km: 40}}
"""
STEP_S, ELEMENTS = 0.3, 3 * 2**20
BITS = 32 * ELEMENTS


def with_fabrics(words: str, fabric_bps: float = math.inf, ranks: int = 4) -> Job:
    """Return a job of eight buckets whose fibers have no limit."""
    of = job(words, ranks=ranks, elements=ELEMENTS, layers=8, step_s=STEP_S, library=plain())
    rates = {} if math.isinf(fabric_bps) else dict.fromkeys(of.network.sites, fabric_bps)
    return of.but(network=replace(of.network, fabric_bps=rates))


def exposed_s(words: str, fabric_bps: float, ranks: int = 4) -> float:
    return with_fabrics(words, fabric_bps, ranks).simulate().parts.total_s


@table(
    "fabric, rate_bps",
    {
        "no rate": ("", None),
        "a rate, of which half leaves a node while all send": (", fabric: {rate: 400G, oversubscription: 2}", 200e9),
    },
)
def test_a_topology_gives_the_rate_of_a_node_while_all_of_its_site_send(fabric: str, rate_bps: float | None) -> None:
    found = Network.of_topology(topology(LAB % fabric))
    expected = {} if rate_bps is None else {"east": rate_bps / 1000 * PAYLOAD_SHARE}
    assert found.fabric_bps == pytest.approx(expected)
    assert replace(found, fabric_bps={}) == Network.of_topology(topology(LAB % ""))


@pytest.mark.parametrize("words", ["ddp", "hierarchical", "fsdp", "diloco:every=5", "streaming-diloco:every=5"])
def test_without_a_rate_nothing_is_inside(words: str) -> None:
    assert exposed_s(words, math.inf) == pytest.approx(0.0, abs=1e-9)


@table(
    "fabric_bps, part_s",
    {
        "slower than the backward pass": (20 * BITS, 1.5 / 20 / 8),
        "slower than that": (4 * BITS, 1.5 / 4 / 8),
        "faster than it": (200 * BITS, 1.5 / 200 / 8),
    },
)
def test_a_fabric_is_exposed_by_what_the_backward_pass_does_not_hide(fabric_bps: float, part_s: float) -> None:
    """A node sends 2 (r - 1) / r of all bits, eight parts beside 0.2 s; every 5 steps it gathers half as much."""
    late_s = max(part_s, 8 * part_s - 0.175)
    assert exposed_s("diloco:every=5", fabric_bps) == pytest.approx(late_s + 8 * part_s / 2 / 5)
    assert exposed_s("local-sgd:every=10", fabric_bps) == pytest.approx(late_s + 8 * part_s / 2 / 10)
    streaming = exposed_s("streaming-diloco:every=5,fragments=2", fabric_bps)
    assert streaming == pytest.approx(late_s + 8 * part_s / 2 / 5)  # fragment by fragment, when it lands


def test_slices_are_scattered_and_gathered_beside_the_backward_pass() -> None:
    """Both use the same fabric: 1.5 and 0.75 of all bits, of which 0.175 s are hidden."""
    both_s = (1.5 + 0.75) / 10
    assert exposed_s("hierarchical", 10 * BITS) == pytest.approx(both_s - 0.175, rel=0.02)


def test_a_flat_ring_has_the_pace_of_its_slowest_hop() -> None:
    ring_s = 2 * 7 / 8 / 5
    assert exposed_s("ddp", 5 * BITS) == pytest.approx(ring_s - 0.175)
    fibers = with_fabrics("ddp").but(network=Network.alike(("s0", "s1"), 5 * BITS, 0.0), moved={})
    assert fibers.simulate().parts.total_s == pytest.approx(ring_s - 0.175)


def test_one_rank_a_site_has_nothing_inside() -> None:
    assert exposed_s("hierarchical", 1e3, ranks=1) == pytest.approx(0.0, abs=1e-9)


def test_one_slow_fabric_holds_all_sites() -> None:
    of = with_fabrics("diloco:every=5", 20 * BITS)
    slow = of.but(network=replace(of.network, fabric_bps={"s1": 4 * BITS}), moved={})
    late_s = 1.5 / 4 - 0.175
    assert slow.simulate().step_s == pytest.approx(STEP_S + late_s + 0.75 / 4 / 5)
