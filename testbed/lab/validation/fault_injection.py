"""Faults of a validation: the lab's keeper injects those of fibers; those of ranks are signals to the rank programs."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from typing import Final

from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Link, Topology
from testbed.core.validation.fault_matrix import Injection
from testbed.errors import LabError
from testbed.host import lab_nodes
from testbed.host.lab_folder import LabFolder
from testbed.host.measure import probing
from testbed.keeper import client
from testbed.lab.validation.worker_set import WorkerSet

__all__ = ["FiberFaults", "Injected"]

CARRIES_BOUND_S: Final = 15.0
"""How long fibers may take to carry traffic again after a heal: routes return with the carrier, within milliseconds."""

OF_RANKS: Final = frozenset({"rank-kill", "rank-pause"})
"""Kinds that act on the rank program, not on the lab."""


class FiberFaults:
    """Faults on the fibers of a lab; :meth:`heal` undoes all of them, and so does leaving the context manager."""

    def __init__(self, lab: LabFolder, topology: Topology) -> None:
        self._lab, self._topology = lab, topology
        self._active: list[str] = []

    def __enter__(self) -> FiberFaults:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heal()

    def begin(self, injection: Injection) -> float:
        """Inject; return when the fault was in force, on CLOCK_MONOTONIC. Raises LabError, UserError."""
        record = client.keeper(self._lab).inject(
            kind=injection.kind,
            target=injection.target,
            parameters=dict(injection.parameters),
            for_s=injection.for_s,
        )
        self._active.append(record["id"])
        return record["ack_t"]

    def over_t(self) -> float | None:
        """Return when the last of the faults since the last heal ended by itself; None while one is active. Raises
        LabError."""
        records = {fault["id"]: fault for fault in client.keeper(self._lab).faults()}
        ended = [records[fault]["ended_t"] for fault in self._active]
        over = [fault for fault in ended if fault is not None]
        return max(over) if over and len(over) == len(ended) else None

    def heal(self) -> None:
        """Undo all injections of :meth:`begin`. Raises LabError."""
        if self._active:
            client.keeper(self._lab).heal(ids=self._active, everything=True)
            self._active.clear()

    def carry(self, bound_s: float = CARRIES_BOUND_S) -> None:
        """Return when no link is down and an echo has come back over each. Raises LabError."""
        until = time.monotonic() + bound_s
        while dark := client.keeper(self._lab).dark_links():
            if time.monotonic() > until:
                raise LabError(f"{', '.join(dark)} still down {bound_s:g} s after the fault was healed")
            time.sleep(0.005)
        for link in self._topology.links:
            self._answered(link, until)

    def _answered(self, link: Link, until: float) -> None:
        """Probe the link itself: another link may offer a bypass."""
        here, there = link.between
        net = Addressing(self._topology)
        gateways = [lab_nodes.netns(self._lab, self._topology.site(site).gateway) for site in link.between]
        source, destination = (str(net.link_end(link, site)[0]) for site in link.between)
        device = self._topology.interfaces.of_link(link.name)
        echo = probing.Echo(probing.ProbePath(link.name, gateways[0], source, gateways[1], destination, device))
        try:
            while True:
                echo.send()
                time.sleep(2 * link.delay_s + 0.005)
                if echo.receive():
                    return
                if time.monotonic() > until:
                    raise LabError(f"{link.name}: no echo from {there} to {here} although all faults are healed")
        finally:
            echo.close()


class RankFaults:
    """Faults on rank programs by signals. :meth:`step` sends the signals that are due: call it often."""

    def __init__(self, workers: WorkerSet) -> None:
        self._workers = workers
        self._due: list[tuple[float, int, signal.Signals]] = []
        self._stopped: set[int] = set()
        self.over_t: float | None = None
        """When the last stopped rank was continued, if no signal is due after that."""

    def begin(self, injection: Injection) -> float:
        """Kill or stop a rank; return when. Raises LabError."""
        rank = int(injection.target)
        number = {"rank-kill": signal.SIGKILL, "rank-pause": signal.SIGSTOP}[injection.kind]
        began_t = self._send(rank, number)
        for turn in range(injection.repeat):
            turn_t = began_t + turn * injection.every_s
            if turn:
                self._due.append((turn_t, rank, number))
            if injection.for_s is not None:
                self._due.append((turn_t + injection.for_s, rank, signal.SIGCONT))
        self._due.sort()
        return began_t

    def step(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            _, rank, number = self._due.pop(0)
            sent_t = self._send(rank, number)
            if not self._due:
                self.over_t = sent_t

    def heal(self) -> None:
        """Continue all stopped ranks and drop all signals that are due."""
        self._due.clear()
        for rank in tuple(self._stopped):
            with contextlib.suppress(LabError):
                self._send(rank, signal.SIGCONT)

    def _send(self, rank: int, number: signal.Signals) -> float:
        (self._stopped.add if number is signal.SIGSTOP else self._stopped.discard)(rank)
        return self._workers.send_signal(rank, number)


class Injected:
    """The injections of one trial, on fibers and on ranks."""

    def __init__(self, fibers: FiberFaults, workers: WorkerSet, injections: Sequence[Injection]) -> None:
        self._fibers, self._ranks, self._injections = fibers, RankFaults(workers), injections

    def begin(self) -> float:
        """Inject all; return when the last was in force. Raises LabError, UserError."""
        return max(
            self._ranks.begin(injection) if injection.kind in OF_RANKS else self._fibers.begin(injection)
            for injection in self._injections
        )

    def step(self, now: float) -> None:
        self._ranks.step(now)

    def over_t(self) -> float | None:
        """Return when all faults were over by themselves; None if one is active, or was until :meth:`heal`."""
        if any(injection.kind in OF_RANKS for injection in self._injections):
            return self._ranks.over_t
        return self._fibers.over_t()

    def heal(self) -> None:
        """Undo the active faults. Raises LabError."""
        self._ranks.heal()
        self._fibers.heal()
