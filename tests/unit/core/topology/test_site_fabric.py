"""``fabric:`` of a site: read, scaled, refused where it is wrong, planned; without the key nothing changes."""

from __future__ import annotations

import pytest
from builders.inputs import by_input
from builders.topologies import topology

from testbed.core.plan import build, clab, codec
from testbed.core.plan.resources import SiteFabric
from testbed.core.topology.model import topology_from_dict, topology_to_dict
from testbed.errors import FileMistakes, UnknownName

PLAIN = """\
scale: 1000
sites: {east: {nodes: 4}, west: {nodes: 2}}
links: {north: {between: [east, west], km: 40}}
"""
WITH = """\
scale: 1000
defaults: {site: {fabric: {rate: 400G, oversubscription: 2}}}
sites: {east: {nodes: 4}, west: {nodes: 2, fabric: {rate: 200G}}}
links: {north: {between: [east, west], km: 40}}
"""


def test_rates_are_divided_by_the_scale_and_the_core_by_the_oversubscription() -> None:
    lab = topology(WITH)
    east, west = lab.sites
    assert (east.fabric_bps, east.oversubscription, east.core_bps) == (400e6, 2.0, 800e6)
    assert (west.fabric_bps, west.oversubscription, west.core_bps) == (200e6, 1.0, 400e6), "its own mapping, whole"
    assert lab.origins["sites.east.fabric"].startswith("lab.yaml:2")
    assert lab.origins["sites.west.fabric"].startswith("lab.yaml:3")
    assert topology_from_dict(topology_to_dict(lab)) == lab
    assert topology(WITH, "sites.west.fabric.oversubscription=4").site("west").core_bps == 100e6


def test_without_the_key_nothing_changes() -> None:
    lab = topology(PLAIN)
    assert all(site.fabric_bps == 0 and site.core_bps == 0 for site in lab.sites)
    assert all(set(site) == {"name", "nodes", "power"} for site in topology_to_dict(lab)["sites"])
    assert not any("fabric" in key for key in lab.origins)
    assert not any(isinstance(step, SiteFabric) for step in build.build(lab))


def test_the_plan_limits_ports_and_core_and_changes_nothing_else() -> None:
    plan = build.build(topology(WITH))
    steps = [step for step in plan if isinstance(step, SiteFabric)]
    assert [str(step) for step in steps] == [
        "fabric east-gw:fabric: 4 ports of 400 Mb/s, core 800 Mb/s",
        "fabric west-gw:fabric: 2 ports of 200 Mb/s",
    ]
    assert [step.oversubscribed for step in steps] == [True, False]
    assert steps[0].within == ("east-gw", "east-0", "east-1", "east-2", "east-3")
    assert tuple(step for step in plan if not isinstance(step, SiteFabric)) == build.build(topology(PLAIN))
    for step in steps:
        assert codec.from_dict(codec.to_dict(step)) == step
    # Containers: the keeper applies what their own file does not have.
    assert [step for step in clab.left_over(plan) if isinstance(step, SiteFabric)] == steps


@by_input(
    "fabric, part",
    {
        "400G": "expected a mapping",
        "{oversubscription: 2}": "missing rate",
        "{rate: 400G, oversubscription: 0.5}": "0.5 is out of range",
        "{rate: fast}": "rate: ",
        "{rate: 400G, ratio: 2}": "unknown key 'ratio'",
        "{rate: 1M}": "fabric of site 'east' runs at 1e+03 b/s after scale 1000",
        "{rate: 20M, oversubscription: 100}": "core of the fabric of site 'east' runs at 800 b/s",
    },
)
def test_mistakes_have_their_line(fabric: str, part: str) -> None:
    with pytest.raises(FileMistakes) as error:
        topology(PLAIN.replace("{nodes: 4}", f"{{nodes: 4, fabric: {fabric}}}"))
    (finding,) = error.value.findings
    assert finding.line == 2 and part in finding.message and finding.fix


def test_an_unknown_key_of_set_is_refused() -> None:
    with pytest.raises(UnknownName, match="fabric"):
        topology(WITH, "sites.east.fabric.ratio=2")
