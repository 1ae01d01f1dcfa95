"""Outages that part the sites: while they last, no path of lit fibers connects all sites with ranks.

A link is dark while a fault keeps one of its directions dark, or a gateway's port has no carrier, as the events tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from testbed.core.fields import mapping, sequence, text
from testbed.core.records.event import Event
from testbed.core.topology.direction import link_of
from testbed.core.topology.graph import reachable
from testbed.core.topology.model import Topology

__all__ = ["Outage", "longest_outage"]


@dataclass(frozen=True)
class Outage:
    """``links`` are those that were dark at any time of it; ``ended_t`` is None if its end is not in the record."""

    links: tuple[str, ...]
    began_t: float
    ended_t: float | None


def longest_outage(
    events: Iterable[Event], topology: Topology, from_t: float, to_t: float, seen_t: float
) -> Outage | None:
    """Return the longest outage that overlaps ``from_t`` to ``to_t``; ``seen_t`` ends one without an end."""
    near = [
        outage
        for outage in _outages(events, topology)
        if outage.began_t < to_t and (outage.ended_t is None or outage.ended_t > from_t)
    ]
    return max(
        near, key=lambda outage: (seen_t if outage.ended_t is None else outage.ended_t) - outage.began_t, default=None
    )


def _outages(events: Iterable[Event], topology: Topology) -> Iterator[Outage]:
    dark: dict[str, set[str]] = {link.name: set() for link in topology.links}
    began_t: float | None = None
    links: set[str] = set()
    for event in events:
        _note(event, dark)
        now = {name for name, why in dark.items() if why}
        parted = _parted(topology, now)
        if parted and began_t is None:
            began_t, links = event.t, set(now)
        elif parted:
            links |= now
        elif began_t is not None:
            yield Outage(_ordered(topology, links), began_t, event.t)
            began_t = None
    if began_t is not None:
        yield Outage(_ordered(topology, links), began_t, None)


def _note(event: Event, dark: dict[str, set[str]]) -> None:
    """Update why each link is dark: the directions without light, and the sites without carrier."""
    in_force = mapping(event.fields, "in_force")
    for direction in in_force:
        link = link_of(direction)
        if link in dark:
            lightless = bool(sequence(mapping(in_force, direction), "dark_by"))
            (dark[link].add if lightless else dark[link].discard)(direction)
    if event.event == "carrier" and (link := text(event.fields, "link")) in dark:
        (dark[link].discard if event.fields.get("up") is True else dark[link].add)(text(event.fields, "site"))


def _parted(topology: Topology, dark: set[str]) -> bool:
    lit = [link.between for link in topology.links if link.name not in dark]
    sites = [site.name for site in topology.sites]
    return bool(dark) and not reachable(sites[0], lit) >= {*sites}


def _ordered(topology: Topology, links: set[str]) -> tuple[str, ...]:
    return tuple(link.name for link in topology.links if link.name in links)
