"""The members of a program's job: which rank is on which node, where a node may have several ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from testbed.core.topology.model import Topology

__all__ = ["Member", "members"]


@dataclass(frozen=True)
class Member:
    """One rank of a program's job, in torchrun's terms: ``local_rank`` counts on its node, ``group_rank`` the nodes."""

    rank: int
    node: str
    site: str
    local_rank: int = 0
    group_rank: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {"rank": self.rank, "node": self.node, "site": self.site, "local_rank": self.local_rank}


def members(topology: Topology, ranks_per_node: int = 1) -> tuple[Member, ...]:
    """Return all ranks in order: those of a node are consecutive, and the nodes contiguous by site."""
    return tuple(
        Member(group * ranks_per_node + local, node, topology.site_of(node).name, local, group)
        for group, node in enumerate(topology.node_names)
        for local in range(ranks_per_node)
    )
