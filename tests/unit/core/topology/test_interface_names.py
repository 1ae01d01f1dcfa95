"""Interfaces of long names: short, unique in each namespace whatever the names are, and the same in any order."""

from __future__ import annotations

import json
import random
import re
from collections import Counter, defaultdict

from builders.random_topology import link_between
from builders.topologies import topology
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.plan import build, codec
from testbed.core.plan.resources import Bridge, Fibers, Veth
from testbed.core.topology import names
from testbed.core.topology.interface_names import RESERVED, InterfaceNames, shortened
from testbed.core.topology.model import Site, Topology
from testbed.core.units import Unreadable

IFNAMSIZ = 16
ALTIFNAMSIZ = 128
PARTS = ("", "-a", "-b", "-gw", "-0", "-255", "2")
BEGINNINGS = ("san-francisco", "frankfurt", "frankfu", "frankfurt-east", "frankfurt-to-san-francisco", "a")


def allowed(kind: str, name: str) -> bool:
    try:
        names.check_name(kind, name)
    except Unreadable:
        return False
    return True


@st.composite
def adversarial(draw: st.DrawFn, kind: str, most: int) -> list[str]:
    """Names that begin alike, that are the short names of others, and the next ones; with all suffixes of a lab."""
    room = 13 if kind == "link" else 11
    found: list[str] = []
    for _ in range(draw(st.integers(1, most))):
        choice = draw(st.integers(0, 2))
        if choice == 0 or not found:
            name = draw(st.sampled_from(BEGINNINGS)) + draw(st.sampled_from(PARTS)) * draw(st.integers(0, 3))
        elif choice == 1:
            name = shortened(draw(st.sampled_from(found)), room, draw(st.integers(0, 2)))
        else:
            name = draw(st.sampled_from(found))[:30] + draw(st.sampled_from(PARTS))
        if name not in found and allowed(kind, name):
            found.append(name)
    return found


def lab(sites: list[str], links: list[str], nodes: int, seed: int) -> Topology:
    """Each link between two sites by its name alone, so that its order in the file does not matter."""
    pairs = [(a, b) for a in sorted(sites) for b in sorted(sites) if a < b]
    between = {name: pairs[random.Random(name).randrange(len(pairs))] for name in links} if pairs else {}
    order = random.Random(seed)
    sites, links = order.sample(sites, len(sites)), order.sample(sorted(between), len(between))
    return Topology(
        "lab",
        1000.0,
        tuple(Site(it, nodes, it) for it in sites),
        tuple(link_between(it, between[it], 1) for it in links),
    )


