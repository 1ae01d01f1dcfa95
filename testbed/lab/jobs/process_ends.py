"""How the process of each rank of a program ended by itself, when, and who ended it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from testbed.core.faults.power import NO_POWER
from testbed.core.faults.rank import KILLED
from testbed.core.workload.members import Member
from testbed.errors import TestbedError
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.cgroup import OomWatch
from testbed.keeper import client
from testbed.keeper.protocol import FaultRecord

__all__ = ["NOTICED_S", "ProcessEnds", "nodes_without_power"]

NOTICED_S = 1.0
"""How much later than it happened the end of a process may be noticed."""


def nodes_without_power(lab: LabFolder) -> frozenset[str]:
    """Return the nodes whose power an active fault has cut. Raises LabError."""
    active = [fault for fault in client.keeper(lab).faults() if fault["ended_t"] is None]
    return frozenset(node for fault in active if fault["phase"] == NO_POWER for node in fault["nodes"])


class ProcessEnds:
    """Notes how each rank's process ended by itself, when, and who ended it."""

    def __init__(self, lab: LabFolder) -> None:
        self._lab, self._memory = lab, OomWatch()
        self._watched: dict[int, bool] = {}
        self._nodes: dict[int, str] = {}
        self.codes: dict[int, int] = {}
        """By rank, the returncode of its process."""
        self._ends: list[dict[str, Any]] = []

    def watch(self, rank: Member, process: Path, watched: bool) -> None:
        """Watch a rank's process, or in a container its first one, whose control group is the same.

        ``watched``: a watchdog reports its signals as a shell does, 128 + n.
        """
        self._watched[rank.rank], self._nodes[rank.rank] = watched, rank.node
        self._memory.watch(rank.rank, process)

    def note(self, rank: int, code: int) -> None:
        if rank in self.codes:
            return
        self.codes[rank] = code
        number = -code if code < 0 else code - 128 if self._watched[rank] and code > 128 else 0
        no_memory = number == signal.SIGKILL and self._memory.killed(rank)
        end = {"signal": number} if number else {"code": code}
        self._ends.append({"rank": rank, "t": time.monotonic(), **end, "out_of_memory": no_memory})

    @property
    def so_far(self) -> list[dict[str, Any]]:
        """The ends that were noted; which of them the testbed caused is asked by :meth:`told`."""
        return [{**end, "by_testbed": False} for end in list(self._ends)]

    def told(self) -> list[dict[str, Any]]:
        """Return the ends in the format of run.json, which :mod:`testbed.core.records.process_end` reads.

        A fault is listed only once it is in force, when the processes of its nodes have ended already: so whether the
        testbed ended them is asked after all have ended.
        """
        outages: list[FaultRecord] = []
        with contextlib.suppress(TestbedError):
            outages = [fault for fault in client.keeper(self._lab).faults() if fault["phase"] in (NO_POWER, KILLED)]

        def by_testbed(end: Mapping[str, Any]) -> bool:
            return end.get("signal") == signal.SIGKILL and any(
                self._nodes[end["rank"]] in outage["nodes"]
                and outage["command_t"] <= end["t"] <= (outage["ended_t"] or end["t"]) + NOTICED_S
                for outage in outages
            )

        return [{**end, "by_testbed": by_testbed(end)} for end in self._ends]
