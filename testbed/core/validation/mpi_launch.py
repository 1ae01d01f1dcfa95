"""Command lines for MPI's own launchers: daemons through a replacement for ssh, one rank on each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from testbed.core.validation.library import Launcher

OF_DAEMONS: Final[Mapping[Launcher, Mapping[str, str]]] = {"mpich": {"HWLOC_XMLFILE": "/dev/null"}}
"""Variables that a launcher's daemons need.

MPICH's daemon (hydra_pmi_proxy) describes the processors to its ranks in a file, always in /tmp, which it removes only
at a good end: killed daemons left one each. It makes none if it is told of one (HWLOC_XMLFILE, hwloc's environment
variables). An empty one describes nothing, which matters only to several ranks on one node.
"""


def mpiexec_argv(
    launcher: Launcher,
    *,
    programs: str,
    hosts: Sequence[str],
    interface: str,
    network: str,
    agent: str,
    program: Sequence[str],
    pass_on: Sequence[str],
) -> tuple[str, ...]:
    """Return the command that starts rank r of ``program`` on ``hosts[r]``, an address that the launcher reaches.

    ``programs`` is the folder of the launcher, at the same path on the nodes. ``interface`` is the launcher's own,
    where its daemons find it; ``network`` (address/length) contains it on all nodes. ``agent`` is an executable called
    in place of ssh, by the launcher alone: its daemons start no others. Of the launcher's environment the ranks inherit
    the variables in ``pass_on``, never ``RANK``: each rank learns its own from the launcher.
    """
    ranks = str(len(hosts))
    if launcher == "mpich":
        return (
            *(f"{programs}/mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", agent),
            *("-iface", interface, "-hosts", ",".join(hosts), "-ppn", "1", "-n", ranks),
            *("-genvlist", ",".join(pass_on)),
            *program,
        )
    if launcher == "openmpi":
        return (
            *(f"{programs}/prterun", "--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", network),
            # A daemon would start others itself, but cannot reach them (host/launcher_proxy.py).
            *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
            *("--prefix", programs.rsplit("/", 1)[0], "--leave-session-attached"),
            *("--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "node", "-n", ranks),
            *(word for name in pass_on for word in ("-x", name)),
            *program,
        )
    raise ValueError(f"launcher {launcher!r} starts no ranks")