def interfaces(resolved: Topology) -> dict[str, list[tuple[str, str]]]:
    """(name, alternative name) of all interfaces of a lab, by namespace, as its plan makes them."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for step in build.build(resolved, agents=False):
        if isinstance(step, Veth):
            for end in (step.a, step.b):
                found[end.namespace].append((end.name, end.alternative))
        if isinstance(step, Bridge):
            found[step.namespace].append((step.name, ""))
    return found


def distinct(sites: list[str], links: list[str], nodes: int) -> bool:
    """Whether a topology file may have these names together: sites, nodes, gateways and links share one name space."""
    all_names = [*sites, *links, *(f"{it}-gw" for it in sites), *(f"{it}-{n}" for it in sites for n in range(nodes))]
    return max(Counter(all_names).values()) == 1


@given(adversarial("site", 6), adversarial("link", 8), st.integers(1, 12), st.integers(0, 99))
def test_any_names_make_a_lab_whose_interfaces_the_kernel_accepts(
    sites: list[str], links: list[str], nodes: int, seed: int
) -> None:
    if not distinct(sites, links, nodes):
        return
    places = {f"{site}-{end}" for site in sites for end in ("gw", *range(nodes))}
    ends = {f"{link}-{side}" for link in links for side in "ab"}
    for place, found in interfaces(lab(sites, links, nodes, seed)).items():
        for name, alternative in found:
            assert len(name) < IFNAMSIZ and re.fullmatch(r"[a-z0-9-]+", name)
            assert len(alternative) < ALTIFNAMSIZ
            # The full name is one that a person finds in the topology, and has a short one only if it is too long.
            assert name in RESERVED or (alternative or name) in places | ends | set(links)
            assert not alternative or len(alternative) >= IFNAMSIZ
        # The kernel keeps both sorts of names in one table (netdev_name_node, net/core/dev.c).
        taken = [it for pair in found for it in pair if it] + ["lo"]
        assert max(Counter(taken).values()) == 1, place


@given(adversarial("site", 5), adversarial("link", 8), st.integers(0, 99), st.integers(0, 99))
def test_the_order_of_the_file_does_not_matter(sites: list[str], links: list[str], one: int, other: int) -> None:
    if not distinct(sites, links, 2):
        return
    first, second = lab(sites, links, 2, one), lab(sites, links, 2, other)
    assert first.interfaces.short == second.interfaces.short
    pairs = [{place: sorted(found) for place, found in interfaces(it).items()} for it in (first, second)]
    assert pairs[0] == pairs[1]


def of_links(*names: str) -> InterfaceNames:
    return InterfaceNames({}, names)


def test_a_name_that_is_another_ones_short_name_stays_and_the_other_moves_on() -> None:
    long, other = "frankfurt-to-san-francisco", "frankfurt-to-sao-paulo"
    taken = [shortened(long, 13), shortened(long, 13, 1)]
    lab = of_links(long, *taken, other)
    assert [*map(lab.of_link, taken)] == taken
    assert lab.of_link(long) == shortened(long, 13, 2)
    assert lab.of_link(other) == shortened(other, 13), "others are not touched"
    # Only the end of a link, not its port, is another interface of the lab.
    assert of_links(long, shortened(long, 13) + "-a").of_link(long) == shortened(long, 13, 1)


def test_interface_names_of_real_cities() -> None:
    """Pinned: a lab that is up must keep its names when the testbed is updated."""
    lab = InterfaceNames({"san-francisco": ["-0", "-9", "-10", "-gw"], "frankfurt-east": ["-0", "-gw"]}, ["north"])
    ports = {
        "san-francisco-0": "san-francisco-0",
        "san-francisco-9": "san-francisco-9",
        "san-francisco-10": "san-f-ivfmf-10",
        "san-francisco-gw": "san-f-ivfmf-gw",
        "frankfurt-east-0": "frank-ubqfs-0",
    }
    assert {node: lab.port(node.rpartition("-")[0], node) for node in ports} == ports
    assert (lab.of_link("north"), lab.ends("north")) == ("north", ("north-a", "north-b"))
    links = of_links("frankfurt-to-san-francisco", "fourteen-chars")
    assert links.of_link("frankfurt-to-san-francisco") == "frankfu-bxonf"
    assert links.ends("frankfurt-to-san-francisco") == ("frankfu-bxonf-a", "frankfu-bxonf-b")
    assert links.full("frankfu-bxonf-a") == "frankfurt-to-san-francisco-a"
    assert links.of_link("fourteen-chars") == "fourteen-chars", "it fits where nothing is added"
    assert {*map(len, links.ends("fourteen-chars"))} == {15}


@given(st.from_regex(r"[a-z][a-z0-9-]{13,39}", fullmatch=True))
def test_ip_reads_no_short_name_as_a_keyword(name: str) -> None:
    """Keywords of ip-link(8), ip-address(8) and ip-route(8) may be abbreviated; the longest has 12 characters."""
    if allowed("link", name):
        short = of_links(name).of_link(name)
        assert len(short) >= 12 and allowed("link", short)


def test_names_that_fit_are_those_of_older_versions() -> None:
    """Sites of up to 11 characters and links of up to 13, the limits of older versions."""
    fitting = topology(
        "sites: {elevenchars: {nodes: 256}, west: {}}\nlinks: {thirteenchars: {between: [elevenchars, west], km: 1}}\n"
    )
    assert fitting.interfaces.short == {}
    found = interfaces(fitting)
    assert {"elevenchars-255", "elevenchars-gw"} < {name for name, _ in found["mgmt"]}
    assert found["plant"] == [("thirteenchars-a", ""), ("thirteenchars-b", "")]


def test_what_is_written_of_names_that_fit_is_what_older_versions_write() -> None:
    """So a journal or a keeper of either version reads that of the other. Keys as of version 0.1.0."""
    plain = lab(["east", "west"], ["north"], 1, 0)
    for step in map(codec.to_dict, (*build.build(plain, agents=False), *build.reference(plain.links[0]))):
        for key in ("a", "b"):
            if isinstance(step.get(key), dict):
                assert step[key].keys() == {"namespace", "name", "index", "up", "mac"}
        for direction in step.get("directions", ()):
            assert direction.keys() == {"name", "ingress", "egress", "impairment"}


def test_long_names_survive_json() -> None:
    plan = build.build(
        lab(["san-francisco-east", "frankfurt-am-main"], ["frankfurt-to-san-francisco"], 1, 0), agents=False
    )
    assert codec.plan_from_list(json.loads(json.dumps([*map(codec.to_dict, plan)]))) == plan
    (fibers,) = (step for step in plan if isinstance(step, Fibers))
    assert [it.receiver for it in fibers.directions] == ["frankfu-bxonf"] * 2
