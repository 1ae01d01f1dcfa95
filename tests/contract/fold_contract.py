"""Contract of overlapping faults on every emulator: whatever begins and heals in whatever order, the emulator has what
the fold of those in force gives. ``fold_oracle.py`` says what that is; the emulator's own values are read back.

The keeper's parts under test are real: faults compile, the engine journals and folds, the handler sets the emulator.
Only time is not: a fault's next phase comes when the test says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import hypothesis.strategies as st
from builders.noop import NoHandler
from netns.fiberd_lab import Lab
from oracles import fold_oracle
from oracles.fold_oracle import DIRECTIONS, OWN, SECOND_DELAY_S, TOPOLOGY, Fault

from testbed.core.faults.fault_registry import compile_fault
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.properties import Carrier, Changed, Shape
from testbed.core.plan.step import Property, Step
from testbed.core.topology.resolve import load_text
from testbed.errors import UserError
from testbed.host.drivers.driver import Handler
from testbed.host.emulators.emulator import Emulator
from testbed.keeper.engine import LAB, Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.faults import Faults
from testbed.keeper.handlers import EmulatorHandler
from testbed.keeper.in_force import InForce
from testbed.keeper.journal import PROTECTED, Journal

ReadBack = Callable[[str], Mapping[str, Any]]
"""Values of a direction, read from the emulator itself, by the keys of ``fold_oracle.expected``."""

PLANS = st.lists(fold_oracle.MOVES, min_size=8, max_size=20)
ENDS = ("l0-a", "l0-b")


class Ports(NoHandler):
    """Remembers carriers."""

    def __init__(self) -> None:
        self.down: set[str] = set()

    __hash__ = object.__hash__

    def assign(self, properties: Sequence[Property]) -> None:
        for it in properties:
            assert isinstance(it, Carrier)
            (self.down.discard if it.up else self.down.add)(it.interface)

    def found_down(self) -> set[str]:
        return self.down


class RealPorts(Ports):
    """Sets carriers by ``ip``, and reads them back."""

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self.lab = lab

    def assign(self, properties: Sequence[Property]) -> None:
        super().assign(properties)
        for it in properties:
            assert isinstance(it, Carrier)
            state = "up" if it.up else "down"
            subprocess.run(["ip", "-n", self.lab.plant, "link", "set", it.interface, state], check=True)

    def found_down(self) -> set[str]:
        found = self.lab.links_of(self.lab.plant)
        return {end for end in ENDS if "UP" not in found[end]["flags"]}


class World:
    """A link on an emulator, with the keeper's own parts on top."""

    def __init__(self, ports: Ports, emulator: Emulator, read_back: ReadBack, path: Path) -> None:
        self.ports, self.path, self.read_back = ports, path, read_back
        self.topology = load_text(TOPOLOGY, "l0.yaml")
        handler = EmulatorHandler(cast(Any, None), path, lambda status: None)
        handler.emulator = emulator
        self.handlers: dict[type[Step], Handler] = {Shape: handler, Changed: handler, Carrier: ports}
        self.journal = Journal.create(path, "lab", "boot", (1, 1))
        self.engine = Engine(self.journal, self.handlers)
        link = self.topology.link("l0")
        self.engine.apply(
            LAB,
            (
                *(Shape(it, link.impairment(it)) for it in DIRECTIONS),
                *(Carrier(PLANT, end, True) for end in ENDS),
            ),
        )
        self.faults = Faults(self.engine, lambda work: work(), EventLog(), lambda fault, cuts: None)
        self.in_force = InForce(self.journal, self.topology)
        self.faults.set_topology(self.topology, self.in_force)
        self.standing: dict[str, Fault] = {}
        self.own: Mapping[str, Any] = OWN

    def play(self, moves: Sequence[tuple[str, Any]]) -> None:
        for what, which in moves:
            if what == "begin":
                self.begin(which)
            elif what == "second path":
                self.switch(which)
            elif what == "crash":
                self.crash()
            elif self.standing:
                fault = list(self.standing)[which % len(self.standing)]
                if what == "heal":
                    del self.standing[fault]
                    self.faults.heal([fault])
                else:
                    self.standing[fault].advance()
                    self.faults._act(fault)
            self.check()

    def begin(self, drawn: Fault) -> None:
        drawn.at = 0
        spec = {"type": drawn.kind, "target": drawn.target, "parameters": drawn.parameters, "for_s": None}
        compiled = compile_fault(self.topology, drawn.kind, drawn.target, drawn.parameters)
        refused = any(
            fold_oracle.conflict(mine, theirs)
            for it in self.standing.values()
            if set(it.directions) & set(drawn.directions)
            for mine in drawn.phases[-2:]
            for theirs in it.phases[-2:]
        )
        try:
            record = self.faults.begin([(cast(Any, {"planned_t": None, "scheduled": None, **spec}), compiled)])[0]
        except UserError as error:
            assert refused, f"{spec} beside {self.standing} was refused: {error}"
            return
        assert not refused, f"{spec} beside {self.standing} was not refused"
        self.standing[record["id"]] = drawn

    def switch(self, second: bool) -> None:
        link = self.topology.link("l0")
        own = {it: link.impairment(it) for it in DIRECTIONS}
        self.own = {**OWN, "delay": SECOND_DELAY_S} if second else OWN
        shapes = (Shape(it, _with_delay(own[it], SECOND_DELAY_S)) for it in DIRECTIONS)
        self.engine.replace(f"{PROTECTED}l0", tuple(shapes) if second else ())

    def crash(self) -> None:
        """Another process, which has the journal alone, sets every key again: nothing may change."""
        with contextlib.closing(Journal.read(self.path)) as journal:
            Engine(journal, self.handlers).reconcile()

    def heal_from_the_journal(self, order: Sequence[int]) -> None:
        """The keeper is dead: the rest is healed from the journal alone, one by one."""
        with contextlib.closing(Journal.read(self.path)) as journal:
            engine = Engine(journal, self.handlers)
            engine.undo(f"{PROTECTED}l0")
            self.own = OWN
            for number in [*order, *[0] * len(self.standing)]:
                self.check()
                if self.standing:
                    fault = list(self.standing)[number % len(self.standing)]
                    del self.standing[fault]
                    engine.undo(fault)
            self.check()

    def check(self) -> None:
        down = {end for it in self.standing.values() for end in it.ends_down}
        assert self.ports.found_down() == down
        for direction in DIRECTIONS:
            wanted = fold_oracle.expected(self.own, [it.says(direction) for it in self.standing.values()])
            self.compare(direction, wanted, self.read_back(direction))

    def compare(self, direction: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        wrong = {key: (it, wanted[key]) for key, it in found.items() if not fold_oracle.close(it, wanted[key])}
        said = {name: (it.kind, it.target, it.parameters, it.at) for name, it in self.standing.items()}
        assert not wrong, f"{direction}: (found, expected) of {wrong} while in force: {said}"
        assert found.keys() <= wanted.keys()


def _with_delay(own: Any, delay_s: float) -> Any:
    return dataclasses.replace(own, delay_s=delay_s)
