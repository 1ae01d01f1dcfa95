"""Scratch: the private folder that each node's programs have on disk (TESTBED_SCRATCH), with TMPDIR inside.

One folder per lab in /var/tmp, owned by root, with one folder inside per node and user. Unlike /tmp, which many systems
keep in memory, /var/tmp is on disk, and it stays visible where a node has a /tmp of its own. The path is short, because
programs make Unix sockets below TMPDIR, whose paths are limited to 107 bytes: long names are shortened, and 32 bytes
are left for those of Python's multiprocessing (``/pymp-XXXXXXXX/listener-XXXXXXXX``). The path is written down in the
lab's folder, so that `down` removes it whatever process has died.

Root makes and removes these folders, and programs write in them: no link that a program has left is ever followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from testbed.core.topology.interface_names import shortened
from testbed.errors import StorageError
from testbed.host.files import beneath
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.program_user import TEMPORARY, ProgramUser

__all__ = ["of_lab", "of_node", "remove", "remove_tree", "shortage"]

_PLACES: Final = (Path("/var/tmp"), Path("/tmp"))
"""The first that exists is used; older versions used the second."""

_LONGEST_LAB: Final = 15
_LONGEST_NODE: Final = 18
"""The end of a shortened name is 60 bits of its hash, so two nodes never share a folder."""

_FULL_BYTES: Final = 1 << 20
"""Less free space than this is none: a file system keeps a few blocks to itself."""


def of_node(lab: LabFolder, node: str, user: ProgramUser | None) -> Path:
    """Return the scratch folder of a node's programs; make what is missing of it. ``user``: None for root itself.

    Only its user can read it. Raises StorageError, also when the disk is full.
    """
    uid, owner = (user.uid, (user.uid, user.gid)) if user else (os.geteuid(), None)
    short = node if len(node) <= _LONGEST_NODE else shortened(node, _LONGEST_NODE, hashed=12)
    path = _place()
    try:
        path = of_lab(lab)
        path /= f"{short}-{uid}"
        for folder in (path, path / TEMPORARY):
            beneath.make_folder(folder.parent, folder.name, owner if os.geteuid() == 0 else None, 0o700)
    except OSError as error:
        replaced = error.errno in (errno.ENOTDIR, errno.ELOOP)
        fix = f"; a program has put something in the place of its TMPDIR: remove {path / TEMPORARY}" if replaced else ""
        raise StorageError(f"cannot make scratch below {path}: {error.strerror}{fix}") from error
    return path


def shortage(folder: Path) -> str:
    """Return in words that the disk of ``folder`` is full, for programs without privileges; empty if it is not."""
    try:
        state = os.statvfs(folder)
    except OSError:
        return ""
    if state.f_bavail * state.f_frsize < _FULL_BYTES:
        return f"the disk of {folder} is full"
    if state.f_files and not state.f_favail:
        return f"the disk of {folder} has no room for another file (no free inodes)"
    return ""


def _place() -> Path:
    return next((folder for folder in _PLACES if folder.is_dir()), _PLACES[-1])


def of_lab(lab: LabFolder) -> Path:
    """Return the lab's own folder, root's, which programs can enter but not list; make it if it is missing.

    Raises OSError, StorageError."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            path = Path(lab.scratch.read_text())
            if not path.exists() and _carries_mark(lab, path):
                with contextlib.suppress(FileExistsError):
                    path.mkdir(0o711)  # a cleaner of old files has removed it
                    path.chmod(0o711)
            if not _is_ours(lab, path):
                raise StorageError(f"{path} is not the scratch folder of lab {lab.name} any more; remove it")
            return path
        made = Path(tempfile.mkdtemp(prefix=_prefix(lab), dir=_place()))
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


def _carries_mark(lab: LabFolder, path: Path) -> bool:
    return path.parent in _PLACES and path.name.startswith((_prefix(lab), f"testbed-{lab.name}-"))  # the older mark


def _is_ours(lab: LabFolder, path: Path) -> bool:
    """Whether it is a folder, no link, with the lab's mark, and nobody else's: others may write in /var/tmp too."""
    try:
        state = path.lstat()
    except FileNotFoundError:
        return False
    return _carries_mark(lab, path) and stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid()


def remove(lab: LabFolder) -> None:
    """Remove a lab's scratch folder, which carries its name. No error if there is none. Raises OSError."""
    try:
        path = Path(lab.scratch.read_text())
    except FileNotFoundError:
        return
    if _is_ours(lab, path):
        try:
            shutil.rmtree(path)  # follows no links, and opens each folder relative to the one above
        except (RecursionError, OSError):
            remove_tree(path)


def remove_tree(path: Path) -> None:
    """Remove a folder by rm(1), which takes any depth, and follows no link either. Raises OSError.

    Folders may be deeper than Python's stack, or, where the caller is not root, closed by the program that made them.
    """
    argvs = [["rm", "-rf", "--one-file-system", "--", str(path)]]
    if os.geteuid() != 0:
        argvs.insert(0, ["find", str(path), "-type", "d", "!", "-perm", "-u=rwx", "-exec", "chmod", "u+rwx", "{}", ";"])
    for argv in argvs:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if path.exists():
        raise OSError(errno.ENOTEMPTY, f"rm: {done.stderr.strip()[-200:]}", str(path))
