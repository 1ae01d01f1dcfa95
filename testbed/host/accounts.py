"""Account files for programs in nodes whose user has no account on this host.

The testbed's own uid is in no passwd(5). ssh(1), whoami(1) and others refuse to run for such a user, so its programs in
nodes see a copy of the host's files with the user in them (``runner.Place.files``).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

from testbed.errors import StorageError
from testbed.host import scratch
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import ProgramUser

__all__ = ["files", "groups"]

_ETC: Final = Path("/etc")
_SHELL: Final = "/bin/sh"


def files(lab: LabFolder, user: ProgramUser, home: Path) -> tuple[tuple[Path, Path], ...]:
    """Return the files that give ``user`` an account inside, with what each takes the place of; write them if they are
    missing. Raises StorageError."""
    account = f"{user.name}:x:{user.uid}:{user.gid}::{home}:{_SHELL}"
    ours = _written(lab, f"{home.name}.passwd", "passwd", account)
    return ((ours, _ETC / "passwd"),)


def groups(lab: LabFolder) -> tuple[tuple[Path, Path], ...]:
    """Return a file of groups without ``tty``, and what it takes the place of. Raises StorageError.

    sshd(8) without privileges cannot give a terminal to that group, and ends where the kernel has not done it already
    (mount option ``gid`` of devpts); without such a group it leaves the terminal to the user's.
    """
    return ((_written(lab, "group", "group", "", without="tty"), _ETC / "group"),)


def _written(lab: LabFolder, name: str, file: str, line: str, without: str = "") -> Path:
    """Write a copy of a file of /etc into the lab's scratch folder, atomically; leave it alone if it is up to date."""
    try:
        path = scratch.of_lab(lab) / name
        kept = [
            line_of_file
            for line_of_file in (_ETC / file).read_text().splitlines()
            if not without or line_of_file.split(":")[0] != without
        ]
        content = "\n".join([*kept, *([line] if line else [])]) + "\n"
        with contextlib.suppress(OSError):
            if path.read_text() == content:
                return path
        number, part = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(number, "w") as stream:
            stream.write(content)
            os.fchmod(number, 0o644)
        Path(part).replace(path)
    except OSError as error:
        raise StorageError(f"cannot write the account of uid's programs: {error.strerror or error}") from error
    return path
