"""Whose lab: who brought it up, and which lab a command may act on if none is named.

A command that changes a lab takes the only one if none is named, but only if the same user brought it up. A lab whose
owner is unknown (brought up by an older version, or ``owner.json`` is damaged) must be named.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from testbed.core.fields import integer, number, text
from testbed.errors import StorageError, UnknownName, UserError
from testbed.host import lab_folder
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import invocation, login
from testbed.host.linux.login import Login

__all__ = ["Owner", "chosen", "flag", "or_down", "owner", "record", "strangers"]

Command = Callable[[str], str]
"""Returns the command (or the Python call) that names a lab."""


@dataclass(frozen=True)
class Owner:
    """Who brought a lab up, when, and from which login."""

    login: Login
    since_unix_s: float

    @property
    def mine(self) -> bool:
        """Whether the same user runs this process."""
        return self.login.uid == login.current().uid

    @property
    def elsewhere(self) -> bool:
        """Whether another login session of the same user brought it up, as far as can be told.

        By the audit session where there is one; else by the terminal, if both have one.
        """
        now = login.current()
        if self.login.session is not None or now.session is not None:
            return self.login.session != now.session
        return bool(self.login.terminal and now.terminal) and self.login.terminal != now.terminal

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.since_unix_s))
        return f"brought up by {login.user_name(self.login.uid)} at {when}, {self._place}"

    @property
    def _place(self) -> str:
        return f"from {self.login.terminal}" if self.login.terminal else "from no terminal"


def record(lab: LabFolder) -> None:
    """Record this process's user and login as the owner of a lab that is about to be built. Raises StorageError."""
    try:
        lab.owner.write_text(json.dumps({**asdict(login.current()), "since_unix_s": time.time()}))
    except OSError as error:
        raise StorageError(f"cannot write {lab.owner}: {error.strerror}") from error


def owner(lab: LabFolder) -> Owner | None:
    """Return who brought a lab up; None if that is unknown."""
    try:
        fields = json.loads(lab.owner.read_text())
        uid = integer(fields, "uid")
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    if uid is None or uid < 0:
        return None
    return Owner(
        Login(uid, integer(fields, "session"), text(fields, "terminal")), number(fields, "since_unix_s") or 0.0
    )


def strangers(lab: LabFolder) -> str:
    """Return a line about a lab that another user or another login session, or an unknown user, brought up; else ""."""
    lab_owner = owner(lab)
    if lab_owner is None and not lab.path.is_dir():
        return ""
    if lab_owner is None:
        return f"lab {lab.name} was {_UNKNOWN}"
    if not lab_owner.mine:
        return f"lab {lab.name} was {lab_owner}"
    return f"lab {lab.name} was {lab_owner}, in another login session" if lab_owner.elsewhere else ""


_UNKNOWN = "brought up by an unknown user"


def or_down(lab: LabFolder) -> str:
    """Return how to remove a lab that may be live: the command for its owner; for others, whose lab it is."""
    lab_owner = owner(lab)
    if lab_owner is None or not lab_owner.mine:
        return f"it was {lab_owner or _UNKNOWN}"
    return f"take it down with: {invocation.command('down', lab.name)}" + (
        f" (it was {lab_owner})" if lab_owner.elsewhere else ""
    )


def chosen(name: str | None = None, *, changes: bool = False, command: Command | None = None) -> LabFolder:
    """Return the folder of the selected lab: ``name``, else ``$TESTBED_LAB``, else the only lab.

    ``changes``: the caller changes the lab, so the only one is taken only if the same user brought it up. ``command``
    is used in the error. Raises UnknownName, UserError, LabError.
    """
    wanted = name or os.environ.get("TESTBED_LAB") or None
    labs = lab_folder.folders()
    if wanted is None:
        if not labs:
            raise UserError(f"no lab is up; bring one up with: {invocation.command('up', 'metro-40km')}")
        if len(labs) > 1:
            raise UserError("several labs are up; name one:" + _listed(labs, command))
        (only,) = labs
        only.refuse_foreign()
        if changes and not ((lab_owner := owner(only)) and lab_owner.mine):
            raise UserError(
                f"lab {only.name} is the only one, but {login.user_name(login.current().uid)} did not bring it up; to"
                " act on it, name it:" + _listed(labs, command)
            )
        return only
    names = [lab.name for lab in labs]
    if wanted not in names:
        raise UnknownName("lab", wanted, names)
    found_folder = lab_folder.folder(wanted)
    found_folder.refuse_foreign()
    return found_folder


def flag(lab: str) -> tuple[str, ...]:
    """Return the words that name a lab in a command: none where a command that changes a lab takes it anyway."""
    wanted = os.environ.get("TESTBED_LAB") or lab
    owners = {folder.name: owner(folder) for folder in lab_folder.folders()}
    others, whose = owners.keys() - {lab}, owners.get(lab)
    mine = whose is not None and whose.mine
    return ("-l", lab) if wanted != lab or others or (lab in owners and not mine) else ()


def _listed(labs: Sequence[LabFolder], command: Command | None) -> str:
    lines = [(command(lab.name) if command else f"-l {lab.name}", owner(lab)) for lab in labs]
    width = max(len(line) for line, _ in lines)
    return "".join(f"\n  {line:<{width}}  # {lab_owner or _UNKNOWN}" for line, lab_owner in lines)
