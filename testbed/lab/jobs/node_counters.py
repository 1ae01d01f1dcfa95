"""Read counters of every node's kernel: TCP's retransmission timeouts, and the traffic of its interface to the fabric
for jobs without metrics of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from testbed.core.plan.addressing import FABRIC_INTERFACE
from testbed.core.records.samples import NodeSample
from testbed.core.records.stalls import TcpTimeouts
from testbed.core.topology.model import Topology
from testbed.errors import HostError
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import namespace
from testbed.host.linux.interfaces import tcp_timeouts, traffic
from testbed.lab.jobs.rank_scraper import INTERVAL_S

__all__ = ["NodeCounters"]


class NodeCounters:
    """``write`` receives each sample as a line of metrics.jsonl, from the thread of :meth:`run`.

    No namespace is kept open from one sample to the next: it would outlive a node that loses its power, and hold up
    the carrier of its cables.
    """

    def __init__(
        self, lab: LabFolder, topology: Topology, write: Callable[[Mapping[str, object]], None], *, interfaces: bool
    ) -> None:
        self._lab, self._nodes, self._write = lab, topology.node_names, write
        self._interfaces = interfaces
        self._paths: dict[str, Path] = {}
        self._timeouts: dict[str, tuple[float, int]] = {}

    def run(self, stop: threading.Event) -> None:
        """Sample every second until ``stop``, and once more then. Raises StorageError."""
        due_t = time.monotonic()
        last = False
        while True:
            for sample in namespace.in_a_thread(lambda: list(self._samples())):
                self._write(sample.to_dict())
            if last:
                return
            due_t = max(due_t + INTERVAL_S, time.monotonic())
            last = stop.wait(due_t - time.monotonic())

    def _samples(self) -> Iterator[NodeSample | TcpTimeouts]:
        """Yield what each node's kernel has counted; nothing of a node without power."""
        for node in self._nodes:
            try:
                if node not in self._paths:
                    self._paths[node] = lab_nodes.netns(self._lab, node)
                namespace.enter(self._paths[node])
                t, timeouts = time.monotonic(), tcp_timeouts()
                own = traffic().get(FABRIC_INTERFACE) if self._interfaces else None
            except (HostError, OSError):
                self._paths.pop(node, None)  # its container may come back with another namespace
                self._timeouts.pop(node, None)
                continue
            since_t, before = self._timeouts.get(node, (t, timeouts))
            self._timeouts[node] = (t, timeouts)
            if timeouts > before:
                yield TcpTimeouts(t, node, since_t, timeouts - before)
            if own is not None:
                yield NodeSample(t, node, own.sent_bytes, own.received_bytes)
