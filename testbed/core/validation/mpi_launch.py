"""How MPI's own launchers start the rank programs: their daemons by whatever stands for ssh, one rank on each node."""

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
    """The command that starts rank r of ``program`` on ``hosts[r]``, an address that the launcher reaches.

    ``programs`` is the folder that the launcher lies in, on the nodes too; ``interface`` is the launcher's own, where
    its daemons find it, ``network`` (address/length) the one that leads there on all nodes. ``agent`` is an executable
    that is called as ssh would be, by the launcher alone: its daemons start no others. Of the launcher's environment
    ranks get what ``pass_on`` names; ``RANK`` is not for it: each rank learns its own from the launcher.
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
            # A daemon would call others by itself, where there is no way to them (lab/validation/launcher_proxy.py).
            *("--prtemca", "plm_ssh_no_tree_spawn", "1"),
            *("--prefix", programs.rsplit("/", 1)[0], "--leave-session-attached", "--allow-run-as-root"),
            *("--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "node", "-n", ranks),
            *(word for name in pass_on for word in ("-x", name)),
            *program,
        )
    raise ValueError(f"{launcher} starts no ranks")
