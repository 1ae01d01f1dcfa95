"""Which handler applies each kind of Step, with and without a keeper; the emulator's handler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.physics.impairment import Direction, Impairment
from testbed.core.plan.properties import Changed, Shape, Throttled
from testbed.core.plan.resources import Agents, Fibers, Prometheus
from testbed.core.plan.step import Property, Step
from testbed.errors import LabError
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.driver import Facts, Handler
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.emulators.emulator import Emulator
from testbed.host.emulators.fiberd import Fiberd
from testbed.host.emulators.netem import Netem
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper import rank_faults
from testbed.keeper.agent_pool import AgentPool, end_servers
from testbed.keeper.prometheus_handler import PrometheusCleanup, PrometheusHandler
from testbed.keeper.rank_faults import RankFaultHandler
from testbed.keeper.throttle import Throttle


class EmulatorHandler:
    """Starts, shapes and stops the emulator. ``died`` is called, from a thread, if it ends unexpectedly."""

    def __init__(self, driver: NetnsDriver, log: Path, died: Callable[[int | None], None]) -> None:
        self._driver, self._log, self._died = driver, log, died
        self.emulator: Emulator | None = None
        self._stopping = False

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Fibers)
        plant = self._driver.path(step.plant)
        emulator: Emulator
        if step.emulator == "netem":
            emulator = Netem.start(plant, step.directions, self._senders(step.directions), step.seed)
        else:
            emulator = Fiberd.start(plant, step.directions, step.seed, self._log)
        self.emulator = emulator
        threading.Thread(target=self._supervise, args=(emulator,), name="emulator", daemon=True).start()
        return {} if emulator.pid is None else {"pid": emulator.pid, "began": process.started(emulator.pid)}

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        self._stopping = True  # first: an emulator that ends from here on has not died
        if (emulator := self.emulator) is not None:
            emulator.stop()
            self.emulator = None
        elif facts:
            process.end(facts["pid"], facts["began"], grace_s=1.0)

    def assign(self, properties: Sequence[Property]) -> None:
        if (emulator := self.emulator) is None:
            return  # it has died: the ends of all fibers are down
        shapes = [it for it in properties if isinstance(it, Shape)]
        changes = {it.direction: it.impairment for it in shapes}
        emulator.set(changes, flush={it.direction for it in shapes if it.flush})

    def differences(self, expected: Mapping[str, Impairment]) -> list[str]:
        """Read the emulator's values back; return one sentence per difference from what it gets for ``expected``.

        Raises LabError: the emulator does not answer.
        """
        return [] if (emulator := self.emulator) is None else emulator.differences(expected)

    def _senders(self, directions: Sequence[Direction]) -> dict[str, tuple[Path, str]]:
        """Return the gateway's end of each cable of the plant, by the plant's end; it is named after the link."""
        # The egress end faces the site that the direction leads to.
        return {it.egress: (self._driver.path(f"{it.toward}-gw"), it.link) for it in directions}

    def _supervise(self, emulator: Emulator) -> None:
        status = emulator.wait()
        if not self._stopping:
            self.emulator = None
            self._died(status)


class Cleanup:
    """Removes what a dead keeper's children may have left; creates and sets nothing."""

    def make(self, step: Step) -> Facts:
        raise LabError("the keeper of this lab is gone; take the lab down and bring it up again")

    def unmake(self, step: Step, facts: Mapping[str, Any]) -> None:
        if "pid" in facts:
            process.end(facts["pid"], facts["began"], grace_s=0.5)
        end_servers(facts)

    def assign(self, properties: Sequence[Property]) -> None:
        return None


class ThrottleCleanup(Cleanup):
    """Removes the CPU limits and the control groups of ranks that died with their keeper."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle

    def assign(self, properties: Sequence[Property]) -> None:
        for it in properties:
            if isinstance(it, Throttled):
                self._throttle.set(it.node, it.cpu)


def of_keeper(
    driver: NetnsDriver,
    emulator: EmulatorHandler,
    agents: AgentPool,
    prometheus: PrometheusHandler,
    containers: Containerlab | None,
) -> dict[type[Step], Handler]:
    """Return the handler of each kind of Step while the keeper runs."""
    drivers: dict[type[Step], Handler] = dict.fromkeys(driver.kinds, driver)
    if containers is not None:
        drivers |= dict.fromkeys(containers.kinds, containers)
    rank_fault_handler = RankFaultHandler(agents, driver.path)
    residents: dict[type[Step], Handler] = {
        Fibers: emulator,
        Shape: emulator,
        Changed: emulator,
        Agents: agents,
        Prometheus: prometheus,
    }
    return {**drivers, **dict.fromkeys(rank_faults.KINDS, rank_fault_handler), **residents}


def without_keeper(lab: LabFolder, driver: NetnsDriver, containers: Containerlab | None) -> dict[type[Step], Handler]:
    """Return the handler of each kind of Step when the keeper is gone and only its journal is left."""
    residue = Cleanup()
    drivers: dict[type[Step], Handler] = dict.fromkeys(driver.kinds, driver)
    if containers is not None:
        drivers |= dict.fromkeys(containers.kinds, containers)
    return {
        **drivers,
        **dict.fromkeys((Fibers, Shape, Changed, Agents, *rank_faults.KINDS), residue),
        Throttled: ThrottleCleanup(Throttle(lab.name, driver.path)),
        Prometheus: PrometheusCleanup(lab),
    }
