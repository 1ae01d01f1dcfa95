"""Which sites do not reach each other: a silent cut leaves the carriers up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

from testbed.core.plan.addressing import Addressing
from testbed.core.plan.resources import Rank
from testbed.core.topology.model import Topology
from testbed.host.measure import reachability_probe

__all__ = ["unreachable_sites"]


def unreachable_sites(topology: Topology, ranks: Iterable[Rank], path: Callable[[str], Path]) -> list[tuple[str, str]]:
    """Return the pairs of sites that do not reach each other; ``path`` returns the handle of a node's namespace.

    Probes between the nodes of each site's first rank. Takes seconds where there are such pairs.
    """
    firsts = {rank.site: rank.node for rank in sorted(ranks, key=lambda it: it.rank, reverse=True)}
    addresses = {site: str(Addressing(topology).node(node)[0]) for site, node in firsts.items()}
    pairs = list(combinations(sorted(firsts), 2))

    def probe(site: str) -> frozenset[str]:
        others = [addresses[other] for one, other in pairs if one == site]
        return reachability_probe.answering(path(firsts[site]), others)

    with ThreadPoolExecutor(len(firsts) or 1, thread_name_prefix="reachability") as pool:
        reached = dict(zip(firsts, pool.map(probe, firsts), strict=True))
    return [(one, other) for one, other in pairs if addresses[other] not in reached[one]]
