"""The tier inside a site in a prediction: by its own formula, and nothing without a rate."""

from __future__ import annotations

import pytest
from testbed.core.prediction.from_topology import from_topology
from testbed.core.prediction.inputs import PAYLOAD_SHARE, Inputs
from testbed.core.prediction.strategies import STRATEGIES

from testbed.core.prediction.prediction import predict
from testbed.core.topology import resolve

LAB = """\
scale: 1000
sites: {east: {nodes: 4%s}, west: {nodes: 4}}
links: {north: {between: [east, west], km: 40}}
"""
INPUTS = Inputs(step_s=0.3, parameters=1e9, layers=10, rate_bps=1e12, ranks_per_site=4)


def test_a_topology_gives_the_rate_of_a_node_while_all_of_its_site_send() -> None:
    plain = from_topology(resolve.load_text((LAB % "").encode(), "x"))
    assert "site_rate_bps" not in plain
    fabric = from_topology(resolve.load_text((LAB % ", fabric: {rate: 400G, oversubscription: 2}").encode(), "x"))
    assert fabric["site_rate_bps"] == pytest.approx(200e9 * PAYLOAD_SHARE)
    assert {key: it for key, it in fabric.items() if key != "site_rate_bps"} == plain


@pytest.mark.parametrize("name", STRATEGIES)
def test_without_a_rate_nothing_is_inside(name: str) -> None:
    it = STRATEGIES[name]
    own = {"activation_bits": 1e6, "token_bits": 1e6, "expert_layers": 2}
    if it.own_fibers:
        return
    outcome = it.predict(INPUTS.but(**{key: value for key, value in own.items() if key in it.own}))
    assert outcome.exposed.inside_s == 0.0


def test_a_slow_fabric_is_exposed_by_what_the_backward_pass_does_not_hide() -> None:
    # 2 (r - 1) / r n / B' = 1.5 x 16e9 / 100e9 = 0.24 s; 10 buckets beside 0.2 s of backward hide 0.18 s.
    slow = INPUTS.but(site_rate_bps=100e9)
    hierarchical = predict("hierarchical", slow)
    assert hierarchical.outcome.exposed.inside_s == pytest.approx(0.06)
    assert hierarchical.outcome.step_s == pytest.approx(predict("hierarchical", INPUTS).outcome.step_s + 0.06)
    # Fast: a tenth of 0.024 s, the last bucket's.
    assert predict("hierarchical", INPUTS.but(site_rate_bps=1e12)).outcome.exposed.inside_s == pytest.approx(0.0024)
    # Each step, and every 5 steps the gather of the model, half of 0.24 s.
    assert predict("diloco", slow.but(every=5)).outcome.exposed.inside_s == pytest.approx(0.06 + 0.12 / 5)
    streaming = predict("streaming-diloco", slow.but(every=5))
    assert streaming.outcome.formula == "events"
    assert streaming.outcome.exposed.inside_s == streaming.closed.exposed.inside_s == pytest.approx(0.06 + 0.12 / 5)
    assert predict("diloco", slow.but(every=5)).to_dict()["exposed"]["inside_s"] == pytest.approx(0.084)


def test_a_flat_ring_has_the_pace_of_its_slowest_hop() -> None:
    slow = predict("ddp", INPUTS.but(site_rate_bps=1e11)).outcome
    assert slow.step_s == pytest.approx(predict("ddp", INPUTS.but(rate_bps=1e11)).outcome.step_s)
    assert slow.exposed.inside_s == 0.0


def test_one_rank_a_site_has_nothing_inside() -> None:
    one = INPUTS.but(ranks_per_site=1, site_rate_bps=1e9)
    assert predict("hierarchical", one).outcome.exposed.inside_s == 0.0
