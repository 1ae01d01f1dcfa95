"""The client of hosts of namespaces: commands with ``--on``, and what is left of them at a host."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ssh_hosts

ROOT = Path(__file__).resolve().parents[2]
TESTBED = [sys.executable, "-m", "testbed"]


def state(host: ssh_hosts.Host) -> tuple[list[str], list[str], list[str]]:
    """Processes, namespaces, and folders of commands; not what belongs to the lab that stays up."""
    processes = sorted(line for line in host.pids().values() if "/labs/far" not in line and "tb.far." not in line)
    namespaces = sorted(it.name for it in host.path("/run/netns").iterdir())
    folders = [it.name for it in host.path("/var/tmp").iterdir() if not it.name.startswith("testbed-far-")]
    labs = host.path("/var/lib/testbed/labs")
    return processes, namespaces, sorted([*folders, *(it.name for it in (labs.iterdir() if labs.exists() else ()))])


def environment(hosts: ssh_hosts.Hosts, config: Path | None = None, **more: str) -> dict[str, str]:
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}", "TESTBED_SSH_CONFIG": str(config or hosts.config)}
    return {**os.environ, **paths, **more}


def on(
    hosts: ssh_hosts.Hosts,
    *words: str,
    config: Path | None = None,
    cwd: Path | None = None,
    given: str = "",
    **more: str,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        hosts.client(*TESTBED, *words),
        env=environment(hosts, config, **more),
        cwd=cwd,
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
    )


def begun(hosts: ssh_hosts.Hosts, *words: str) -> subprocess.Popen[str]:
    # Of a child of a shell's background job SIGINT would be ignored.
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "os.execvp(sys.argv[1], sys.argv[1:])",
            *hosts.client(*TESTBED, *words),
        ],
        env=environment(hosts),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
