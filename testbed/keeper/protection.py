"""The protection of a live lab's links: what the optical layer does when one of a link's two paths is cut.

Faults name the paths that they cut (``Phase.cuts``). A :class:`Selector` per protected link decides which path carries
the traffic; the Steps for that are owned by ``protection LINK`` in the journal. So the switch back outlives the fault
that caused the switch, two faults on one link combine, and `down` needs no knowledge of protection.

The Steps: none on the working path; the second path's delay on the protection path, below the faults in force; during
a switch both directions drop all packets that enter and all in flight; and where the carrier is lost both ends are
down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

from testbed.core.faults.impair import silenced
from testbed.core.physics.protection_selector import Path, PathCut, Selector
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.properties import Carrier, Shape
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Link, Topology
from testbed.errors import TestbedError, raise_all
from testbed.keeper.clock import Clock
from testbed.keeper.engine import Engine
from testbed.keeper.event_log import EventLog
from testbed.keeper.in_force import InForce
from testbed.keeper.journal import PROTECTED

__all__ = ["Protection"]


class Protection:
    """All protected links of one lab. Methods run in the engine's thread unless they say otherwise."""

    def __init__(self, engine: Engine, do: Callable[[Callable[[], None]], None], events: EventLog) -> None:
        self._engine, self._do, self._events = engine, do, events
        self.switches = Clock()
        self._in_force: InForce | None = None
        self._links: dict[str, Link] = {}
        self._ends: dict[str, tuple[str, str]] = {}
        self._selectors: dict[str, Selector] = {}
        self._cuts: dict[str, frozenset[PathCut]] = {}
        self._states: dict[str, str] = {}

    def set_topology(self, topology: Topology, in_force: InForce) -> None:
        """Set the protected links, and where events read what is in force; called before the first fault."""
        self._in_force = in_force
        for link in topology.links:
            if link.second_path is not None:
                self._links[link.name], self._selectors[link.name] = link, Selector(link.second_path)
                self._states[link.name], self._ends[link.name] = "working", topology.interfaces.ends(link.name)

    def states(self) -> dict[str, str]:
        """Return each link's state: ``working``, ``protection``, ``switching`` or ``dark``. From any thread."""
        return dict(self._states)

    def cut(self, fault: str, cuts: Iterable[PathCut]) -> None:
        """Set the paths that ``fault`` cuts from now on. Raises TestbedError if a direction cannot be set."""
        t, before = time.monotonic(), self._cuts.get(fault, frozenset())
        self._cuts[fault] = frozenset(cuts)
        if not self._cuts[fault]:
            del self._cuts[fault]
        links = {cut.link for cut in before ^ frozenset(cuts)}
        for name in (name for name in self._selectors if name in links):
            self._selectors[name].learn(t, self._cut_of(name))
        self._follow(links, t)

    def restore(self) -> None:
        """Revert every link whose working path is intact, without its wait-to-restore. Raises TestbedError."""
        t = time.monotonic()
        for selector in self._selectors.values():
            selector.restore(t)
        self._follow(self._selectors, t)

    def _switch(self, name: str) -> None:
        """Switch a link that is due; from the clock's thread."""
        try:
            self._do(partial(self._advance, name))
        except RuntimeError:
            raise  # the engine's thread has ended
        except Exception as error:
            self._events.add("note", text=f"a protected link could not be switched: {error}")

    def _advance(self, name: str) -> None:
        """Switch a link if that is still due. One attempt: a switch that fails is not repeated forever."""
        t, selector = time.monotonic(), self._selectors[name]
        going = self._engine.journal.state in ("going", "down")
        if not going and selector.due_t is not None and selector.due_t <= t:
            selector.advance(t)
            self._follow([name], t)

    def _cut_of(self, link: str) -> frozenset[Path]:
        return frozenset(cut.path for cuts in self._cuts.values() for cut in cuts if cut.link == link)

    def _follow(self, links: Iterable[str], planned_t: float) -> None:
        """Apply the Steps of the selectors' current states. Raises all failures."""
        failures: list[TestbedError] = []
        for name in sorted(links):
            link, selector = self._links[name], self._selectors[name]
            command_t = time.monotonic()
            steps = _steps(link, selector, self._ends[name])
            touched = [entry.step for entry in self._engine.journal.owned(PROTECTED + name)] + list(steps)
            try:
                self._engine.replace(PROTECTED + name, steps)
            except TestbedError as error:
                failures.append(error)
                continue
            if self._states[name] != selector.state:
                if selector.state == "switching" and selector.due_t is not None:
                    # A switch lasts from when its path is dark, not from the request: that took time as well.
                    selector.due_t += time.monotonic() - planned_t
                was, self._states[name] = self._states[name], selector.state
                times = {"planned_t": planned_t, "command_t": command_t, "ack_t": time.monotonic()}
                changes = {} if self._in_force is None else {"in_force": self._in_force.changed_by(touched)}
                self._events.add(
                    "protection-switched", t=times["ack_t"], link=name, was=was, to=selector.state, **times, **changes
                )
            if selector.due_t is not None:
                self.switches.at(selector.due_t, partial(self._switch, name))
        raise_all(failures)


def _steps(link: Link, selector: Selector, ends: Iterable[str]) -> Plan:
    """Return the Steps of the fiber in the selector's current state. ``ends`` are its interfaces in the plant."""
    if not selector.carrier:
        return tuple(Carrier(PLANT, end, False) for end in ends)
    if selector.state == "switching":
        return silenced([(link, direction) for direction in link.directions], flush=True)
    if selector.state == "protection":
        return tuple(Shape(direction, link.switched(direction)) for direction in link.directions)
    return ()
