"""hsdp: as fsdp inside each site, and the mean gradient of a shard is taken over the sites.

A mesh of two dimensions, site × rank: what is gathered stays in the site, and each value of a gradient crosses a fiber
once, between the ranks that hold the same shard.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from testbed_agents.process_groups.groups import Groups, equal_sites
from testbed_agents.strategies.fsdp import Fsdp

__all__ = ["Hsdp"]


class Hsdp(Fsdp):
    """Sharded over the ranks of a site, replicated over sites; all sites have equally many ranks."""

    def _mesh(self, groups: Groups) -> DeviceMesh:
        return site_mesh(groups)


def site_mesh(groups: Groups) -> DeviceMesh:
    """Return the mesh (site, rank) of the job's own groups. A collective call.

    Raises ValueError if sites have different numbers of ranks.
    """
    members = equal_sites(groups)
    replicas = groups.replicas()
    dimensions: Any = [replicas.across, replicas.inside]
    return DeviceMesh.from_group(dimensions, "cpu", mesh=torch.tensor(members), mesh_dim_names=("site", "rank"))
