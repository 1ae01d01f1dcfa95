"""The containerlab file rendered from a plan: parsed by another YAML parser and compared with the plan."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

import testbed
from testbed.core.plan import build, clab
from testbed.core.plan.resources import READY_FILE, Address, Fibers, Namespace, Route, Sysctls, Veth
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Topology

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "clab"


def rendered(topology: Topology, plan: Plan | None = None, **options: Any) -> str:
    names = {"name": "lab", "image": "image:tag", "version": "1.2.3", **options}
    return clab.render(topology, plan or build.build(topology), **names)


def parsed(topology: Topology, plan: Plan | None = None, **options: Any) -> dict[str, Any]:
    """The section ``topology`` of the file."""
    return yaml.safe_load(rendered(topology, plan, **options))["topology"]


@pytest.fixture(params=["metro-40km", "metro-triangle", pytest.param("ring-64", marks=pytest.mark.thorough)])
def topology(request: pytest.FixtureRequest) -> Topology:
    return testbed.load(request.param)


def script_of(node: dict[str, Any]) -> list[list[str]]:
    """The commands that containerlab runs in a container, taken apart as it does and as sh does."""
    (stage,) = node["stages"]["create-links"]["exec"]
    words = shlex.split(stage["command"])
    assert words[:2] == ["sh", "-ec"] and len(words) == 3
    return [shlex.split(line) for line in words[2].splitlines() if line]


def test_every_namespace_is_a_container_and_every_cable_a_link(topology: Topology) -> None:
    plan = build.build(topology)
    section = parsed(topology, plan)
    assert set(section["nodes"]) == {step.name for step in plan if isinstance(step, Namespace)}
    cables = {
        (frozenset(f"{end.namespace}:{end.name}" for end in (step.a, step.b)), step.mtu)
        for step in plan
        if isinstance(step, Veth)
    }
    assert {(frozenset(link["endpoints"]), link["mtu"]) for link in section["links"]} == cables


def test_addresses_routes_and_sysctls_are_those_of_the_plan(topology: Topology) -> None:
    plan = build.build(topology)
    for name, node in parsed(topology, plan)["nodes"].items():
        commands = script_of(node)
        own = [step for step in plan if getattr(step, "namespace", None) == name]
        addresses = {(step.cidr, step.interface) for step in own if isinstance(step, Address)}
        assert {(words[3], words[5]) for words in commands if words[:3] == ["ip", "addr", "add"]} == addresses
        destinations = [step.destination for step in own if isinstance(step, Route)]
        assert sum("route" in words[:3] for words in commands) == len(destinations)
        for destination in destinations:
            assert any(destination in words for words in commands)
        wanted = {
            key.replace("/", "."): value for step in own if isinstance(step, Sysctls) for key, value in step.values
        }
        assert node.get("sysctls", {}) == wanted
        assert commands[-1] == ["touch", READY_FILE]


def test_what_this_kernel_does_not_have_is_left_out(topology: Topology) -> None:
    absent = frozenset({"net/ipv4/conf/all/arp_evict_nocarrier"})
    for node in parsed(topology, absent_sysctls=absent)["nodes"].values():
        assert "net.ipv4.conf.all.arp_evict_nocarrier" not in node.get("sysctls", {})


def test_no_container_is_privileged_or_comes_back_without_its_links(topology: Topology) -> None:
    defaults = parsed(topology)["defaults"]
    assert defaults["privileged"] is False
    assert defaults["cap-add"] == ["NET_ADMIN"]
    assert defaults["restart-policy"] == "no"  # unquoted it would be the boolean false
    assert defaults["network-mode"] == "none"


def test_fibers_are_dark_until_somebody_emulates_them(topology: Topology) -> None:
    plan = build.build(topology)
    (fibers,) = [step for step in plan if isinstance(step, Fibers)]
    ends = {direction.ingress for direction in fibers.directions}
    commands = script_of(parsed(topology, plan)["nodes"]["plant"])
    assert {words[3] for words in commands if words[:3] == ["ip", "link", "set"] and words[4] == "down"} == ends


def test_what_is_left_to_the_keeper_is_all_that_changes_later(topology: Topology) -> None:
    kinds = {type(step).__name__ for step in clab.left_over(build.build(topology))}
    assert kinds == {"Fibers", "Shape", "Carrier", "Agents"}


def test_it_reads_as_written_by_a_person() -> None:
    """UPDATE_GOLDEN=1 writes the file anew; read the difference before you believe it."""
    text = rendered(testbed.load("metro-40km"), name="metro-40km")
    path = GOLDEN / "metro-40km.clab.yml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_long_names_are_altnames_and_those_that_fit_are_not() -> None:
    topology = testbed.load("bay-area")
    assert "#   san-fra-k7ezu: san-francisco-to-santa-clara\n" in rendered(topology)
    commands = script_of(parsed(topology)["nodes"]["san-francisco-gw"])
    # A kernel or an ip that has no such names must not keep a container from its routes.
    assert [" ".join(words) for words in commands if "altname" in words] == [
        f"ip link property add dev {short} altname {full} || true"
        for short, full in (
            ("san-fra-k7ezu", "san-francisco-to-santa-clara"),
            ("sacrame-zg7eg", "sacramento-to-san-francisco"),
        )
    ]
    assert "altname" not in rendered(testbed.load("metro-40km"))
