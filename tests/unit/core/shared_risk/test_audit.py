"""The shared-risk audit, compared with a brute-force reference without a graph library.

The reference walks links itself, enumerates every simple path and every cut, and shares no code with the audit.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from builders.cli_fixtures import Cli, cli
from builders.inputs import by_input
from builders.random_topology import topologies
from builders.topologies import RING
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.physics.protection_selector import SecondPath
from testbed.core.shared_risk.advice import findings
from testbed.core.shared_risk.audit import audit
from testbed.core.shared_risk.connectivity import Disjoint
from testbed.core.topology.model import Duct, Link, Site, Topology
from testbed.host.files import catalog

__all__ = ["cli"]  # a fixture

NO_DUCT: frozenset[str] = frozenset()


@st.composite
def shared(draw: st.DrawFn) -> Topology:
    """Up to 5 sites and 8 links in 5 ducts that they share, some with a second path, some sites on one feed."""
    plain = draw(topologies(connected=True))
    names = [site.name for site in plain.sites[:5]]
    ducts = [Duct(f"d{number}", 1000.0) for number in range(5)]
    some = st.lists(st.sampled_from([duct.name for duct in ducts]), min_size=1, max_size=2, unique=True)
    links = []
    for link in [link for link in plain.links if {*link.between} <= {*names}][-8:]:
        second = SecondPath(tuple(draw(some)), 9000.0, 0.05) if draw(st.booleans()) else None
        protection = "1+1" if second else draw(st.sampled_from(("none", "route")))
        links.append(replace(link, via=tuple(draw(some)), protection=protection, second_path=second))
    sites = tuple(Site(name, 1, draw(st.sampled_from(("grid-a", "grid-b", name)))) for name in names)
    return replace(plain, sites=sites, links=tuple(links), ducts=tuple(ducts))


def over_shared(test: Callable[[Topology], None]) -> Callable[[], None]:
    return settings(max_examples=60, deadline=None)(given(shared())(test))


def alive(link: Link, cut: frozenset[str]) -> bool:
    return not {*link.via} & cut or (link.second_path is not None and not {*link.second_path.via} & cut)


def reached(site: str, links: list[Link], gone: frozenset[str] = frozenset()) -> set[str]:
    found, grew = {site}, True
    while grew:
        grew = False
        for link in links:
            if not {*link.between} & gone and len({*link.between} & found) == 1:
                found |= {*link.between}
                grew = True
    return found


def separated(topology: Topology, links: list[Link], gone: frozenset[str] = frozenset()) -> int:
    left = [site.name for site in topology.sites if site.name not in gone]
    return sum(other not in reached(one, links, gone) for one, other in itertools.combinations(left, 2))


def after(topology: Topology, *ducts: str) -> list[Link]:
    return [link for link in topology.links if alive(link, frozenset(ducts))]


def simple_paths(topology: Topology, one: str, other: str, links: list[Link]) -> Iterator[list[Link]]:
    def walk(site: str, seen: set[str], path: list[Link]) -> Iterator[list[Link]]:
        if site == other:
            yield path
            return
        for link in links:
            if site in link.between:
                beyond = link.between[1 - link.between.index(site)]
                if beyond not in seen:
                    yield from walk(beyond, seen | {beyond}, [*path, link])

    yield from walk(one, {one}, [])


def rtt_s(link: Link, cut: frozenset[str]) -> float:
    if not {*link.via} & cut or link.second_path is None:
        return link.rtt_s
    return link.rtt_s + 2 * 5e-9 * (link.second_path.length_m - link.length_m)


def shortest_rtts(topology: Topology, pair: tuple[str, str], cut: frozenset[str]) -> set[float | None]:
    """Of all the ways that are shortest by routing's measure: which one is taken among equals is nobody's promise.

    None is: nothing arrives, for there is no way, or it leads over a dark link that nothing takes the place of.
    """
    believed = [link for link in topology.links if alive(link, cut) or link.protection == "none"]
    paths = list(simple_paths(topology, *pair, believed))
    if not paths:
        return {None}
    least = min(sum(link.length_m for link in path) for path in paths)
    some = [path for path in paths if sum(link.length_m for link in path) == least]
    return {
        round(sum(rtt_s(link, cut) for link in path), 12) if all(alive(link, cut) for link in path) else None
        for path in some
    }


def min_cut_bps(topology: Topology, pair: tuple[str, str], links: list[Link]) -> float:
    """Max-flow by its dual: of all divisions of the sites between the two the one that the least rate crosses."""
    others = [site.name for site in topology.sites if site.name not in pair]
    sides = itertools.chain.from_iterable(itertools.combinations(others, size) for size in range(len(others) + 1))
    return min(sum(link.rate_bps for link in links if len({*link.between} & {pair[0], *side}) == 1) for side in sides)


def largest_disjoint(sets: list[frozenset[str]]) -> int:
    def most(left: list[frozenset[str]]) -> int:
        if not left:
            return 0
        first, *rest = left
        return max(most(rest), 1 + most([it for it in rest if not it & first]))

    return most(list(dict.fromkeys(sets)))


@over_shared
def test_single_points_are_those_that_separate(topology: Topology) -> None:
    points = {(point.kind, point.name): point.pairs for point in audit(topology).single_points}
    expected: dict[tuple[str, str], int] = {}
    links = list(topology.links)
    for link in links:
        expected["link", link.name] = separated(topology, [other for other in links if other is not link])
        for duct in (*link.via, *(link.second_path.via if link.second_path else ())):
            expected["duct", duct] = separated(topology, after(topology, duct))
    for site in topology.sites:
        expected["gateway", site.gateway] = separated(topology, links, frozenset({site.name}))
        on = frozenset(other.name for other in topology.sites if other.power == site.power)
        if len(on) > 1:
            expected["power", site.power] = separated(topology, links, on)
    assert points == {key: pairs for key, pairs in expected.items() if pairs}


@over_shared
def test_double_cuts_are_those_of_which_neither_separates_by_itself(topology: Topology) -> None:
    found = audit(topology)
    used = [it.duct for it in found.ducts]
    harmless = [duct for duct in used if not separated(topology, after(topology, duct))]
    expected = {
        pair: count
        for pair in itertools.combinations(harmless, 2)
        if (count := separated(topology, after(topology, *pair)))
    }
    assert {it.ducts: it.pairs for it in found.double_cuts} == expected
    assert found.double_cuts_tried == found.double_cuts_possible == len(harmless) * (len(harmless) - 1) // 2


@over_shared
def test_round_trips_and_capacities_before_and_after(topology: Topology) -> None:
    found = audit(topology)
    for pair in found.pairs:
        assert round(pair.rtt_s, 12) in shortest_rtts(topology, pair.between, NO_DUCT)
        assert pair.capacity_bps == min_cut_bps(topology, pair.between, list(topology.links))
        left = {it.duct: min_cut_bps(topology, pair.between, after(topology, it.duct)) for it in found.ducts}
        assert pair.worst_capacity_bps == min([*left.values(), pair.capacity_bps])
        after_each = {it.duct: shortest_rtts(topology, pair.between, frozenset({it.duct})) for it in found.ducts}
        if pair.worst_rtt_s is None:
            assert None in after_each[pair.worst_duct]
        else:
            assert all(rtts != {None} for rtts in after_each.values())
            assert round(pair.worst_rtt_s, 12) in after_each[pair.worst_duct]
    for cut in found.ducts:
        assert set(cut.lost) == {link.name for link in topology.links if link not in after(topology, cut.duct)}
        assert cut.separated_pairs == separated(topology, after(topology, cut.duct))
        for detour in cut.detours:
            rtts = shortest_rtts(topology, detour.between, frozenset({cut.duct}))
            assert (None if detour.rtt_after_s is None else round(detour.rtt_after_s, 12)) in rtts


@over_shared
def test_disjoint_paths_are_as_many_as_all_choices_of_paths_allow(topology: Topology) -> None:
    for pair in audit(topology).pairs:
        ways = list(simple_paths(topology, *pair.between, list(topology.links)))
        if len(ways) > 12:
            continue  # brute force over all their subsets would take too long
        assert pair.link_disjoint == largest_disjoint([frozenset(link.name for link in way) for way in ways])
        sets = []
        for way in ways:
            choices = [[link.via] + ([link.second_path.via] if link.second_path else []) for link in way]
            sets += [frozenset(itertools.chain.from_iterable(choice)) for choice in itertools.product(*choices)]
        least = [it for it in dict.fromkeys(sets) if not any(other < it for other in sets)]
        assert pair.duct_disjoint.exact
        assert pair.duct_disjoint.count == largest_disjoint(least)


def test_audit_of_the_ring_whose_links_share_a_bridge() -> None:
    risks = audit(RING)
    assert [(shared.duct, shared.links, shared.separates) for shared in risks.shared] == [
        ("river-bridge", ("alba-brava", "costa-alba"), True)
    ]
    assert [(point.kind, point.name, point.islands) for point in risks.single_points] == [
        ("duct", "river-bridge", (("brava", "costa"), ("alba",)))
    ]
    assert risks.power == {"grid-a": ("alba", "brava")}
    brava = {pair.between: pair for pair in risks.pairs}["brava", "costa"]
    # Around by alba: 90 km and 110 km, at 5 us per km, there and back.
    assert (brava.rtt_s, brava.worst_rtt_s, brava.worst_duct) == (pytest.approx(1.4e-3), pytest.approx(2e-3), "valley")
    advice = [f"{finding.what} {finding.do}" for finding in findings(RING, risks)]
    for words in ("alba-brava and costa-alba share river-bridge", "one outage takes down 4 of 6 ranks"):
        assert any(words in sentence for sentence in advice)


def with_second_path(*via: str) -> Topology:
    """Return the ring with a second path of alba-brava."""
    second = SecondPath(via, 200e3, 0.05)
    links = (replace(link, second_path=second) if link.name == "alba-brava" else link for link in RING.links)
    return replace(RING, links=tuple(links))


def test_audit_of_a_second_path_that_takes_the_bridge_off_the_list() -> None:
    risks = audit(with_second_path("valley"))
    assert not risks.single_points
    bridge = {cut.duct: cut for cut in risks.ducts}["river-bridge"]
    assert (bridge.lost, bridge.switched) == (("costa-alba",), ("alba-brava",))


def test_audit_of_the_shipped_ring_that_is_protected_has_no_single_point_and_no_shared_risk() -> None:
    topology = catalog.load_topology("regional-protected")
    risks = audit(topology)
    assert [shared.duct for shared in risks.shared] == ["river-bridge"]
    assert not risks.single_points
    assert {finding.risk for finding in findings(topology, risks)} == {"second failure"}


def test_audit_of_a_second_path_through_the_same_duct_that_is_no_protection() -> None:
    topology = with_second_path("river-bridge", "coast")
    risks = audit(topology)
    assert [point.name for point in risks.single_points] == ["river-bridge"]
    sentence = "both paths of alba-brava pass through river-bridge"
    assert any(sentence in finding.what for finding in findings(topology, risks))


def test_audit_of_no_more_paths_than_the_bound() -> None:
    """8 pairs of parallel links: 256 paths. The last three pairs share ducts so that no two paths are disjoint although
    no single duct is in all of them: x or y, then y or z, then z or x."""
    sites = tuple(Site(f"s{number}", 1, f"s{number}") for number in range(9))
    base = catalog.load_topology("metro-single").links[0]
    in_last = dict(zip(("k5a", "k5b", "k6a", "k6b", "k7a", "k7b"), "xyyzzx", strict=True))
    links = tuple(
        replace(base, name=name, between=(f"s{number}", f"s{number + 1}"), via=(in_last.get(name, name),), length_m=1e3)
        for number in range(8)
        for name in (f"k{number}a", f"k{number}b")
    )
    pairs = {pair.between: pair for pair in audit(Topology("ladder", 1000.0, sites, links)).pairs}
    assert pairs["s0", "s8"].link_disjoint == 2
    assert pairs["s0", "s8"].duct_disjoint == Disjoint(1, exact=False)
    assert pairs["s5", "s8"].duct_disjoint == Disjoint(1, exact=True)
    assert pairs["s0", "s5"].duct_disjoint == Disjoint(2, exact=True)


def test_audit_of_a_link_that_nothing_takes_the_place_of() -> None:
    """north is the shortest: its cut stops what goes over it, although south is lit. south's stops nothing."""
    topology = catalog.load_topology("metro-40km", {"links.north.protection": "none"})
    risks = audit(topology)
    assert not risks.single_points, "the sites are joined still"
    after_each = {cut.duct: [detour.rtt_after_s for detour in cut.detours] for cut in risks.ducts}
    assert after_each == {"north": [None], "south": []}
    (words,) = (finding.what for finding in findings(topology, risks) if finding.risk == "no failover")
    assert "north" in words and "east - west" in words


