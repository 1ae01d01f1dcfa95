"""Follow routes hop by hop as gateways apply them, and check for loops and dead ends.

A gateway (with ``ignore_routes_with_linkdown``) takes the route with the smallest metric that has a hop that is up; a
blackhole has no link that could be down. The oracle for reachability and distance is networkx.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import networkx
import pytest
from builders.random_topology import link_between, topologies
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.plan import build, routing
from testbed.core.plan.addressing import LAB_V4, LAB_V6, Addressing
from testbed.core.plan.resources import Route
from testbed.core.topology.model import Site, Topology
from testbed.host.files import catalog

Dark = frozenset[str]
Table = dict[tuple[str, str], list[Route]]


class Loop(AssertionError):
    pass


def table_of(routes: Iterable[Route]) -> Table:
    """{(gateway, destination): its routes, best first}."""
    found: Table = {}
    for route in routes:
        found.setdefault((route.namespace, route.destination), []).append(route)
    for ways in found.values():
        ways.sort(key=lambda route: route.metric)
        assert len({route.metric for route in ways}) == len(ways), "two routes of one metric: the kernel refuses one"
    return found


def next_links(table: Table, gateway: str, destination: str, dark: Dark) -> list[str]:
    """Interfaces that flows may leave by; empty where they end in a blackhole."""
    for route in table.get((gateway, destination), []):
        lit = [interface for _, interface in route.hops if interface not in dark]
        if lit or not route.hops:
            return lit
    return []


def walk(topology: Topology, table: Table, dark: Dark, origin: str, target: str, family: int) -> Iterator[list[str]]:
    """Every way that some flow may take: the links of each, up to its end. Raises Loop."""
    destination = str(Addressing(topology).site_networks(target)[family])

    def onward(site: str, seen: tuple[str, ...], taken: list[str]) -> Iterator[list[str]]:
        if site in seen:
            raise Loop(f"{' > '.join((*seen, site))} toward {target} while {sorted(dark)} is dark")
        if site == target:
            yield taken
            return
        links = next_links(table, f"{site}-gw", destination, dark)
        if not links:
            yield [*taken, "blackhole"]
        for name in links:
            a, b = topology.link(name).between
            yield from onward(b if site == a else a, (*seen, site), [*taken, name])

    return onward(origin, (), [])


def graph_of(topology: Topology, dark: Dark) -> networkx.MultiGraph:
    graph = networkx.MultiGraph()
    graph.add_nodes_from(site.name for site in topology.sites)
    for link in topology.links:
        if link.name not in dark:
            graph.add_edge(*link.between, key=link.name, weight=link.length_m)
    return graph


def check(topology: Topology, dark: Dark, *, rerouted: bool) -> None:
    """No circle anywhere; where the keeper has had its say also no dead end, and the shortest lit way."""
    routes = tuple(routing.routes(topology)) + (routing.detours(topology, dark) if rerouted else ())
    table, graph = table_of(routes), graph_of(topology, dark)
    for origin, target in itertools.permutations((site.name for site in topology.sites), 2):
        for family in (0, 1):
            for taken in walk(topology, table, dark, origin, target, family):
                if not networkx.has_path(graph, origin, target):
                    assert taken[-1] == "blackhole"
                elif rerouted:
                    assert "blackhole" not in taken, f"{origin} > {target}: {taken} while {sorted(dark)} is dark"
                    if topology.routing == "shortest":
                        metres = sum(topology.link(name).length_m for name in taken)
                        assert metres == networkx.shortest_path_length(graph, origin, target, weight="weight")


def check_each_cut(topology: Topology) -> None:
    for link in topology.links:
        for rerouted in (False, True):
            check(topology, frozenset({link.name}), rerouted=rerouted)


@pytest.mark.parametrize("name", ["metro-40km", "metro-triangle", "regional-ring"])
def test_shipped_topologies_with_any_link_dark(name: str) -> None:
    topology = catalog.load_topology(name, None)
    check(topology, frozenset(), rerouted=False)
    check_each_cut(topology)


def test_every_shared_duct_of_the_ring_may_be_dug_through() -> None:
    topology = catalog.load_topology("regional-ring", None)
    dark = frozenset(link.name for link in topology.links if "river-bridge" in link.via)
    assert len(dark) == 2
    check(topology, dark, rerouted=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(topologies())
def test_a_healthy_lab_has_no_circle_and_reaches_all_that_it_can(topology: Topology) -> None:
    check(topology, frozenset(), rerouted=True)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(topologies(connected=True))
def test_any_one_cut_makes_no_circle_before_the_keeper_reroutes_nor_after(topology: Topology) -> None:
    check_each_cut(topology)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(topologies(connected=True), st.data())
def test_several_cuts_at_once_once_the_keeper_has_rerouted(topology: Topology, data: st.DataObject) -> None:
    dark = data.draw(st.sets(st.sampled_from([link.name for link in topology.links])))
    check(topology, frozenset(dark), rerouted=True)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(topologies(connected=True), st.data())
def test_nothing_takes_the_place_of_a_link_without_protection(topology: Topology, data: st.DataObject) -> None:
    """No circle in any case; and while links are lit as far as routing knows, what would take a dark one is lost."""
    kinds = st.sampled_from(("none", "route"))
    links = tuple(dataclasses.replace(link, protection=data.draw(kinds)) for link in topology.links)
    mixed = dataclasses.replace(topology, links=links, routing="shortest")
    dark = frozenset(data.draw(st.sets(st.sampled_from([link.name for link in links]))))
    unknown = frozenset(link.name for link in links if link.protection == "none")
    table = table_of([*routing.routes(mixed), *routing.detours(mixed, dark)])
    believed = graph_of(mixed, dark - unknown)
    for origin, target in itertools.permutations([site.name for site in mixed.sites], 2):
        (taken,) = walk(mixed, table, dark, origin, target, 0)
        if taken[-1:] == ["blackhole"]:
            ways = networkx.all_shortest_paths(believed, origin, target, weight="weight")
            reachable = networkx.has_path(believed, origin, target)
            assert not reachable or any(_may_be_dark(mixed, way, dark & unknown) for way in ways)
        else:
            metres = sum(mixed.link(name).length_m for name in taken)
            assert metres == networkx.shortest_path_length(believed, origin, target, weight="weight")


def _may_be_dark(topology: Topology, sites: list[str], dark: Dark) -> bool:
    """Whether one of the links between two neighbours on this way is dark."""
    hops = [{*hop} for hop in itertools.pairwise(sites)]
    return any({*topology.link(name).between} in hops for name in dark)


@pytest.mark.parametrize(
    ("overrides", "gateway", "destination", "links"),
    [
        pytest.param(
            {"links.north.protection": "none"}, "east-gw", "10.2.0.0/16", {"": ["north"], "north": []},
            id="a cut of a link without protection stops what goes over it",
        ),
        # Failover between two sites takes milliseconds because no other program takes part.
        *(
            pytest.param(
                None, gateway, destination, {"": ["north"], "north": ["south"], "north south": []},
                id=f"the gateway alone backs up parallel links: {gateway}",
            )
            for gateway, destination in (("east-gw", "10.2.0.0/16"), ("west-gw", "fd5c:a1e:ac05:1::/64"))
        ),
    ],
)  # fmt: skip
def test_next_links_of_gateways_whose_links_are_parallel(
    overrides: dict[str, str] | None, gateway: str, destination: str, links: dict[str, list[str]]
) -> None:
    """``links``: by the links that are dark."""
    topology = catalog.load_topology("metro-40km", overrides)
    table = table_of(routing.routes(topology))
    assert {dark: next_links(table, gateway, destination, frozenset(dark.split())) for dark in links} == links
    assert routing.detours(topology, frozenset({"north"})) == ()


def test_multipath_spreads_over_parallel_links_whatever_their_length() -> None:
    sites = (Site("a", 1, ""), Site("b", 1, ""))
    links = (link_between("k1", ("a", "b"), 40.0), link_between("k2", ("b", "a"), 47.0))
    topology = Topology("two", 1.0, sites, links, routing="multipath")
    assert set(next_links(table_of(routing.routes(topology)), "a-gw", "10.2.0.0/16", frozenset())) == {"k1", "k2"}


@pytest.mark.parametrize("name", ["metro-40km", "regional-ring"])
def test_every_gateway_ends_in_a_blackhole_rather_than_in_a_default_route(name: str) -> None:
    topology = catalog.load_topology(name, None)
    routes = [step for step in build.build(topology) if isinstance(step, Route)]
    for site in topology.sites:
        for prefix in (LAB_V4, LAB_V6):
            (last,) = [it for it in routes if it.namespace == site.gateway and it.destination == str(prefix)]
            assert last.hops == ()


def test_the_oracle_can_find_a_circle() -> None:
    topology = catalog.load_topology("metro-triangle", None)
    net = Addressing(topology)
    west = str(net.site_networks("west")[0])
    wrong = [
        Route("east-gw", west, (("10.255.0.4", "south-east"),), 1),
        Route("south-gw", west, (("10.255.0.5", "south-east"),), 1),
    ]
    with pytest.raises(Loop):
        list(walk(topology, table_of(wrong), frozenset(), "east", "west", 0))


@pytest.mark.parametrize("cut", ["s01-s02", "s16-s17", "s40-s41"])
def test_no_packet_goes_in_a_circle_from_where_a_detour_was_just_laid_or_taken_away(cut: str) -> None:
    """One route after the other, laid in order and taken away backwards: after each, packets from there arrive."""
    ring = catalog.load_topology("ring-64")
    healthy: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for route in routing.routes(ring):
        if route.hops:
            healthy.setdefault((route.namespace, route.destination), []).append((route.metric, route.hops[0][1]))
    homes = {str(net): site.name for site in ring.sites for net in Addressing(ring).site_networks(site.name)}
    between = {it.name: it.between for it in ring.links}
    detours: dict[tuple[str, str], str] = {}

    def arrives(site: str, destination: str, dark: str) -> bool:
        for _ in range(len(ring.sites)):
            if site == homes[destination]:
                return True
            key = f"{site}-gw", destination
            lit = [name for _, name in sorted(healthy[key]) if name != dark]
            here, there = between[detours.get(key) or lit[0]]
            site = there if site == here else here
        return False

    order = routing.detours(ring, frozenset([cut]))
    assert order
    for route in order:
        detours[route.namespace, route.destination] = route.hops[0][1]
        assert arrives(route.namespace.removesuffix("-gw"), route.destination, cut), route
    for route in reversed(order):
        del detours[route.namespace, route.destination]
        assert arrives(route.namespace.removesuffix("-gw"), route.destination, ""), route
