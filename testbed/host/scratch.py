"""Scratch folders of programs without privileges: TMPDIR, and HOME of users who have none.

One folder per lab in /tmp, owned by root, with one folder inside per node and user. Its path is short, because programs
make Unix sockets below TMPDIR, whose paths are limited to 107 bytes: long names are shortened, and 31 bytes are left
for those of Python's multiprocessing (``pymp-XXXXXXXX/listener-XXXXXXXX``). The path is written down in the lab's
folder, so that `down` removes it whatever process has died.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

from testbed.core.topology.interface_names import shortened
from testbed.errors import StorageError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import ProgramUser

__all__ = ["of_lab", "of_node", "remove"]

_PLACE: Final = Path("/tmp")
_LONGEST_LAB: Final = 15
_LONGEST_NODE: Final = 20
"""The end of a shortened name is 60 bits of its hash, so two nodes never share a folder."""


def of_node(lab: LabFolder, node: str, user: ProgramUser) -> Path:
    """Return the scratch folder of a node's programs; make it if it is missing. Raises StorageError."""
    try:
        short = node if len(node) <= _LONGEST_NODE else shortened(node, _LONGEST_NODE, hashed=12)
        path = of_lab(lab) / f"{short}-{user.uid}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(path, user.uid, user.gid, follow_symlinks=False)
    except OSError as error:
        raise StorageError(f"cannot make a scratch folder in {_PLACE}: {error.strerror}") from error
    return path


def of_lab(lab: LabFolder) -> Path:
    """Return the lab's own folder, root's, which programs can enter but not list; make it if it is missing. Raises
    OSError."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            return Path(lab.scratch.read_text())
        made = Path(tempfile.mkdtemp(prefix=_prefix(lab), dir=_PLACE))
        made.chmod(0o711)
        part = lab.path / f"{made.name}.part"
        try:
            part.write_text(str(made))
            os.link(part, lab.scratch)  # atomic: another process may make one at the same time
        except BaseException as error:
            made.rmdir()
            if not isinstance(error, FileExistsError):
                raise
        finally:
            part.unlink(missing_ok=True)


def _prefix(lab: LabFolder) -> str:
    name = lab.name if len(lab.name) <= _LONGEST_LAB else shortened(lab.name, _LONGEST_LAB)
    return f"testbed-{name}-"


def remove(lab: LabFolder) -> None:
    """Remove a lab's scratch folder, which carries its name. No error if there is none. Raises OSError."""
    try:
        path = Path(lab.scratch.read_text())
        state = path.lstat()
    except FileNotFoundError:
        return
    marks = (_prefix(lab), f"testbed-{lab.name}-")  # older versions shortened nothing
    ours = path.parent == _PLACE and path.name.startswith(marks) and state.st_uid == os.geteuid()
    if ours and stat.S_ISDIR(state.st_mode):
        shutil.rmtree(path)
