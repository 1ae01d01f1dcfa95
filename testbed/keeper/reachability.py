"""Which sites do not answer each other, whatever their carriers say: a silent cut takes no carrier."""

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
    """Pairs of sites of which one does not answer the other; ``path`` is the handle of a node's namespace.

    Asked are the nodes of the first rank of each site. Takes seconds where there are such pairs.
    """
    firsts = {rank.site: rank.node for rank in sorted(ranks, key=lambda it: it.rank, reverse=True)}
    addresses = {site: str(Addressing(topology).node(node)[0]) for site, node in firsts.items()}
    asking = list(combinations(sorted(firsts), 2))

    def ask(site: str) -> frozenset[str]:
        others = [addresses[other] for one, other in asking if one == site]
        return reachability_probe.answering(path(firsts[site]), others)

    with ThreadPoolExecutor(len(firsts) or 1, thread_name_prefix="hearing") as each:
        heard = dict(zip(firsts, each.map(ask, firsts), strict=True))
    return [(one, other) for one, other in asking if addresses[other] not in heard[one]]
