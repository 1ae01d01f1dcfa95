"""The protocol of a fault: a named disturbance that validates its own parameters and compiles to Steps.

A fault never does anything by itself: its Steps go through the one journal and the one reconciler, so undoing it
is undoing Steps, whatever happens to whoever asked for it. A fault that takes time compiles to phases: whoever plays
them has the Steps of one phase stand in place of those of the phase before. Undoing needs to know nothing of phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Topology
from testbed.errors import UserError

__all__ = ["Compile", "Compiled", "FaultKind", "Phase", "Reader"]

T = TypeVar("T")


@dataclass(frozen=True)
class Phase:
    """From ``at_s`` seconds after the fault began these Steps stand for it, and no others. ``name`` is for people.

    ``cuts`` are paths of protected links that are dark then: what follows is the protection's, not the fault's.
    """

    at_s: float
    name: str
    steps: Plan
    cuts: tuple[PathCut, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """The phases of a fault, the first at 0, and the links it touches (for events, reports and ``status``).

    Attributes:
        phases: ascending in time; the last one stands until the fault is undone.
        links: names of the links that it touches.
        period_s: with a period the phases begin again every so many seconds; 0: once through.
        lasts_s: the fault is over by itself after so many seconds; None: it stands until it is undone.
        nodes: names of the nodes that it touches by itself, not by way of a link.
    """

    phases: tuple[Phase, ...]
    links: tuple[str, ...]
    period_s: float = 0.0
    lasts_s: float | None = None
    nodes: tuple[str, ...] = ()

    @classmethod
    def at_once(cls, name: str, steps: Plan, links: tuple[str, ...]) -> Compiled:
        """A fault that is what it is from its beginning to its end."""
        return cls((Phase(0.0, name, steps),), links)

    @property
    def steps(self) -> Plan:
        """What stands from the beginning."""
        return self.phases[0].steps

    def timeline(self) -> Iterator[Phase]:
        """Every phase with its time since the fault began, the first included; endless where there is a period."""
        for begin in itertools.count() if self.period_s else (0,):
            for phase in self.phases:
                at_s = begin * self.period_s + phase.at_s
                if self.lasts_s is not None and at_s >= self.lasts_s:
                    return
                yield replace(phase, at_s=at_s)


Compile = Callable[[Topology, str, Mapping[str, str]], Compiled]
"""(topology, target, parameters as written) to phases; raises UserError, naming the parameter and the fix."""


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault. ``parameters`` maps each parameter's name to the words that ``--help`` shows.

    ``ending`` names those that give a fault an end of its own.
    """

    name: str
    summary: str
    targets: str
    compile: Compile
    parameters: Mapping[str, str] = field(default_factory=dict)
    ending: frozenset[str] = frozenset()


class Reader:
    """Parameters as they are read one by one; :meth:`finish` raises for all that were wrong with them, at once."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self._wrong: dict[str, None] = {}

    def read(self, key: str, parse: Callable[[Any], T], default: T) -> T:
        """The value of ``key``; ``default`` where it is not written, or cannot be read, which is remembered."""
        if key not in self._parameters:
            return default
        try:
            return parse(self._parameters[key])
        except ValueError as error:
            self.note(key, str(error))
            return default

    def __contains__(self, key: str) -> bool:
        return key in self._parameters

    def note(self, key: str, why: str) -> None:
        """Something is wrong with ``key``; the same thing is said once."""
        self._wrong[f"{key}={self._parameters.get(key, '…')}: {why}"] = None

    def finish(self) -> None:
        """Raises UserError if anything was wrong."""
        if self._wrong:
            raise UserError("; ".join(self._wrong))
