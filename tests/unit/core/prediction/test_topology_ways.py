"""Ways of training over the fibers of a topology, compared with figures calculated by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction.topology_ways import ways
from testbed.core.topology.resolve import load_text
from testbed.host.files import catalog

SHARE = 1448 / 1538
"""Of payload in the line rate."""


def exposed(name: str, gradient_bytes: float = 1e9, compute_s: float = 1.0) -> dict[str, float]:
    return {way.name: way.exposed_s for way in ways(catalog.load_topology(name), gradient_bytes, compute_s)}


def test_two_sites_by_hand() -> None:
    """metro-40km: d = 200 us, 800 Gb/s, 4 ranks, 1 GB: n takes 10.6 ms, in 39 buckets; messages have software."""
    found = exposed("metro-40km")
    n_s = 8e9 / (800e9 * SHARE)
    assert 12 * 200e-6 + 1.5 * n_s / 39 < found["ddp"] < 5e-3
    assert 200e-6 + n_s / 39 < found["hierarchical"] < 200e-6 + n_s / 39 + 1e-3
    for name, every in (("local-sgd", 16), ("diloco", 500)):
        assert (200e-6 + n_s) / every < found[name] < (200e-6 + n_s + 5e-3) / every + 1e-3
    assert found["streaming-diloco"] < 1e-3


def test_over_an_ocean_distance_decides() -> None:
    """d = 45 ms: an all-reduce in one ring has 12 of them or more, one between sites a single one."""
    found = {way.name: way for way in ways(catalog.load_topology("intercontinental-9000km"))}
    assert found["ddp"].exposed_s > 12 * 0.045
    assert found["hierarchical"].exposed_s == pytest.approx(0.045, rel=0.05)
    assert {name: way.verdict for name, way in found.items() if name != "ddp"} == {
        "hierarchical": "viable", "local-sgd": "viable", "diloco": "viable", "streaming-diloco": "viable",
    }  # fmt: skip
    assert found["ddp"].verdict != "viable"
    assert found["ddp"].rate_bps is None, "no rate brings 540 ms below a ninth of a second"
    assert found["diloco"].rate_bps == pytest.approx(8e9 / (500 / 9 - 0.045), rel=0.02)


def test_more_gradients_than_the_fiber_takes() -> None:
    n_s = 8e12 / (800e9 * SHARE)
    found = {way.name: way for way in ways(catalog.load_topology("metro-40km"), 1e12, 1.0)}
    first_s = 1 / 3 + 2 / 3 / 8  # the first bucket is ready; from then on the lane is busy
    assert found["hierarchical"].exposed_s == pytest.approx(first_s + n_s + 200e-6 - 1, rel=0.02)
    assert found["hierarchical"].verdict == "not viable"
    assert found["streaming-diloco"].exposed_s < 0.5  # 1.3 s of the fiber for a fragment, hidden by 5 s of compute
    assert exposed("metro-40km", 1e12, 0.1)["streaming-diloco"] > n_s / 100 - 0.1


def test_a_single_site_has_none() -> None:
    assert ways(load_text(b"sites: {a: {nodes: 4}}\n", "alone.yaml")) == ()


@pytest.mark.parametrize("scale", [10, 100])
def test_scale_changes_software_and_segments_only(scale: int) -> None:
    """Messages between two sites take the same; rings of gloo are cut into segments of a MiB of the lab."""
    usual, other = (
        {way.name: way for way in ways(catalog.load_topology("metro-40km", {"scale": it}))} for it in (1000, scale)
    )
    assert other["diloco"].exposed_s == pytest.approx(usual["diloco"].exposed_s, abs=0.05)
    assert other["ddp"].exposed_s >= usual["ddp"].exposed_s


@settings(max_examples=4)
@given(st.floats(0, 1e12), st.floats(1e-3, 100), st.sampled_from(["metro-40km", "regional-ring"]))
def test_what_is_exchanged_less_often_exposes_less(gradient_bytes: float, compute_s: float, name: str) -> None:
    found = {way.name: way for way in ways(catalog.load_topology(name), gradient_bytes, compute_s)}
    assert found["local-sgd"].exposed_s >= found["diloco"].exposed_s - 1e-9 >= -1e-9
    for way in found.values():
        assert 0 <= way.share <= 1
        assert math.isfinite(way.exposed_s)
