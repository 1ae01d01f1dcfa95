"""Files that a command line names and that travel to another host with it, and their names there.

What is below the current folder has the same relative name below the folder ``here`` there, so that words and messages
stay as they are; any other file is below ``there``, by its absolute path, and its word begins with ``{folder}``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from testbed.core.remote.leash_frames import MOST_SENT_BYTES
from testbed.core.units import format_size
from testbed.core.user_text import printable, shown
from testbed.errors import StorageError, TestbedError, UserError
from testbed.host.remote.leashed_command import SentFile, WrittenFile

__all__ = ["Departures"]

MOST_BYTES, MOST_FILES = 1 << 30, 10_000
"""Of folders, whose files were not named one by one."""


class Departures:
    """What travels with a command.

    Attributes:
        sent: files that are there before the command starts.
        written: files that the command may write there.
        folders: folders that have to be there, too.
        named: what is sent, in words for the user.
    """

    def __init__(self) -> None:
        self.sent: list[SentFile] = []
        self.written: list[WrittenFile] = []
        self.folders: list[str] = []
        self.named: list[str] = []
        self._there: set[str] = set()
        self._byte_count = self._file_count = 0

    def size(self) -> int:
        """Return the bytes of all files that are sent. Raises UserError for too many, StorageError."""
        size = 0
        for sent_file in self.sent:
            try:
                size += sent_file.here.stat().st_size
            except OSError as error:
                raise StorageError(f"cannot read {shown(str(sent_file.here))}: {error.strerror}") from error
            if size > MOST_SENT_BYTES:
                raise UserError(
                    f"expected files of at most {format_size(MOST_SENT_BYTES)} to send, got more with "
                    f"{shown(str(sent_file.here))}; copy it to the other host in another way"
                )
        return size

    def send(self, word: str) -> str:
        """Send a file, or a folder with all its files; return its word there. Raises UserError, StorageError."""
        path = Path(word)
        there = _there(path)
        if path.is_dir():
            self._send_folder(path, there, hidden=True)
        else:
            if not path.is_file():
                raise UserError(f"expected a plain file to send, got {shown(word)}, which is {_kind(path)}; copy it")
            self._add(path, there, str(path))
        return _word(word, there)

    def send_experiment(self, word: str, program: bool) -> str:
        """Send an experiment or a topology with the files that it names and, for ``program``, the folder that its
        program runs in; return its word there. Raises UserError, StorageError.

        Absolute names in it are those of the other host. What is wrong with the experiment is told there, as here.
        """
        from testbed.core.experiment.named_files import named_files, program_folder
        from testbed.host.files import catalog

        try:
            experiment = catalog.load_experiment(word) if catalog.kind_of(word) == "experiment" else None
        except TestbedError:
            experiment = None
        if experiment is None:
            return self.send(word)
        for name in named_files(experiment):
            if ".." in Path(name).parts:
                fix = "change to a folder above all of them"
                raise UserError(f"{word}: expected files below the current folder, got {shown(name)}; {fix}")
            if not Path(name).is_absolute() and Path(name).exists():
                self.send(name)
        folder = program_folder(experiment) if program else None
        if folder is None or Path(folder).is_absolute():
            return self.send(word)
        path, here = Path(word), Path.cwd().resolve()
        parent = path.parent.resolve()
        local = (parent / folder).resolve()
        if _inside(path) and parent == here / path.parent and local.is_relative_to(here):
            local = local.relative_to(here)
            there, place, word_there = _there(path), str(Path("here") / local), word
        else:  # the folder is found from the experiment's file, so both are named by their absolute paths
            there, place = _outside(path), str(Path("there") / local.relative_to("/"))
            word_there = f"{{folder}}/{there}"
        self._add(path, there, str(path))
        if local.is_dir():
            self._send_folder(local, place, hidden=False)
        return word_there

    def expect(self, word: str) -> str:
        """Expect a file that the command writes; return its word there. Raises UserError."""
        path = Path(word)
        if path.is_dir():
            raise UserError(f"expected a file to write, got the folder {path}; name a file in it")
        if path.exists() and not path.is_file():
            raise UserError(f"expected a plain file to write, got {path}, which is a device or pipe; name another file")
        there = _there(path)
        self.written.append(WrittenFile(path, there))
        if path.parent.is_dir():
            self.folders.append(str(Path(there).parent))
        return _word(word, there)

    def _add(self, path: Path, there: str, name: str = "") -> None:
        if there not in self._there:
            self._there.add(there)
            self.sent.append(SentFile(path, there))
            self.named += [printable(name)] if name else []

    def _send_folder(self, folder: Path, there: str, *, hidden: bool) -> None:
        largest, count = (0, folder), 0
        for path in _files(folder, hidden):
            try:
                size = path.stat().st_size
            except OSError as error:
                raise StorageError(f"cannot read {shown(str(path))}: {error.strerror}") from error
            largest = max(largest, (size, path))
            self._byte_count += size
            self._file_count += 1
            count += 1
            if self._byte_count > MOST_BYTES or self._file_count > MOST_FILES:
                raise UserError(
                    f"expected folders of at most {MOST_BYTES >> 30} GiB and {MOST_FILES} files to send, got more "
                    f"in {folder}; the largest file is {largest[1]} ({format_size(largest[0])}): move it elsewhere, or "
                    "name a smaller folder"
                )
            self._add(path, str(Path(there) / path.relative_to(folder)))
        self.folders.append(there)
        self.named.append(f"{printable(str(folder))}/ ({count} file{'' if count == 1 else 's'})")


def _files(folder: Path, hidden: bool) -> Iterator[Path]:
    """Yield the files of a folder and of those below it; without ``hidden``, not those of hidden ones and of caches.

    Raises UserError for what cannot be sent: a device, a socket, a pipe, a link to a folder or out of the folder.
    """

    def failed(error: OSError) -> None:
        raise StorageError(f"cannot read {error.filename}: {error.strerror}") from error

    within = folder.resolve()
    for parent, folders, names in os.walk(folder, onerror=failed):
        links = [subfolder for subfolder in folders if Path(parent, subfolder).is_symlink()]
        if not hidden:
            folders[:] = [
                subfolder for subfolder in folders if not subfolder.startswith(".") and subfolder != "__pycache__"
            ]
        folders.sort()
        for name in sorted([*names, *links]):
            path = Path(parent, name)
            if not hidden and name.startswith("."):
                continue
            if path.is_symlink() and not path.resolve().is_relative_to(within):
                raise UserError(f"{path} is a link that leads out of {folder}, and is not sent; replace it by a copy")
            if not path.is_file():
                raise UserError(f"{path} is {_kind(path)}, and cannot be sent; move it out of {folder}")
            yield path


def _kind(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return "gone"
    if stat.S_ISLNK(mode):
        return "a link to a folder" if path.is_dir() else "a link to no plain file"
    return "a socket" if stat.S_ISSOCK(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device"


def _inside(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _outside(path: Path) -> str:
    whole = path.resolve() if path.name in ("", "..") else path.parent.resolve() / path.name
    return str(Path("there") / whole.relative_to("/"))


def _there(path: Path) -> str:
    """Return where a file of this host is below the folder of the command there."""
    return str(Path("here") / path) if _inside(path) else _outside(path)


def _word(word: str, there: str) -> str:
    return word if _inside(Path(word)) else f"{{folder}}/{there}"
