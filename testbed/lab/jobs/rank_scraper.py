"""Scrape the ranks of a run every second, all at once, from inside the management network.

A rank that does not answer delays no other: its line says so, and the next scrape begins on time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from testbed.core.plan import build
from testbed.core.plan.addressing import MANAGEMENT
from testbed.core.records.samples import SCRAPED, RankSample
from testbed.core.topology.model import Topology
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.metrics.scrape import scrape_all

__all__ = ["BOUND_S", "INTERVAL_S", "RankScraper"]

INTERVAL_S: Final = 1.0
BOUND_S: Final = 0.8
"""How long a rank may take to answer: less than the interval, so that each scrape ends before the next one."""

_NAMES: Final = frozenset(name for name, _ in SCRAPED.values())


class RankScraper:
    """``write`` receives each sample as a line of metrics.jsonl, from the thread of :meth:`run`."""

    def __init__(self, lab: LabFolder, topology: Topology, write: Callable[[Mapping[str, object]], None]) -> None:
        self._lab, self._write = lab, write
        self._targets = {rank.rank: (rank.metrics, rank.port) for rank in build.ranks(topology)}
        self._before: dict[int, RankSample] = {}
        self.tokens_per_s = 0.0

    def run(self, stop: threading.Event) -> None:
        """Scrape until ``stop``, and once more then; the calling thread enters the management namespace for good.

        Raises LabError, HostError, StorageError.
        """
        namespace.enter(lab_nodes.netns(self._lab, MANAGEMENT))
        due_t = time.monotonic()
        last = False
        while True:
            self._scrape()
            if last:
                return
            due_t = max(due_t + INTERVAL_S, time.monotonic())
            last = stop.wait(due_t - time.monotonic())

    def _scrape(self) -> None:
        found = scrape_all(self._targets, BOUND_S, _NAMES)
        samples = {rank: RankSample.from_series(it.t, rank, it.values, it.why) for rank, it in found.items()}
        for sample in samples.values():
            self._write(sample.to_dict())
        self.tokens_per_s = sum(_tokens_per_s(self._before.get(rank), it) for rank, it in samples.items())
        self._before = samples


def _tokens_per_s(before: RankSample | None, after: RankSample) -> float:
    """Return the rate of one rank; 0 where it did not answer twice, or is a fresh process."""
    if before is None or before.tokens is None or after.tokens is None or after.t <= before.t:
        return 0.0
    return max(0, after.tokens - before.tokens) / (after.t - before.t)
