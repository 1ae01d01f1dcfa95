"""Which handler applies each kind of Step, with and without a keeper; the emulator's handler."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.core.physics import calibration
from testbed.core.physics.impairment import EmulatedDirection, Impairment
from testbed.core.plan.properties import Calibrated, Changed, Paused, Shape, Slowed, Throttled
from testbed.core.plan.resources import Agents, Fibers, Prometheus
from testbed.core.plan.step import Property, Step
from testbed.core.topology.model import topology_from_dict
from testbed.errors import LabError, TestbedError, raise_all
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.driver import Facts, Handler
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.emulators.emulator import Emulator
from testbed.host.emulators.fiberd import Fiberd
from testbed.host.lab_folder import LabFolder
from testbed.host.linux import process
from testbed.keeper import rank_faults
from testbed.keeper.agent_pool import AgentPool, end_servers
from testbed.keeper.program_ranks import ProgramRanks
from testbed.keeper.prometheus_handler import PrometheusCleanup, PrometheusHandler
from testbed.keeper.rank_faults import RankFaultCleanup, RankFaultHandler
from testbed.keeper.throttle import Throttle


class EmulatorHandler:
    """Starts, shapes and stops the emulator. ``died`` is called, from a thread, if it ends unexpectedly."""

    def __init__(self, driver: NetnsDriver, log: Path, died: Callable[[int | None], None]) -> None:
        self._driver, self._log, self._died = driver, log, died
        self.emulator: Emulator | None = None
        self._stopping = False
        self._impairments: dict[str, Impairment] = {}
        """What each direction is to have, before calibration."""
        self._calibrations: dict[str, Calibrated] = {}

    def make(self, step: Step) -> Facts:
        assert isinstance(step, Fibers)
        plant = self._driver.path(step.plant)
        self._impairments = {direction.name: direction.impairment for direction in step.directions}
        emulator: Emulator
        if step.emulator == "netem":
            from testbed.host.emulators.netem import Netem  # fiberd needs none of it

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
        shapes = [step for step in properties if isinstance(step, Shape)]
        calibrations = [step for step in properties if isinstance(step, Calibrated)]
        self._impairments |= {shape.direction: shape.impairment for shape in shapes}
        self._calibrations |= {calibrated.direction: calibrated for calibrated in calibrations}
        changed = [*(step.direction for step in shapes), *(step.direction for step in calibrations)]
        emulator.set(
            {name: self._applied(name) for name in dict.fromkeys(changed)},
            flush={shape.direction for shape in shapes if shape.flush},
        )

    @property
    def taken_off_s(self) -> dict[str, float]:
        """What comes off the delays of each calibrated direction, in seconds."""
        return {
            calibrated.direction: calibrated.taken_off_s
            for calibrated in list(self._calibrations.values())
            if calibrated.taken_off_s
        }

    def _applied(self, direction: str) -> Impairment:
        """Return what the emulator gets."""
        return self._calibrated(direction, self._impairments[direction])

    def _calibrated(self, direction: str, impairment: Impairment) -> Impairment:
        """Return what the emulator gets for an impairment: the one place where calibration changes a delay."""
        calibrated = self._calibrations.get(direction)
        if calibrated is None:
            return impairment
        if calibrated.plain_s is not None:
            return Impairment(calibrated.plain_s)
        return calibration.applied(impairment, calibrated.taken_off_s)

    def differences(self, expected: Mapping[str, Impairment]) -> list[str]:
        """Read the emulator's values back; return one sentence per difference from what it gets for ``expected``.

        Raises LabError: the emulator does not answer.
        """
        if (emulator := self.emulator) is None:
            return []
        return emulator.differences({name: self._calibrated(name, impairment) for name, impairment in expected.items()})

    def _senders(self, directions: Sequence[EmulatedDirection]) -> dict[str, tuple[Path, str]]:
        """Return the gateway's end of each cable of the plant, by the plant's end."""
        # The egress end faces the site that the direction leads to.
        return {
            direction.egress: (self._driver.path(f"{direction.toward}-gw"), direction.receiver or direction.link)
            for direction in directions
        }

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
        failures: list[TestbedError] = []
        for step in properties:
            if isinstance(step, Throttled):
                try:
                    self._throttle.set(step.node, step.cpu)
                except TestbedError as error:
                    failures.append(error)
        raise_all(failures)


def of_keeper(
    driver: NetnsDriver,
    emulator: EmulatorHandler,
    agents: AgentPool,
    programs: ProgramRanks,
    prometheus: PrometheusHandler,
    containers: Containerlab | None,
) -> dict[type[Step], Handler]:
    """Return the handler of each kind of Step while the keeper runs."""
    drivers: dict[type[Step], Handler] = dict.fromkeys(driver.kinds, driver)
    if containers is not None:
        drivers |= dict.fromkeys(containers.kinds, containers)
    rank_fault_handler = RankFaultHandler(agents, programs, driver.path)
    residents: dict[type[Step], Handler] = {
        Fibers: emulator,
        Shape: emulator,
        Changed: emulator,
        Calibrated: emulator,
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
        **dict.fromkeys((Fibers, Shape, Changed, Calibrated, Agents, *rank_faults.KINDS), residue),
        **dict.fromkeys((Paused, Slowed), RankFaultCleanup(lambda: _nodes(lab), driver.path)),
        Throttled: ThrottleCleanup(Throttle(lab.name, driver.path)),
        Prometheus: PrometheusCleanup(lab),
    }


def _nodes(lab: LabFolder) -> tuple[str, ...]:
    try:
        return topology_from_dict(json.loads(lab.topology.read_text())).node_names
    except (OSError, ValueError, TypeError):
        return ()  # it failed while it came up, before any program could run