def test_audit_of_one_site() -> None:
    risks = audit(Topology("alone", 1.0, (Site("a", 2, "a"),), ()))
    assert (risks.single_points, risks.pairs, risks.ducts) == ((), (), ())


@by_input(
    "name, parts",
    {
        "regional-ring": [
            *("river-bridge", "none (river-bridge)", "single point", "shared risk", "fix:", "1.4 ms → 2 ms"),
        ],
        "ring-64": [  # done soon and shown shortened
            "the worst 12 of 64 directly linked pairs of sites",
            "2016 of 2016 pairs of ducts separate sites",
        ],
    },
)
def test_audit_on_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, parts: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    printed = cli("audit", name)
    assert printed.status == 0
    for part in parts:
        assert part in printed.out


def test_audit_in_json_holds_all_of_it(cli: Cli) -> None:
    data = json.loads(cli("audit", "regional-ring", "--json").out)
    assert data["shared"][0]["links"] == ["alba-brava", "costa-alba"]
    assert data["pairs"][0]["duct_disjoint"] == {"count": 1, "exact": True}
    assert {finding["risk"] for finding in data["findings"]} >= {"single point", "shared risk", "shared power"}


def test_audit_of_a_file_with_mistakes_is_status_2(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("audit") / "bad.yaml"
    file.write_text("sites: {a: {}, b: {}}\nlinks: {k: {between: [a, c], km: 4}}\n")
    printed = cli("audit", str(file))
    assert printed.status == 2
    assert "bad.yaml:2" in printed.err
