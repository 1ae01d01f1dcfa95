"""Notice that several nodes write the same file of the working directory, which they share: the most common accident of
scripts for many nodes on one disk."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from testbed.core.user_text import shown
from testbed.errors import HostError
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.linux.file_watch import FileWatch

__all__ = ["SameFiles", "describe"]

_MOST_FILES: Final = 100_000
_SHOWN: Final = 3
_NOT_OUTPUT: Final = "__pycache__"
"""Python replaces what is there by the same content."""


class SameFiles:
    """Which nodes wrote which files below ``folder``, from :meth:`watch` to :meth:`close`; none where the host does not
    let processes be watched."""

    def __init__(self, lab: LabFolder, nodes: Sequence[str], folder: Path) -> None:
        self._nodes = {namespace.inode(lab_nodes.netns(lab, node)): node for node in nodes}
        self._folder = folder
        self._processes: dict[int, str] = {}
        self._written: dict[Path, set[str]] = {}
        self._lock = threading.Lock()
        self._watch: FileWatch | None = None

    def watch(self) -> None:
        with contextlib.suppress(HostError):
            self._watch = FileWatch(self._folder, self._wrote)

    def add(self, pid: int, node: str) -> None:
        """``pid`` is a process on ``node``. Others are known while they run, by their network namespace."""
        self._processes[pid] = node

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def found(self) -> dict[str, list[str]]:
        """Return, for each file that several nodes wrote, relative to the folder, these nodes."""
        with self._lock:
            several = {path: sorted(nodes) for path, nodes in self._written.items() if len(nodes) > 1}
        return {str(path.relative_to(self._folder)): nodes for path, nodes in sorted(several.items())}

    def _wrote(self, path: Path, pid: int) -> None:
        node = self._processes.get(pid) or self._nodes.get(namespace.inode(f"/proc/{pid}/ns/net"))
        if node is None or not path.is_relative_to(self._folder) or _NOT_OUTPUT in path.parts:
            return
        with self._lock:
            if len(self._written) < _MOST_FILES or path in self._written:
                self._written.setdefault(path, set()).add(node)


def describe(nodes_by_file: dict[str, list[str]]) -> str:
    """Return in one sentence which files several nodes wrote; empty if there are none."""
    if not nodes_by_file:
        return ""
    # The program chose the names: what is no text must not reach the terminal.
    named = {path if path.isprintable() else shown(path): nodes for path, nodes in list(nodes_by_file.items())[:_SHOWN]}
    listed = [f"{path} ({', '.join(nodes)})" for path, nodes in named.items()]
    omitted = f" and {len(nodes_by_file) - _SHOWN} more" if len(nodes_by_file) > _SHOWN else ""
    return (
        f"several nodes wrote the same file: {'; '.join(listed)}{omitted}; write to $TESTBED_SCRATCH, which is each"
        " node's own, or put RANK into the name"
    )
