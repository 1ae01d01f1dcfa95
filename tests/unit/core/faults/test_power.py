"""Plans of faults of ranks, places and packet sizes: what they change, and nothing else."""

from __future__ import annotations

import pytest
from oracles.fault_values import shapes

from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import compile_fault, registry
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.codec import from_dict, to_dict
from testbed.core.plan.properties import Carrier, Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed, Unpowered
from testbed.core.plan.step import Property
from testbed.core.topology.model import Topology
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError
from testbed.host.files import catalog


@pytest.fixture(scope="module")
def metro() -> Topology:
    return catalog.load_topology("metro-40km", None)


@pytest.fixture(scope="module")
def ring() -> Topology:
    return catalog.load_topology("regional-ring", None)


def dark(compiled: Compiled, phase: int = 0) -> set[tuple[str, str]]:
    steps = compiled.phases[phase].steps
    return {(it.namespace, it.interface) for it in steps if isinstance(it, Carrier) and not it.up}


@pytest.mark.parametrize(("target", "ranks"), [("2", [2]), ("west-1", [3]), ("east", [0, 1])])
def test_ranks_are_named_by_number_node_or_site(metro: Topology, target: str, ranks: list[int]) -> None:
    assert [it.rank for it in compile_fault(metro, "rank-pause", target, {}).steps] == ranks  # type: ignore[attr-defined]
    assert compile_fault(metro, "rank-kill", target, {}).steps == tuple(Killed(rank) for rank in ranks)
    assert compile_fault(metro, "straggler", target, {"slower": "3x"}).steps == tuple(Slowed(it, 2.0) for it in ranks)


@pytest.mark.parametrize(("written", "by"), [("50%", 0.5), ("250%", 2.5), ("3x", 2.0), ("0.25", 0.25)])
def test_how_much_slower(metro: Topology, written: str, by: float) -> None:
    (step,) = compile_fault(metro, "straggler", "0", {"slower": written}).steps
    assert isinstance(step, Slowed)
    assert step.by == pytest.approx(by)


@pytest.mark.parametrize(("written", "cpu"), [("30%", 0.3), ("5%", 0.05), ("0.99", 0.99)])
def test_a_share_of_a_cpu(metro: Topology, written: str, cpu: float) -> None:
    steps = compile_fault(metro, "straggler", "west", {"cpu": written}).steps
    assert steps == (Throttled(2, "west-0", cpu), Throttled(3, "west-1", cpu))
    assert tuple(from_dict(to_dict(it)) for it in steps) == steps


def test_a_power_domain_is_all_its_sites(ring: Topology) -> None:
    together = [site.name for site in ring.sites if site.power == ring.sites[0].power]
    assert len(together) == 2  # else this shows nothing
    compiled = compile_fault(ring, "power-loss", ring.sites[0].power, {})
    nodes = {node for site in ring.sites if site.name in together for node in site.node_names}
    assert {it.node for it in compiled.steps if isinstance(it, Unpowered)} == nodes == set(compiled.nodes)
    assert set(compiled.links) == {link.name for link in ring.links if {*link.between} & {*together}}
    for node in nodes:
        assert {("mgmt", node), (f"{ring.site_of(node).name}-gw", node)} <= dark(compiled)
    kinds = [isinstance(it, Carrier) for it in compiled.steps]
    assert kinds == sorted(kinds, reverse=True), "the light goes first"


def test_one_site_of_a_domain_goes_alone(ring: Topology) -> None:
    compiled = compile_fault(ring, "power-loss", ring.sites[0].name, {})
    assert set(compiled.nodes) == {*ring.sites[0].node_names}


def test_an_evacuation_does_nothing_before_its_time(metro: Topology) -> None:
    compiled = compile_fault(metro, "evacuation", "west", {"warning": "5s"})
    assert [(it.at_s, it.name, bool(it.steps)) for it in compiled.phases] == [
        (0.0, "warned", False),
        (5.0, "no power", True),
    ]
    assert compiled.phases[1].steps == compile_fault(metro, "power-loss", "west", {}).steps


def test_a_gateway_takes_its_fibers_and_nothing_of_the_fabric(metro: Topology) -> None:
    ends = {("plant", f"{link}-{side}") for link in ("north", "south") for side in "ab"}
    assert dark(compile_fault(metro, "gateway-down", "east", {})) == ends
    assert dark(compile_fault(metro, "gateway-down", "east-gw", {})) == ends


