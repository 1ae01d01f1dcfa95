"""What the ranks of one run print: the lines of all of them, each after its rank, or its node where the program runs
once per node, as `launch` shows them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO

__all__ = ["JobOutput", "LogTail", "lines"]


class LogTail:
    """What has not been read of the log at ``path`` yet. Its predecessor is at ``aside``, if it can have one."""

    def __init__(self, path: Path, aside: Path | None = None) -> None:
        self._path, self._aside = path, aside
        self._inode: int | None = None
        self._offset = 0

    def lines(self, *, torn: bool = True) -> Iterator[str]:
        """Yield the lines since the last call; ``torn``: a last one without its newline too."""
        with contextlib.ExitStack() as opened:
            files: list[IO[bytes]] = []
            # The log first: one that is moved aside in between is then found again at its new place.
            for path in filter(None, (self._path, self._aside)):
                with contextlib.suppress(FileNotFoundError):
                    files.insert(0, opened.enter_context(path.open("rb")))
            inodes = [os.fstat(file.fileno()).st_ino for file in files]
            if len(set(inodes)) < len(inodes):
                del files[0], inodes[0]
            if self._inode in inodes:
                del files[: inodes.index(self._inode)]
            for file in files:
                if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                    self._inode, self._offset = inode, 0
                file.seek(self._offset)
                data = file.read()
                # Nothing is written to the predecessor any more.
                whole = data if torn or file is not files[-1] else data[: data.rfind(b"\n") + 1]
                self._offset += len(whole)
                yield from whole.decode(errors="replace").splitlines()


POLL_S = 0.1
_LOG = re.compile(r"rank-(\d+)\.log")


class JobOutput:
    """The lines in the logs of a run's ranks that have not been read yet.

    ``ranks``: of these alone; the lines of a single one have no prefix.
    """

    def __init__(self, run: Path, ranks: Collection[int] | None = None) -> None:
        self._folder, self._ranks = run / "ranks", ranks
        self._run = run
        self._tails: dict[int, LogTail] = {}
        self._nodes: dict[int, str] | None = None

    def read(self, *, torn: bool = False) -> Iterator[str]:
        """Yield the lines since the last call; ``torn``: also last ones without their newline."""
        for path in self._folder.glob("rank-*.log"):
            if name := _LOG.fullmatch(path.name):
                rank = int(name[1])
                if self._ranks is None or rank in self._ranks:
                    self._tails.setdefault(rank, LogTail(path))
        for rank in sorted(self._tails):
            for line in self._tails[rank].lines(torn=torn):
                alone = self._ranks is not None and len(self._ranks) == 1
                yield line if alone else f"[{self._label(rank)}] {line}"

    def _label(self, rank: int) -> str:
        if self._nodes is None:
            self._nodes = _programs(self._run)
        return self._nodes.get(rank, f"rank {rank}")


def _programs(run: Path) -> dict[int, str]:
    """Return the node of each program of a run that has one per node; empty for any other run."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        workload = json.loads((run / "run.json").read_text())["workload"]
        if workload.get("start") == "per-node":
            return {int(member["rank"]): str(member["node"]) for member in workload["members"]}
    return {}


def lines(run: Path, ranks: Collection[int] | None, over: Callable[[], bool], *, follow: bool) -> Iterator[str]:
    """Yield what ranks of a run have printed; ``follow``: and what they print until the job is ``over``."""
    output = JobOutput(run, ranks)
    while follow and not over():
        yield from output.read()
        time.sleep(POLL_S)
    yield from output.read(torn=True)
