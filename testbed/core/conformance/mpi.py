"""How MPI's own launchers start the rank programs: one rank on each node, their daemons by ``reach`` instead of ssh."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from testbed.core.conformance.library import Launcher

REACH = "testbed_agents.libraries.reach"
"""Module that asks who started the launcher to run a command on a node; its docstring is the contract."""


def reach_script(python: str) -> str:
    """A shell script for ``agent``: launchers want one executable file."""
    return f'#!/bin/sh\nexec {shlex.quote(python)} -m {REACH} "$@"\n'


def mpiexec_argv(
    launcher: Launcher,
    *,
    programs: str,
    hosts: Sequence[str],
    interface: str,
    agent: str,
    program: Sequence[str],
    pass_on: Sequence[str],
) -> tuple[str, ...]:
    """The command that starts rank r of ``program`` on the address ``hosts[r]``; to be run on the first of them.

    ``programs`` is the folder of the launcher (beside the nodes' Python), ``interface`` where its daemons meet,
    ``agent`` an executable like :func:`reach_script`'s, ``pass_on`` names of the environment that ranks are to have.
    Its own environment needs ``TESTBED_REACH``; ``RANK`` must not be in it, each rank learns its own from the launcher.
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
            *(f"{programs}/prterun", "--prtemca", "plm_ssh_agent", agent, "--prtemca", "prte_if_include", interface),
            *("--prefix", programs.rsplit("/", 1)[0], "--leave-session-attached", "--allow-run-as-root"),
            *("--host", ",".join(f"{host}:1" for host in hosts), "--map-by", "node", "-n", ranks),
            *(word for name in pass_on for word in ("-x", name)),
            *program,
        )
    raise ValueError(f"{launcher} starts no ranks")
