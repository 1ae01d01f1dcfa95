"""Checks of host limits that labs and runs can reach, and of free disk space in their folders."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from testbed.core.topology.topology_limits import BRIDGE_PORTS
from testbed.errors import UserError
from testbed.host.doctor.check import Check, read
from testbed.host.files import runs_folder, store
from testbed.host.linux import invocation

__all__ = ["folders", "limit", "limits"]

_FREE_BYTES: Final = 500_000_000
_FILES, _PIDS = 4096, 1024
_SYSCTLS: Final = (
    ("net.core.netdev_max_backlog", 1000, "packets; labs over 100 nodes need 10000, or they drop ARP"),
    ("net.ipv4.neigh.default.gc_thresh3", 1024, "neighbours; labs over 200 links need 8192, or entries are evicted"),
    ("net.core.rmem_max", 212_992, "bytes of receive buffer per socket"),
    ("kernel.pid_max", 32_768, "one process with threads per rank"),
)


def limits() -> Iterator[Check]:
    yield Check("ports of a bridge", "ok", f"{BRIDGE_PORTS}: maximum number of nodes and gateways of a lab")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    yield limit(
        "open files",
        files,
        _FILES,
        "keeper and fiberd open several per link",
        invocation.as_root(f"prlimit --pid $$ --nofile={_FILES}:{_FILES}"),
    )
    for key, least, purpose in _SYSCTLS:
        value = read("/proc/sys/" + key.replace(".", "/"))
        if value.isdigit():
            yield limit(
                key.rpartition(".")[2], int(value), least, purpose, invocation.as_root(f"sysctl -w {key}={least}")
            )
    pids = read("/sys/fs/cgroup/pids.max") or read("/sys/fs/cgroup/pids/pids.max") or "max"
    yield limit(
        "pids of the cgroup",
        int(pids) if pids.isdigit() else resource.RLIM_INFINITY,
        _PIDS,
        "one process with threads per rank",
        "raise pids.max of the cgroup (docker run --pids-limit)",
    )
    groups = read("/sys/fs/cgroup/cgroup.controllers")
    version = "v2" if groups else "v1" if Path("/sys/fs/cgroup/cpu").is_dir() else ""
    yield Check("cgroup", "ok" if version else "limited", version or "none mounted; labs work without")


def limit(name: str, value: int, least: int, purpose: str, fix: str) -> Check:
    """Return the check of a limit, which must be at least ``least``."""
    enough = value == resource.RLIM_INFINITY or value >= least
    shown = "unlimited" if value == resource.RLIM_INFINITY else str(value)
    return Check(
        name,
        "ok" if enough else "limited",
        shown + (f": {purpose}" if enough else f", below {least}: {purpose}"),
        "" if enough else fix,
    )


def folders() -> Iterator[Check]:
    state = Path(os.environ.get("TESTBED_STATE") or "/var/lib/testbed")
    yield _folder("state folder", state, "TESTBED_STATE")
    try:
        runs = runs_folder.runs_root()
    except UserError as error:
        why, _, fix = str(error).partition("; ")
        yield Check("runs folder", "missing", why, fix, needed=True)
    else:
        yield _folder("runs folder", runs, runs_folder.VARIABLE)


def _folder(name: str, folder: Path, variable: str) -> Check:
    """Check that ``folder``, or its nearest existing parent, is writable and has space. Creates nothing."""
    existing = next(path for path in (folder, *folder.parents) if os.path.exists(path))  # noqa: PTH110
    fix = f"export {variable}=/another/folder"
    if not os.access(existing, os.W_OK | os.X_OK):
        return Check(name, "missing", f"{folder}: {existing} is not writable", fix, needed=True)
    free = shutil.disk_usage(existing).free
    if free < store.NEEDED_BYTES:
        return Check(name, "missing", f"{folder}: {free / 1e6:.0f} MB free", fix, needed=True)
    roomy = free >= _FREE_BYTES
    return Check(
        name, "ok" if roomy else "limited", f"{folder}: {free / 1e9:.1f} GB free", "" if roomy else fix, needed=True
    )
