"""Resolve the target of a fault: a link, direction or duct; a node or rank; a site or power domain."""

from __future__ import annotations

from dataclasses import dataclass

from testbed.core.topology.model import Link, Site, Topology
from testbed.errors import UnknownName, UserError

__all__ = ["LINKS", "RANKS", "Aim", "all_targets", "target_links"]

LINKS = "a link, one direction of it (north:west), or a duct"
RANKS = "a rank by its number (3), a node, or a site for all ranks in it"


def all_targets(topology: Topology) -> set[str]:
    """Return the names of all possible targets: links, ducts, sites, power domains, nodes."""
    names = {*topology.node_names, *(link.name for link in topology.links), *(duct.name for duct in topology.ducts)}
    return names | {name for site in topology.sites for name in (site.name, site.power)}


def target_links(topology: Topology, target: str, spare: bool = False) -> tuple[tuple[str, ...], str]:
    """Return (names of links, site of the only direction or "") of a fault target.

    ``north`` is a link in both directions, ``north:west`` its direction toward west, the name of a duct every link
    inside; with ``spare`` also links whose second path is inside. Raises UnknownName; UserError for a duct that has
    second paths only.
    """
    name, colon, toward = target.partition(":")
    links = {link.name: link for link in topology.links}
    if name in links:
        if colon and toward not in links[name].between:
            raise UnknownName("link end", toward, links[name].between)
        return (name,), toward
    inside = [link for link in topology.links if target in link.via]
    beside = [link for link in topology.links if link.second_path is not None and target in link.second_path.via]
    if inside or (spare and beside):
        return tuple(link.name for link in topology.links if link in inside or (spare and link in beside)), ""
    if beside:
        raise UserError(
            f"{target} has only the second path of {', '.join(link.name for link in beside)}, which carries no traffic"
            " now; inject a cut, the only fault with an effect there"
        )
    raise UnknownName("link or duct", target, [*links, *(duct.name for duct in topology.ducts)])


@dataclass(frozen=True)
class Aim:
    """The target of a fault. Each method resolves its name as one kind of target, or raises UnknownName.

    ``ranks_per_node``: of the job that the fault is for.
    """

    topology: Topology
    name: str
    ranks_per_node: int = 1

    def links(self) -> tuple[Link, ...]:
        """Return the links that have the target on any of their paths."""
        return tuple(map(self.topology.link, target_links(self.topology, self.name, spare=True)[0]))

    def directions(self) -> tuple[tuple[Link, str], ...]:
        """Return each direction of a link, a direction or a duct, with its link."""
        names, toward = target_links(self.topology, self.name)
        return tuple(
            (link, direction)
            for link in map(self.topology.link, names)
            for direction in link.directions
            if not toward or direction == f"{link.name}:{toward}"
        )

    def carrying(self) -> tuple[str, ...]:
        """Return the names of the links of these directions."""
        return target_links(self.topology, self.name)[0]

    def ranks(self) -> dict[int, str]:
        """Return the ranks of a rank's number, a node or a site, each with its node."""
        nodes, per_node = self.topology.node_names, self.ranks_per_node
        placed = {rank: nodes[rank // per_node] for rank in range(len(nodes) * per_node)}
        if self.name in map(str, placed):
            return {int(self.name): placed[int(self.name)]}
        sites = {site.name: site.node_names for site in self.topology.sites}
        chosen = (self.name,) if self.name in nodes else sites.get(self.name, ())
        if not chosen:
            raise UnknownName("rank, node or site", self.name, [f"0 to {len(placed) - 1}", *sites, *nodes])
        return {rank: node for rank, node in placed.items() if node in chosen}

    def node(self) -> str:
        if self.name not in self.topology.node_names:
            raise UnknownName("node", self.name, self.topology.node_names)
        return self.name

    def site(self) -> Site:
        """Return a site by its name."""
        return self._site(self.name)

    def gateway(self) -> Site:
        """Return a site by its name, or by that of its gateway, unless another site has this name."""
        named = any(site.name == self.name for site in self.topology.sites)
        return self._site(self.name if named else self.name.removesuffix("-gw"))

    def powered(self) -> tuple[Site, ...]:
        """Return the sites of a power domain, or one site."""
        sites = tuple(site for site in self.topology.sites if self.name in (site.power, site.name))
        if not sites:
            names = [*(site.power for site in self.topology.sites), *(site.name for site in self.topology.sites)]
            raise UnknownName("power domain or site", self.name, dict.fromkeys(names))
        return sites

    def _site(self, name: str) -> Site:
        for site in self.topology.sites:
            if site.name == name:
                return site
        raise UnknownName("site", self.name, [site.name for site in self.topology.sites])
