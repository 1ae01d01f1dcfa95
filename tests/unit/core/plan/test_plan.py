"""Plans: a complete one in a golden file, reproducible, and unchanged by a round trip through JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from testbed.core.plan import build, codec
from testbed.core.plan.properties import Carrier, Shape
from testbed.core.plan.resources import Address, Agents, Bridge, Fibers, Namespace, Route, Sysctls, Veth
from testbed.core.plan.step import Plan, Step
from testbed.core.topology.model import Topology
from testbed.core.topology.resolve import MOST_SITES
from testbed.host.files import catalog

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "plans"
SHIPPED = sorted(path.stem for path in (Path(__file__).resolve().parents[4] / "topologies").glob("*.yaml"))


@pytest.fixture(params=SHIPPED)
def shipped(request: pytest.FixtureRequest) -> Topology:
    return catalog.load_topology(request.param, None)


def plan_of(name: str) -> Plan:
    return build.build(catalog.load_topology(name, None))


def place(plan: Plan, kind: type[Step]) -> list[int]:
    return [number for number, step in enumerate(plan) if isinstance(step, kind)]


def test_the_plan_of_the_main_job() -> None:
    """UPDATE_GOLDEN=1 writes the file anew; read the difference before you believe it."""
    written = "".join(f"{step}\n" for step in plan_of("metro-40km"))
    golden = GOLDEN / "metro-40km.plan"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(written, encoding="utf-8")
    assert written == golden.read_text(encoding="utf-8")


def test_the_same_topology_gives_the_same_plan(shipped: Topology) -> None:
    assert build.build(shipped) == build.build(shipped)


def test_every_step_survives_json(shipped: Topology) -> None:
    for step in (*build.build(shipped), *build.reference(shipped.links[0])):
        again = codec.from_dict(json.loads(json.dumps(codec.to_dict(step))))
        assert again == step
        assert hash(again) == hash(step), "a list where a tuple was: the engine compares sets of Steps"


def test_every_line_is_one_line_that_names_its_kind(shipped: Topology) -> None:
    for step in build.build(shipped):
        assert "\n" not in str(step)
        assert str(step).split()[0].rstrip(":") in {
            "namespace", "veth", "bridge", "sysctl", "address", "route", "fibers", "shape", "carrier", "agents",
        }  # fmt: skip


def test_everything_is_made_after_what_it_lives_in(shipped: Topology) -> None:
    plan = build.build(shipped)
    made: set[str] = set()
    interfaces: set[tuple[str, str]] = set()
    for step in plan:
        if isinstance(step, Namespace):
            made.add(step.name)
        assert made.issuperset(step.within), step
        if isinstance(step, Veth):
            interfaces |= {(end.namespace, end.name) for end in (step.a, step.b)}
        elif isinstance(step, Bridge):
            assert interfaces.issuperset((step.namespace, port) for port in step.ports)
            interfaces.add((step.namespace, step.name))
        elif isinstance(step, Address | Carrier):
            assert (step.namespace, step.interface) in interfaces, step
        elif isinstance(step, Route):
            assert interfaces.issuperset((step.namespace, interface) for _, interface in step.hops), step


def test_no_light_before_the_emulator_forwards(shipped: Topology) -> None:
    plan = build.build(shipped)
    (fibers,) = place(plan, Fibers)
    assert fibers < min(place(plan, Shape)) < min(place(plan, Carrier))
    dark = {end.name for step in plan if isinstance(step, Veth) for end in (step.a, step.b) if not end.up}
    lit = {step.interface for step in plan if isinstance(step, Carrier) and step.up}
    assert dark == lit == {end for link in shipped.links for end in shipped.interfaces.ends(link.name)}


def test_routes_of_nodes_have_the_congestion_control_of_the_topology() -> None:
    for overrides, used in (({}, "cubic"), ({"congestion": "bbr"}, "bbr")):
        topology = catalog.load_topology("metro-40km", overrides)
        routes = [step for step in build.build(topology) if isinstance(step, Route) and step.congestion]
        assert {step.congestion for step in routes} == {used}
        assert {step.namespace for step in routes} == set(topology.node_names)


def test_agents_are_left_out_on_wish() -> None:
    topology = catalog.load_topology("metro-40km", None)
    with_agents, without = build.build(topology), build.build(topology, agents=False)
    assert [step for step in with_agents if not isinstance(step, Agents)] == list(without)
    (agents,) = [step for step in with_agents if isinstance(step, Agents)]
    assert [rank.node for rank in agents.ranks] == list(topology.node_names), "contiguous by site, as a ring likes it"


def test_one_end_of_every_cable_has_an_index_far_from_what_the_kernel_counts(shipped: Topology) -> None:
    indices: dict[str, list[int]] = {}
    for step in build.build(shipped):
        if isinstance(step, Veth):
            assert step.a.index > 10_000
            assert step.b.index == 0
            indices.setdefault(step.a.namespace, []).append(step.a.index)
    assert indices
    for found in indices.values():
        assert len(set(found)) == len(found)


def test_a_step_of_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(KeyError):
        codec.from_dict({"step": "Wormhole", "namespace": "plant"})


def test_a_packet_may_pass_as_many_gateways_as_a_topology_may_have() -> None:
    """In both families, from nodes and from gateways; one cut of a ring leads neighbours through all of them."""
    plan = plan_of("ring-64")
    begins = {step.name for step in plan if isinstance(step, Namespace)} - {"plant", "mgmt"}
    for key in ("net/ipv4/ip_default_ttl", "net/ipv6/conf/default/hop_limit"):
        hops = {
            it.namespace: int(dict(it.values)[key]) for it in plan if isinstance(it, Sysctls) and key in dict(it.values)
        }
        assert hops.keys() == begins
        assert min(hops.values()) > MOST_SITES
