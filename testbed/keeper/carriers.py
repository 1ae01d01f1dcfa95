"""The carriers of a live lab: watched at all gateways, reported as events, and routed around where a link is down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

from testbed.core.plan import routing
from testbed.core.plan.addressing import Addressing
from testbed.core.plan.resources import Rank
from testbed.core.topology.model import Topology
from testbed.host.linux.scheduling import use_realtime_priority
from testbed.host.measure import reachability_probe
from testbed.host.measure.carrier_watch import CarrierState, CarrierWatch, Change
from testbed.keeper.engine import Engine
from testbed.keeper.event_log import EventLog

__all__ = ["DETOURS", "Carriers", "unreachable_sites"]

DETOURS = "detours"
"""Owner of the routes that bypass links that are down elsewhere."""


class Carriers:
    """Watches carriers. ``submit`` queues work for the engine's thread without waiting for it."""

    def __init__(self, engine: Engine, submit: Callable[[Callable[[], None]], object], events: EventLog) -> None:
        self._engine, self._submit, self._events = engine, submit, events
        self._topology: Topology | None = None
        self._links: dict[str, str] = {}
        """The link of each interface that is watched."""
        self._watch: CarrierWatch | None = None
        self._reroute_due = False

    def watch(self, topology: Topology, path: Callable[[str], Path]) -> None:
        """Start watching; ``path`` returns the handle of a gateway's namespace."""
        self._topology = topology
        self._links = {topology.interfaces.of_link(link.name): link.name for link in topology.links}
        watched: dict[str, set[str]] = {}
        for link in topology.links:
            for site in link.between:
                watched.setdefault(topology.site(site).gateway, set()).add(topology.interfaces.of_link(link.name))
        places = {gateway: path(gateway) for gateway in watched}
        self._watch = CarrierWatch(places, watched, self._changed, use_realtime_priority)
        self._watch.start()
        routing.prepare(topology)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()

    def dark(self) -> frozenset[str]:
        """Return the links without a carrier at either end or both."""
        return frozenset() if self._watch is None else frozenset(self._links[end] for end in self._watch.dark())

    def states(self) -> dict[tuple[str, str], CarrierState]:
        """Return the states of both ends of every link by (gateway, link); empty before :meth:`watch`."""
        states = {} if self._watch is None else self._watch.states()
        return {(gateway, self._links[interface]): state for (gateway, interface), state in states.items()}

    def _changed(self, change: Change) -> None:
        where = {"link": self._links[change.interface], "site": change.place.removesuffix("-gw")}
        if change.missed:
            self._events.add("carrier-missed", t=change.t, **where, count=change.missed)
        if change.turned:
            self._events.add("carrier", t=change.t, **where, up=change.lit, changes=change.changes)
        # Between two sites the kernels' own failover suffices.
        if self._topology is not None and len(self._topology.sites) > 2 and not self._reroute_due:
            self._reroute_due = True
            with contextlib.suppress(RuntimeError):  # the engine's thread has ended, and the lab with it
                self._submit(self._reroute)

    def _reroute(self) -> None:
        """Route around the links that are down; in the engine's thread."""
        self._reroute_due = False
        if self._topology is None or self._watch is None or self._engine.journal.state not in ("up", "kept"):
            return
        began = time.monotonic()
        try:
            self._engine.replace(DETOURS, routing.detours(self._topology, self.dark()))
            self._events.add("rerouted", took_s=round(time.monotonic() - began, 4))
        except Exception as error:
            self._events.add("note", text=f"routes could not be changed: {error}")


def unreachable_sites(topology: Topology, ranks: Iterable[Rank], path: Callable[[str], Path]) -> list[tuple[str, str]]:
    """Return the pairs of sites that do not reach each other: a silent cut leaves the carriers up.

    ``path`` returns the handle of a node's namespace. Probes between the nodes of each site's first rank. Takes seconds
    where there are such pairs.
    """
    firsts = {rank.site: rank.node for rank in sorted(ranks, key=lambda rank: rank.rank, reverse=True)}
    addresses = {site: str(Addressing(topology).node(node)[0]) for site, node in firsts.items()}
    pairs = list(combinations(sorted(firsts), 2))

    def probe(site: str) -> frozenset[str]:
        peers = [addresses[second] for first, second in pairs if first == site]
        return reachability_probe.answering(path(firsts[site]), peers)

    with ThreadPoolExecutor(len(firsts) or 1, thread_name_prefix="reachability") as pool:
        reached = dict(zip(firsts, pool.map(probe, firsts), strict=True))
    return [(first, second) for first, second in pairs if addresses[second] not in reached[first]]
