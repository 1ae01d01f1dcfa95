"""Faults of a validation: those of fibers by the lab's keeper, those of ranks by signals to the library's programs."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Mapping
from typing import Final

from testbed.core.plan.addressing import Addressing
from testbed.core.topology.model import Link, Topology
from testbed.errors import LabError
from testbed.host import probing
from testbed.lab import client, places
from testbed.lab.state import LabFolder
from testbed.lab.validate.crew import Crew

__all__ = ["FiberFaults", "Slowed"]

CARRIES_BOUND_S: Final = 15.0
"""How long fibers may take to carry again after a heal: routes come back with the carrier, within milliseconds."""

_SLICE_S: Final = 0.05
"""A rank that is slowed down stands still for a part of every such while."""


class FiberFaults:
    """What is done to the fibers of a lab; :meth:`heal` undoes all of it. Also a context manager that does."""

    def __init__(self, lab: LabFolder, topology: Topology) -> None:
        self._lab, self._topology = lab, topology
        self._standing: list[str] = []

    def __enter__(self) -> FiberFaults:
        return self

    def __exit__(self, *exception: object) -> None:
        self.heal()

    def begin(self, kind: str, target: str, parameters: Mapping[str, str]) -> float:
        """Inject; when it was in force, on CLOCK_MONOTONIC. Raises LabError, UserError."""
        fault = {"type": kind, "target": target, "for_s": None, "parameters": dict(parameters)}
        record = client.call(self._lab, "inject", fault=fault)
        self._standing.append(str(record["id"]))
        return float(record["ack_t"])

    def heal(self) -> float:
        """Undo all that :meth:`begin` began; when that was done. Raises LabError."""
        if self._standing:
            client.call(self._lab, "heal", ids=self._standing, everything=True)
            self._standing.clear()
        return time.monotonic()

    def carry(self, bound_s: float = CARRIES_BOUND_S) -> None:
        """Return when no link is dark and an echo has come back over each. Raises LabError."""
        until = time.monotonic() + bound_s
        while dark := client.call(self._lab, "dark"):
            if time.monotonic() > until:
                raise LabError(f"{', '.join(dark)} stayed dark after its fault was healed")
            time.sleep(0.005)
        for link in self._topology.links:
            self._answered(link, until)

    def _answered(self, link: Link, until: float) -> None:
        """Over the link itself: others may lead around it."""
        here, there = link.between
        net = Addressing(self._topology)
        gateways = [places.netns(self._lab, self._topology.site(it).gateway) for it in link.between]
        source, destination = (str(net.link_end(link, it)[0]) for it in link.between)
        echo = probing.Echo(probing.ProbePath(link.name, gateways[0], source, gateways[1], destination, link.name))
        try:
            number = 0
            while True:
                number += 1
                echo.send(number)
                time.sleep(2 * link.delay_s + 0.005)
                if echo.receive():
                    return
                if time.monotonic() > until:
                    raise LabError(f"{link.name}: {there} does not answer {here} although all faults are healed")
        finally:
            echo.close()


class Slowed:
    """Rank programs that get only a share of the time: stopped and let go on in turn, from a thread of its own."""

    def __init__(self, crew: Crew, rank: int, share: float) -> None:
        """``share`` of the time it runs, 0..1."""
        self._crew, self._rank, self._share = crew, rank, share
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"slow rank {rank}", daemon=True)

    def begin(self) -> float:
        t = time.monotonic()
        self._thread.start()
        return t

    def end(self) -> None:
        """It runs freely again."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(LabError):
            self._crew.send_signal(self._rank, signal.SIGCONT)

    def _run(self) -> None:
        while not self._over.is_set():
            for number, part in ((signal.SIGSTOP, 1.0 - self._share), (signal.SIGCONT, self._share)):
                with contextlib.suppress(LabError):
                    self._crew.send_signal(self._rank, number)
                self._over.wait(part * _SLICE_S)
