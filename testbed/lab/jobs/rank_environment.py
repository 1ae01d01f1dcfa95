"""The environment of a program's ranks: torchrun's variables, and the names of site and node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from testbed.core.plan.addressing import FABRIC_INTERFACE, Addressing
from testbed.core.topology.model import Topology
from testbed.core.workload.members import Member

__all__ = ["variables"]

ROLE = "default"
"""torchrun's name of the role of all ranks."""


def variables(
    topology: Topology, everyone: Sequence[Member], member: Member, port: int, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one of ``everyone``; ``extra`` overrides them.

    Those of torchrun are complete (https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"), so
    that programs written for it cannot tell the difference; there is no agent's store, so rank 0 serves its own.
    """
    world = str(len(everyone))
    nodes = len({it.node for it in everyone})
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "RANK": str(member.rank),
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(member.local_rank),
        "LOCAL_WORLD_SIZE": str(sum(it.node == member.node for it in everyone)),
        "GROUP_RANK": str(member.group_rank),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": ROLE,
        "ROLE_RANK": str(member.rank),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": str(Addressing(topology).node(everyone[0].node)[0]),
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": topology.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "GLOO_SOCKET_IFNAME": FABRIC_INTERFACE,
        "NCCL_SOCKET_IFNAME": FABRIC_INTERFACE,
        "TESTBED_SITE": member.site,
        "TESTBED_SITE_RANK": str([site.name for site in topology.sites].index(member.site)),
        "TESTBED_NODE": member.node,
        **extra,
    }
