"""The verb ``host``: prepare another host for ``--on``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from testbed.cli import verb


@verb.verb(
    verb.LOOK,
    "testbed host prepare lab1",
    "testbed host prepare lab1 -- --check      # what would change",
    "testbed host prepare lab1 -- -e testbed_host_containers=false",
    passes_on_arguments=True,
)
def host(
    action: Annotated[Literal["prepare"], typer.Argument(help="prepare: install this version of the testbed there.")],
    where: Annotated[str, typer.Argument(metavar="HOST", help="Whatever ssh HOST takes.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS...]", help="Passed on to ansible-playbook.")
    ] = None,
) -> int:
    """Prepare another host, for use with --on.

    Runs the playbook of ansible/ (docs/ansible.md) over ssh, not over the connection of --on. Needs a checkout of the
    testbed, because what is committed there is installed, and ansible-playbook.
    """
    from testbed.host.remote import preparation

    given = list(options or ())
    return preparation.prepare(where, given[1:] if given[:1] == ["--"] else given)
