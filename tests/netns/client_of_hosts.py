"""The client of hosts of namespaces: commands with ``--on``, and what is left of them at a host."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders import ROOT
from builders.commands import TESTBED, Child, Done, captured, check, piped, words_of
from oracles import oracle
from ssh_hosts import Host, Hosts

HEEDS_CTRL_C = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Of a child of a shell's background job SIGINT would be ignored."""


def state(host: Host) -> tuple[list[str], list[str], list[str]]:
    """Processes, namespaces, and folders of commands; not what belongs to the lab that stays up."""
    processes = sorted(line for line in host.pids().values() if "/labs/far" not in line and "tb.far." not in line)
    namespaces = sorted(it.name for it in host.path("/run/netns").iterdir())
    folders = [it.name for it in host.path("/var/tmp").iterdir() if not it.name.startswith("testbed-far-")]
    labs = host.path("/var/lib/testbed/labs")
    return processes, namespaces, sorted([*folders, *(it.name for it in (labs.iterdir() if labs.exists() else ()))])


def bring_up(hosts: Hosts, where: str) -> None:
    """Bring up the lab ``far`` there."""
    check(on(hosts, "up metro-single --name far --no-agents --allow-uncertified --on", where))


@contextlib.contextmanager
def lab_up(hosts: Hosts, where: str) -> Iterator[None]:
    """Have the lab ``far`` up there."""
    bring_up(hosts, where)
    yield
    check(on(hosts, "down far --on", where))


class Far:
    """The only host, h1, as its client commands it: ``far("status -l far")`` runs ``testbed status --on h1 -l far``."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        (self.host,) = hosts.hosts
        self.before = state(self.host)

    def __call__(self, line: str, *arguments: object, **options: Any) -> Done:
        return on(self.hosts, *at_h1(line, *arguments), **options)

    def begin(self, line: str, *arguments: object, cwd: Path | None = None) -> Child:
        return begun(self.hosts, *at_h1(line, *arguments), cwd=cwd)

    def until_as_before(self, bound_s: float) -> None:
        """Wait until nothing is left there of the commands since this began."""
        now: list[object] = []

        def is_as_before() -> bool:
            now[:] = [state(self.host)]
            return now == [self.before]

        try:
            oracle.until(is_as_before, bound_s, "")
        except AssertionError:
            raise AssertionError(f"after {bound_s:g} s expected {self.before}, got {now}") from None

    def run(self, name: str) -> Path:
        """Return a run directory there, as seen here."""
        return self.host.path("/var/lib/testbed/runs") / name

    def listed(self, name: str) -> dict[str, Any]:
        """Return a run as ``ls runs`` reports it."""
        (run,) = (run for run in json.loads(check(self("ls runs --json"))) if run["name"] == name)
        return run

    def runs(self, program: str) -> bool:
        """Return whether a program of this command line runs there."""
        return program in self.host.pids().values()

    def until_runs(self, program: str, bound_s: float = 90.0) -> None:
        oracle.until(lambda: self.runs(program), bound_s, f"{program} runs there")

    def until_ends(self, program: str, bound_s: float = 5.0) -> None:
        oracle.until(lambda: not self.runs(program), bound_s, f"nothing is left of {program}")


def at_h1(line: str, *arguments: object) -> list[str]:
    verb, *rest = words_of(line, *arguments)
    return [verb, *rest, "--on", "h1"] if verb == "ls" else [verb, "--on", "h1", *rest]


@contextlib.contextmanager
def nothing_left(hosts: Hosts) -> Iterator[Far]:
    """Provide the only host; nothing of a command may be left there afterwards."""
    far = Far(hosts)
    yield far
    far.until_as_before(10.0)


def write_experiment(folder: Path, *command: str) -> str:
    """Write an experiment whose ranks run a command, which begins sooner than training; return its name."""
    workload = f"{{command: {json.dumps(command)}, timeout: 600s}}"
    (folder / "x.yaml").write_text(f"topology: metro-single\nworkload: {workload}\n")
    return "x.yaml"


def environment(hosts: Hosts, config: Path | None = None, **more: str) -> dict[str, str]:
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'agents'}", "TESTBED_SSH_CONFIG": str(config or hosts.config)}
    return {**os.environ, **paths, **more}


def on(
    hosts: Hosts,
    line: str,
    *arguments: object,
    config: Path | None = None,
    cwd: Path | None = None,
    given: str = "",
    timeout_s: float = 120.0,
    **more: str,
) -> Done:
    argv = hosts.client(*TESTBED, *words_of(line, *arguments))
    return captured(argv, env=environment(hosts, config, **more), cwd=cwd, input=given, timeout=timeout_s)


def begun(hosts: Hosts, line: str, *arguments: object, cwd: Path | None = None) -> Child:
    return piped(
        [sys.executable, "-c", HEEDS_CTRL_C, *hosts.client(*TESTBED, *words_of(line, *arguments))],
        env=environment(hosts),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )
