"""Command lines for MPI's own launchers: daemons through a replacement for ssh, one rank on each node."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.validation.library import Launcher


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
            # A daemon would start others itself, but cannot reach them (lab/validation/launcher_proxy.py).
            *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
            *("--prefix", programs.rsplit("/", 1)[0], "--leave-session-attached"),
            *("--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "node", "-n", ranks),
            *(word for name in pass_on for word in ("-x", name)),
            *program,
        )
    raise ValueError(f"launcher {launcher!r} starts no ranks")
