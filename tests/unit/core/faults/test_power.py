"""Plans of faults of ranks, places and packet sizes: what they change, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from builders.faults import fault, shaped
from builders.inputs import by_input
from builders.tables import table
from builders.topologies import METRO, RING

from testbed.core.faults.fault_kind import Compiled
from testbed.core.faults.fault_registry import registry
from testbed.core.plan.codec import from_dict, to_dict
from testbed.core.plan.properties import Carrier, Paused, Slowed, Throttled
from testbed.core.plan.resources import Killed, Unpowered
from testbed.core.plan.step import Property
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError

SITE = RING.sites[0]


def dark(compiled: Compiled) -> set[tuple[str, str]]:
    steps = compiled.steps
    return {(step.namespace, step.interface) for step in steps if isinstance(step, Carrier) and not step.up}


@by_input("target, ranks", {"2": [2], "west-1": [3], "east": [0, 1]})
def test_ranks_are_named_by_number_node_or_site(target: str, ranks: list[int]) -> None:
    assert [step.rank for step in fault(f"rank-pause {target}").steps] == ranks  # type: ignore[attr-defined]
    assert fault(f"rank-kill {target}").steps == tuple(map(Killed, ranks))
    assert fault(f"straggler {target} slower=3x").steps == tuple(Slowed(rank, 2.0) for rank in ranks)


@by_input("written, by", {"50%": 0.5, "250%": 2.5, "3x": 2.0, "0.25": 0.25})
def test_straggler_that_is_slower(written: str, by: float) -> None:
    (step,) = fault(f"straggler 0 slower={written}").steps
    assert isinstance(step, Slowed)
    assert step.by == pytest.approx(by)


@by_input("written, cpu", {"30%": 0.3, "5%": 0.05, "0.99": 0.99})
def test_straggler_with_a_share_of_a_cpu(written: str, cpu: float) -> None:
    steps = fault(f"straggler west cpu={written}").steps
    assert steps == (Throttled(2, "west-0", cpu), Throttled(3, "west-1", cpu))
    assert tuple(from_dict(to_dict(step)) for step in steps) == steps


def test_power_loss_of_a_domain_is_of_all_its_sites() -> None:
    together = [site for site in RING.sites if site.power == SITE.power]
    assert len(together) == 2  # else this shows nothing
    outage = fault(f"power-loss {SITE.power}", RING)
    nodes = {node for site in together for node in site.node_names}
    assert {step.node for step in outage.steps if isinstance(step, Unpowered)} == nodes == set(outage.nodes)
    names = {site.name for site in together}
    assert set(outage.links) == {link.name for link in RING.links if {*link.between} & names}
    for site in together:
        assert {(place, node) for node in site.node_names for place in ("mgmt", f"{site.name}-gw")} <= dark(outage)
    kinds = [isinstance(step, Carrier) for step in outage.steps]
    assert kinds == sorted(kinds, reverse=True), "the light goes first"


def test_power_loss_of_one_site_of_a_domain() -> None:
    assert set(fault(f"power-loss {SITE.name}", RING).nodes) == {*SITE.node_names}


def test_an_evacuation_does_nothing_before_its_time() -> None:
    phases = fault("evacuation west warning=5s").phases
    assert [(phase.at_s, phase.name, bool(phase.steps)) for phase in phases] == [
        (0.0, "warned", False),
        (5.0, "no power", True),
    ]
    assert phases[1].steps == fault("power-loss west").steps


@pytest.mark.parametrize("target", ["east", "east-gw"])
def test_gateway_down_takes_its_fibers_and_nothing_of_the_fabric(target: str) -> None:
    ends = {("plant", f"{link}-{side}") for link in ("north", "south") for side in "ab"}
    assert dark(fault(f"gateway-down {target}")) == ends


NORTH = METRO.link("north").impairment("north:west")


@by_input(
    "words, changes",
    {
        "jitter": {"jitter_s": pytest.approx(NORTH.delay_s / 10)},
        "jitter amount=30us distribution=uniform": {"jitter_s": pytest.approx(30e-6)},
        "rate-squeeze": {"rate_bps": pytest.approx(NORTH.rate_bps / 10)},
        "rate-squeeze to=50M": {"rate_bps": 50e6},
        "corruption share=1%": {"corrupt": 0.01},
        "corruption survives=true": {"corrupt_survives": True},
        "mtu-black-hole": {"largest_bytes": 1400},
    },
)
def test_presets_change_what_they_are_called_after(words: str, changes: dict[str, Any]) -> None:
    kind, _, parameters = words.partition(" ")
    ((direction, shape),) = shaped(f"{kind} north:west {parameters}").items()
    assert direction == "north:west"
    assert {field: getattr(shape, field) for field in changes} == changes
    if kind == "rate-squeeze":
        assert (shape.delay_s, shape.queue_bytes) == (NORTH.delay_s, NORTH.queue_bytes)


@by_input(
    "line, said",
    {
        "jitter north amount=1s": "amount",
        "jitter north amount=0us": "^amount=0us: expected a time greater than 0",
        "jitter east": "link or duct",
        "rate-squeeze north to=100%": "expected a share above 0% and below 100%",
        "rate-squeeze north to=900G": "write less",
        "rate-squeeze north to=0": "to=0",
        "corruption north share=2": "share=2",
        "corruption north share=0%": "^share=0%: expected a share greater than 0",
        "mtu-black-hole north largest='9000 B'": "the MTU of north:west is 1500 B; write less",
        "mtu-black-hole north largest='20 B'": "largest",
        "mtu-black-hole north largest=0B": "^largest=0B: expected at least 68 B",
        "mtu-black-hole north largest=0": "^largest=0: expected at least 68 B",
        "rank-kill 99": "0 to 3",
        "rank-kill 0 away=never": "away=never",
        "power-loss east-0": "power domain or site",
        "evacuation east warning=-1s": "warning",
        "straggler 0 cpu=4%": "cpu=4%: '4%' is out of range; .* from 5% to 99%",
        "straggler 0 cpu=100%": "a rank has one thread",
        "straggler 0 cpu=half": "expected a share of a CPU",
        "straggler 0 cpu=50% slower=2x": "either slower=.* or cpu=",
    },
)
def test_a_fault_that_cannot_be_or_would_do_nothing_is_refused_by_name(line: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        fault(line)


@by_input(
    "kinds, target",
    {
        "rank-kill": "0",
        "rank-pause node-kill": RING.node_names[0],
        "straggler gateway-down power-loss evacuation management-partition": SITE.name,
        "jitter rate-squeeze corruption mtu-black-hole": RING.links[0].name,
    },
)
def test_every_step_of_every_fault_survives_the_journal(kinds: str, target: str) -> None:
    for kind in kinds.split():
        assert kind in registry()
        for phase in fault(f"{kind} {target}", RING).phases:
            assert tuple(from_dict(to_dict(step)) for step in phase.steps) == phase.steps


@table(
    "state, at_rest",
    {
        "a paused rank": (Paused(1, True), Paused(1, False)),
        "a slowed rank": (Slowed(1, 0.5), Slowed(1, 0.0)),
        "a throttled rank": (Throttled(1, "a", 0.3), Throttled(1, "a", None)),
        "a carrier": (Carrier("mgmt", "east-0", False), Carrier("mgmt", "east-0", True)),
    },
)
def test_property_at_rest(state: Property, at_rest: Property) -> None:
    assert state.rest == at_rest


def test_a_site_called_like_a_gateway_is_that_site() -> None:
    text = b"sites: {east-gw: {}, west: {}}\nlinks: {north: {between: [east-gw, west], km: 1}}\n"
    assert fault("gateway-down east-gw", load_text(text, "x.yaml")).links == ("north",)
