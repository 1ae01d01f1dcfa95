"""Targets of faults: from the name of a link, a direction or a duct to the links and directions that it means."""

from __future__ import annotations

from testbed.core.topology.model import Link, Topology
from testbed.errors import UnknownName, UserError

__all__ = ["all_targets", "target_directions", "target_links"]


def all_targets(topology: Topology) -> set[str]:
    """Names of all that a fault can be on: links, ducts, sites, power domains, nodes."""
    found = {*topology.node_names, *(link.name for link in topology.links), *(duct.name for duct in topology.ducts)}
    return found | {name for site in topology.sites for name in (site.name, site.power)}


def target_links(topology: Topology, target: str) -> tuple[tuple[str, ...], str]:
    """(names of links, site that it is limited toward or "") of a fault target.

    ``north`` is a link both ways, ``north:west`` its direction toward west, the name of a duct every link inside.
    Raises UnknownName; UserError for a duct that holds second paths alone.
    """
    name, colon, toward = target.partition(":")
    links = {link.name: link for link in topology.links}
    if name in links:
        if colon and toward not in links[name].between:
            raise UnknownName(f"end of link {name}", toward, links[name].between)
        return (name,), toward
    shared = tuple(link.name for link in topology.links if name in link.via)
    if shared and not colon:
        return shared, ""
    if spare := [it.name for it in topology.links if it.second_path is not None and target in it.second_path.via]:
        raise UserError(
            f"{target} holds only the second path of {', '.join(spare)}, on which nothing is now: a cut of it is"
            " remembered, anything else would not be seen"
        )
    raise UnknownName("link or duct", target, [*links, *(duct.name for duct in topology.ducts)])


def target_directions(topology: Topology, target: str) -> tuple[tuple[Link, str], ...]:
    """Each direction that ``target`` names, with its link. Raises UnknownName."""
    names, toward = target_links(topology, target)
    return tuple(
        (link, direction)
        for link in map(topology.link, names)
        for direction in link.directions
        if not toward or direction == f"{link.name}:{toward}"
    )
