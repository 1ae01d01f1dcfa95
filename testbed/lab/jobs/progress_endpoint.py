"""Read the steps of ranks from their Prometheus endpoints, each from inside its own node."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from testbed.core.workload.members import Member
from testbed.core.workload.progress_source import Endpoint
from testbed.host.linux import namespace
from testbed.host.metrics.scrape import scrape_all

__all__ = ["EndpointReader", "numbers"]

INTERVAL_S: Final = 0.25
BOUND_S: Final = 0.2
"""How long an endpoint may take to answer: less than the interval, so that each scrape ends before the next one."""

_LOOPBACK: Final = "127.0.0.1"


def numbers(endpoint: Endpoint, values: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers by field of one scrape, by ``name`` or ``name{label="value"}``.

    A name alone stands for its only series; where it has several, it is left out. So is what is no finite number, as a
    gauge that was never set may be.
    """
    found: dict[str, float] = {}
    for field, name in endpoint.sources.by_field().items():
        series = [name] if name in values else [it for it in values if it.partition("{")[0] == name]
        if len(series) == 1 and math.isfinite(values[series[0]]):
            found[field] = values[series[0]]
    return found


class EndpointReader:
    """Scrapes the ranks of one node every :data:`INTERVAL_S`. :attr:`answered`: whether one ever had its step."""

    def __init__(
        self,
        netns: Path,
        members: Sequence[Member],
        endpoint: Endpoint,
        take: Callable[[int, float, Mapping[str, float]], None],
    ) -> None:
        self._netns, self._endpoint, self._take = netns, endpoint, take
        self._targets = {it.rank: (_LOOPBACK, endpoint.port + it.local_rank) for it in members}
        self._names = frozenset(it.partition("{")[0] for it in endpoint.sources.by_field().values())
        self.answered = False

    def run(self, stop: threading.Event) -> None:
        """The calling thread enters the node's network namespace for good. Raises HostError."""
        namespace.enter(self._netns)
        due_t = time.monotonic()
        while not stop.is_set():
            for rank, scraped in scrape_all(self._targets, BOUND_S, self._names).items():
                found = numbers(self._endpoint, scraped.values)
                if "step" in found:
                    self.answered = True
                    self._take(rank, scraped.t, found)
            due_t = max(due_t + INTERVAL_S, time.monotonic())
            stop.wait(due_t - time.monotonic())
