"""The environment of a program's ranks: torchrun's variables, and the names of site and node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain

from testbed.core.plan.addressing import FABRIC_INTERFACE, MASTER_PORT, Addressing
from testbed.core.topology.model import Topology
from testbed.core.workload.members import Member
from testbed.errors import LabError, StorageError
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.linux.file_lock import FileLock

__all__ = ["PORTS", "free_port", "of_node", "variables"]


PORTS = range(MASTER_PORT, MASTER_PORT + 2000)
"""Below Linux' ephemeral ports (net.ipv4.ip_local_port_range), so that no outgoing connection takes one."""

LOCK_S = 10.0


def free_port(lab: LabFolder, node: str) -> int:
    """Return the next of :data:`PORTS` that no socket of ``node`` is bound to: every job of a lab gets another.

    Raises LabError if all are taken, StorageError.
    """
    last = lab.path / "master-port"
    try:
        with FileLock(lab.path / "master-port.lock", LOCK_S):
            before = PORTS[-1]
            with suppress(OSError, ValueError):
                before = int(last.read_text())
            after = PORTS.index(before) + 1 if before in PORTS else 0
            port = namespace.inside(lab_nodes.netns(lab, node), lambda: _first_free(after))
            last.write_text(f"{port}\n")
    except (OSError, TimeoutError) as error:
        raise StorageError(f"cannot write {last}: {getattr(error, 'strerror', None) or error}") from error
    return port


def _first_free(after: int) -> int:
    for port in chain(PORTS[after:], PORTS[:after]):
        with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::", port))  # v4 and v6 addresses at once
            return port
    raise LabError(f"no port from {PORTS[0]} to {PORTS[-1]} is free on rank 0's node")


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
    nodes = len({other.node for other in everyone})
    return {
        **_everywhere(topology, everyone, member, port),
        "RANK": str(member.rank),
        "WORLD_SIZE": world,
        "LOCAL_RANK": str(member.local_rank),
        "LOCAL_WORLD_SIZE": str(sum(other.node == member.node for other in everyone)),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": ROLE,
        "ROLE_RANK": str(member.rank),
        "ROLE_WORLD_SIZE": world,
        "TORCHELASTIC_RUN_ID": topology.name,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **extra,
    }


def of_node(
    topology: Topology,
    everyone: Sequence[Member],
    member: Member,
    port: int,
    ranks_per_node: int,
    extra: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables of a program that runs once on each node and starts the ranks itself, such as torchrun.

    ``everyone`` has one member for each node. ``PET_NNODES`` and the like are torchrun's own, from which its options
    take their defaults (torch/distributed/argparse_util.py); the variables of a rank are not set.
    """
    shared = _everywhere(topology, everyone, member, port)
    nodes = str(len(everyone))
    return {
        **shared,
        "GROUP_WORLD_SIZE": nodes,
        "TESTBED_NODES": nodes,
        "TESTBED_NODE_RANK": str(member.group_rank),
        "PET_NNODES": nodes,
        "PET_NODE_RANK": str(member.group_rank),
        "PET_NPROC_PER_NODE": str(ranks_per_node),
        "PET_MASTER_ADDR": shared["MASTER_ADDR"],
        "PET_MASTER_PORT": shared["MASTER_PORT"],
        **extra,
    }


def _everywhere(topology: Topology, everyone: Sequence[Member], member: Member, port: int) -> dict[str, str]:
    """Return the variables of a node, however its ranks are started."""
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GROUP_RANK": str(member.group_rank),
        "MASTER_ADDR": str(Addressing(topology).node(everyone[0].node)[0]),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": FABRIC_INTERFACE,
        "NCCL_SOCKET_IFNAME": FABRIC_INTERFACE,
        "TESTBED_SITE": member.site,
        "TESTBED_SITE_RANK": str([site.name for site in topology.sites].index(member.site)),
        "TESTBED_NODE": member.node,
    }
