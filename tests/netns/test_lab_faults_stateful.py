"""Random sequences of faults and heals on a running lab, against a model that knows nothing of journals or Steps.

The model: a port has its carrier unless an active fault takes it down; a link passes pings unless an active fault cuts
or silences it. After any sequence of injections and heals, `ip` and `ping` must agree with the model.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from builders.conditions import LABS
from builders.labs import Lab, shared_lab
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from oracles import oracle

import testbed

pytestmark = LABS

LINKS = {"north": ("east", "west"), "south": ("east", "west")}
SITES = ("east", "west")
NODES = ("east-0", "east-1", "west-0", "west-1")


@dataclass
class Effect:
    """What one standing fault does: ports that are dark, as (namespace, interface), and links that pass nothing for it.

    A silent cut darkens its link whatever else is in force (:meth:`_silenced`).
    """

    fault: testbed.Fault
    dark: set[tuple[str, str]] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)


def ports(links: list[str]) -> set[tuple[str, str]]:
    return {(f"{site}-gw", link) for link in links for site in LINKS[link]}


class Machine(RuleBasedStateMachine):
    lab: Lab

    def __init__(self) -> None:
        super().__init__()
        self.standing: list[Effect] = []

    def begin(self, fault: str, target: str, dark: set[tuple[str, str]], mute: set[str], **parameters: Any) -> None:
        self.standing.append(Effect(self.lab.inject(fault, target, **parameters), dark, mute))

    @rule(link=st.sampled_from(sorted(LINKS)))
    def cut(self, link: str) -> None:
        self.begin("cut", link, ports([link]), {link})

    @rule(link=st.sampled_from(sorted(LINKS)), site=st.sampled_from(SITES))
    def cut_one_way(self, link: str, site: str) -> None:
        self.begin("cut", f"{link}:{site}", {(f"{site}-gw", link)}, {link})

    @rule(link=st.sampled_from(sorted(LINKS)))
    def cut_silently(self, link: str) -> None:
        self.begin("cut", link, set(), set(), carrier="silent")

    @rule(link=st.sampled_from(sorted(LINKS)))
    def slow_down(self, link: str) -> None:
        self.begin("impair", link, set(), set(), delay="2ms")

    @rule(site=st.sampled_from(SITES))
    def gateway_down(self, site: str) -> None:
        self.begin("gateway-down", site, ports(sorted(LINKS)), set(LINKS))

    @rule(site=st.sampled_from(SITES))
    def partition_management(self, site: str) -> None:
        names = {node for node in NODES if node.startswith(site)} | {f"{site}-gw"}
        self.begin("management-partition", site, {(name, "mgmt0") for name in names}, set())

    @rule(node=st.sampled_from(NODES))
    def node_without_power(self, node: str) -> None:
        self.begin("node-kill", node, {(node, "mgmt0"), (node, "fabric0")}, set())

    @rule(which=st.integers(0, 20))
    def heal_one(self, which: int) -> None:
        if self.standing:
            self.standing.pop(which % len(self.standing)).fault.heal()

    @rule()
    def heal_all(self) -> None:
        self.lab.heal()
        self.standing.clear()

    @invariant()
    def ip_sees_what_the_model_says(self) -> None:
        dark = {port for effect in self.standing for port in effect.dark}
        watched = ports(sorted(LINKS)) | {(name, "mgmt0") for name in (*NODES, "east-gw", "west-gw")}
        watched |= {(node, "fabric0") for node in NODES}

        def seen() -> set[tuple[str, str]]:
            return {
                (name, link) for name, link in watched if oracle.no_carrier(oracle.netns(self.lab.name, name), link)
            }

        with contextlib.suppress(AssertionError):
            oracle.until(lambda: seen() == dark, 3.0, "")
        assert seen() == dark

    @invariant()
    def pings_pass_where_nothing_is_in_the_way(self) -> None:
        for link in LINKS:
            silent = self._silenced(link)
            if not silent and not any(link in effect.mute for effect in self.standing if effect.dark):
                east = oracle.netns(self.lab.name, "east-gw")
                address = oracle.addresses(oracle.netns(self.lab.name, "west-gw"), link)["inet"]
                oracle.until(lambda a=address, e=east: oracle.ping(e, a, wait_s=0.5), 3.0, f"{link} passes")  # type: ignore[misc]

    def _silenced(self, link: str) -> bool:
        """Whether any of the standing faults is a silent cut: what began later does not light the fiber."""
        return any(it.fault.target == link and it.fault.type == "cut" and not it.dark for it in self.standing)

    def teardown(self) -> None:
        self.lab.heal()


lab = shared_lab()


@pytest.mark.thorough
def test_any_sequence_of_faults_and_heals_ends_as_the_model_says(lab: Lab) -> None:
    machine = type("OnLab", (Machine,), {"lab": lab})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=60 if os.environ.get("TESTBED_THOROUGH") else 6,
            stateful_step_count=12,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert not any(it.ended is None for it in lab.faults())