def test_presets_change_what_they_are_called_after_and_keep_the_rest(metro: Topology) -> None:
    own = metro.link("north").impairment("north:west")

    def shaped(fault: str, **parameters: str) -> Impairment:
        ((direction, it),) = shapes(metro, compile_fault(metro, fault, "north:west", parameters).steps).items()
        assert direction == "north:west"
        return it

    assert shaped("jitter").jitter_s == pytest.approx(own.delay_s / 10)
    assert shaped("jitter", amount="30us", distribution="uniform").jitter_s == pytest.approx(30e-6)
    squeezed = shaped("rate-squeeze")
    assert squeezed.rate_bps == pytest.approx(own.rate_bps / 10)
    assert (squeezed.delay_s, squeezed.queue_bytes) == (own.delay_s, own.queue_bytes)
    assert shaped("rate-squeeze", to="50M").rate_bps == 50e6
    assert shaped("corruption", share="1%").corrupt == 0.01
    assert shaped("corruption", survives="true").corrupt_survives
    assert shaped("mtu-black-hole").largest_bytes == 1400


@pytest.mark.parametrize(
    ("fault", "target", "parameters", "says"),
    [
        ("jitter", "north", {"amount": "1s"}, "amount"),
        ("jitter", "east", {}, "link or duct"),
        ("rate-squeeze", "north", {"to": "100%"}, "expected a share above 0% and below 100%"),
        ("rate-squeeze", "north", {"to": "900G"}, "write less"),
        ("rate-squeeze", "north", {"to": "0"}, "to=0"),
        ("corruption", "north", {"share": "2"}, "share=2"),
        ("mtu-black-hole", "north", {"largest": "9000 B"}, "the MTU of north:west is 1500 B; write less"),
        ("mtu-black-hole", "north", {"largest": "20 B"}, "largest"),
        ("rank-kill", "99", {}, "0 to 3"),
        ("rank-kill", "0", {"away": "never"}, "away=never"),
        ("power-loss", "east-0", {}, "power domain or site"),
        ("evacuation", "east", {"warning": "-1s"}, "warning"),
        ("straggler", "0", {"cpu": "4%"}, "cpu=4%: '4%' is out of range; .* from 5% to 99%"),
        ("straggler", "0", {"cpu": "100%"}, "a rank has one thread"),
        ("straggler", "0", {"cpu": "half"}, "expected a share of a CPU"),
        ("straggler", "0", {"cpu": "50%", "slower": "2x"}, "either slower=.* or cpu="),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    metro: Topology, fault: str, target: str, parameters: dict[str, str], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        compile_fault(metro, fault, target, parameters)


def test_every_step_of_every_fault_survives_the_journal(ring: Topology) -> None:
    site, node = ring.sites[0], ring.node_names[0]
    targets = {"rank-kill": "0", "rank-pause": node, "straggler": site.name, "node-kill": node}
    for name in ("gateway-down", "power-loss", "evacuation", "management-partition"):
        targets[name] = site.name
    for name in ("jitter", "rate-squeeze", "corruption", "mtu-black-hole"):
        targets[name] = ring.links[0].name
    assert set(targets) <= set(registry())
    for name, target in targets.items():
        for phase in compile_fault(ring, name, target, {}).phases:
            assert tuple(from_dict(to_dict(step)) for step in phase.steps) == phase.steps


def test_what_nobody_says_is_as_at_rest() -> None:
    settings: list[Property] = [
        Paused(1, True),
        Slowed(1, 0.5),
        Throttled(1, "a", 0.3),
        Carrier("mgmt", "east-0", False),
    ]
    assert [it.rest for it in settings] == [
        *(Paused(1, False), Slowed(1, 0.0), Throttled(1, "a", None)),
        Carrier("mgmt", "east-0", True),
    ]


def test_a_site_called_like_a_gateway_is_that_site() -> None:
    text = b"sites: {east-gw: {}, west: {}}\nlinks: {north: {between: [east-gw, west], km: 1}}\n"
    compiled = compile_fault(load_text(text, "x.yaml"), "gateway-down", "east-gw", {})
    assert compiled.links == ("north",)
