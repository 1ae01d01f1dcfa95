"""Resolve a fault's target, the name of a link, direction or duct, to the links and directions it covers."""

from __future__ import annotations

from testbed.core.topology.model import Link, Topology
from testbed.errors import UnknownName, UserError

__all__ = ["all_targets", "target_directions", "target_links"]


def all_targets(topology: Topology) -> set[str]:
    """Return the names of all possible targets: links, ducts, sites, power domains, nodes."""
    found = {*topology.node_names, *(link.name for link in topology.links), *(duct.name for duct in topology.ducts)}
    return found | {name for site in topology.sites for name in (site.name, site.power)}


def target_links(topology: Topology, target: str) -> tuple[tuple[str, ...], str]:
    """Return (names of links, site of the only direction or "") of a fault target.

    ``north`` is a link in both directions, ``north:west`` its direction toward west, the name of a duct every link
    inside. Raises UnknownName; UserError for a duct that has second paths only.
    """
    name, colon, toward = target.partition(":")
    links = {link.name: link for link in topology.links}
    if name in links:
        if colon and toward not in links[name].between:
            raise UnknownName("link end", toward, links[name].between)
        return (name,), toward
    shared = tuple(link.name for link in topology.links if name in link.via)
    if shared and not colon:
        return shared, ""
    if spare := [it.name for it in topology.links if it.second_path is not None and target in it.second_path.via]:
        raise UserError(
            f"{target} has only the second path of {', '.join(spare)}, which carries no traffic now; inject a cut, the"
            " only fault with an effect there"
        )
    raise UnknownName("link or duct", target, [*links, *(duct.name for duct in topology.ducts)])


def target_directions(topology: Topology, target: str) -> tuple[tuple[Link, str], ...]:
    """Return each direction of ``target``, with its link. Raises UnknownName."""
    names, toward = target_links(topology, target)
    return tuple(
        (link, direction)
        for link in map(topology.link, names)
        for direction in link.directions
        if not toward or direction == f"{link.name}:{toward}"
    )
