"""The verbs ``host`` and ``fetch``: prepare another host for ``--on``, and bring a run of it here."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import testbed.host.linux.invocation as invocation
from testbed.cli import console, on_host, verb
from testbed.cli.on_host import On
from testbed.cli.options import RunsFolder
from testbed.errors import UserError


@verb.verb(
    verb.LOOK,
    "testbed host prepare lab1",
    "testbed host prepare lab1 -- --check      # what would change",
    "testbed host prepare lab1 -- -e testbed_host_containers=true   # docker and containerlab, too",
    passes_on_arguments=True,
)
def host(
    action: Annotated[Literal["prepare"], typer.Argument(help="prepare: install this version of the testbed there.")],
    where: Annotated[str, typer.Argument(metavar="HOST", help="Whatever ssh HOST takes.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS...]", help="Passed on to ansible-playbook.")
    ] = None,
    on: On = None,
) -> int:
    """Prepare another host, for use with --on.

    Runs the playbook of ansible/ (docs/ansible.md) over ssh, not over the connection of --on. Needs a checkout of the
    testbed, because what is committed there is installed, and ansible-playbook: `make client` sets both up. Docker and
    containerlab are left out unless asked for. --on and TESTBED_ON have no effect: the playbook runs from here.
    """
    from testbed.host.remote import preparation

    passed_on = list(options or ())
    status = preparation.prepare(where, passed_on[1:] if passed_on[:1] == ["--"] else passed_on)
    if status == 0 and "--check" not in passed_on:
        console.say(f"next: {invocation.command('run', 'metro-40km', '--on', where, root=False)}", style="cyan")
    return status


@verb.verb(
    verb.RUNS,
    "testbed fetch metro-40km-20261121-054212 --on lab1",
    "testbed ls runs --on lab1                  # which there are",
)
def fetch(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="Name of a run on the host of --on, or its directory there.")
    ],
    runs: RunsFolder = None,
    on: On = None,
) -> None:
    """Bring a run of another host here: one that was detached, or whose client went before its end.

    The run must have ended. It arrives whole or not at all, byte for byte, and stays there, too.
    """
    if not on:
        raise UserError("fetch brings a run of another host here; name the host: --on HOST")
    console.show_line(str(on_host.fetch(on, run, runs)))
