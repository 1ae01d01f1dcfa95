"""A port for the process group of each job, so that what is left of one job never meets the ranks of the next."""

from __future__ import annotations

import socket
from contextlib import suppress
from itertools import chain

from testbed.core.plan.addressing import MASTER_PORT
from testbed.errors import LabError, StorageError
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.linux.file_lock import FileLock

__all__ = ["PORTS", "free"]

PORTS = range(MASTER_PORT, MASTER_PORT + 2000)
"""Below Linux' ephemeral ports (net.ipv4.ip_local_port_range), so that no outgoing connection takes one."""

LOCK_S = 10.0


def free(lab: LabFolder, node: str) -> int:
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
