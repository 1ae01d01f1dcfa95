"""What the ranks of one run print: the lines of all of them, each after its rank, or its node where the program runs
once per node, as `launch` shows them."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from testbed.lab.log_tail import LogTail

__all__ = ["JobOutput", "lines"]

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
            return {int(it["rank"]): str(it["node"]) for it in workload["members"]}
    return {}


def lines(run: Path, ranks: Collection[int] | None, over: Callable[[], bool], *, follow: bool) -> Iterator[str]:
    """Yield what ranks of a run have printed; ``follow``: and what they print until the job is ``over``."""
    output = JobOutput(run, ranks)
    while follow and not over():
        yield from output.read()
        time.sleep(POLL_S)
    yield from output.read(torn=True)
