"""A whole run directory as one value: ``testbed.host.files.store`` reads it, ``testbed.core.report`` explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.certification.certificate import Certificate
from testbed.core.records.check_record import CheckLog
from testbed.core.records.event import Event
from testbed.core.records.rank_log import RankLog
from testbed.core.records.run_info import RunInfo
from testbed.core.records.samples import FiberSample, HostSample, NodeSample, RankSample
from testbed.core.records.stalls import Stall, TcpTimeouts
from testbed.core.topology.model import Topology

__all__ = ["RunData"]


@dataclass(frozen=True)
class RunData:
    """Everything is optional: a run that died early left little. ``malformed`` counts unreadable lines by file name."""

    info: RunInfo = field(default_factory=RunInfo)
    topology: Topology | None = None
    certificate: Certificate | None = None
    events: tuple[Event, ...] = ()
    fibers: tuple[FiberSample, ...] = ()
    rank_samples: tuple[RankSample, ...] = ()
    hosts: tuple[HostSample, ...] = ()
    nodes: tuple[NodeSample, ...] = ()
    """Interface counters of the nodes, recorded of launched programs."""
    ranks: tuple[RankLog, ...] = ()
    checks: tuple[CheckLog, ...] = ()
    """Records of the ranks for the checkers."""
    output: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By rank, first and last lines of the output of a launched program that reports no steps."""
    stalls: tuple[Stall, ...] = ()
    tcp_timeouts: tuple[TcpTimeouts, ...] = ()
    watched: bool = False
    """Whether the host's stalls were recorded."""
    malformed: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
