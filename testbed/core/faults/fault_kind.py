"""The protocol of a fault: a named disturbance that validates its own parameters and compiles to Steps.

A fault never acts by itself: its Steps go through the one journal and the one reconciler, so undoing a fault is
undoing Steps, whatever happens to the process that injected it. A fault that changes over time compiles to phases: the
keeper replaces the Steps of one phase by those of the next. Undo does not depend on phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Topology
from testbed.errors import UserError

__all__ = ["Compile", "CompileRanks", "Compiled", "FaultKind", "Phase", "Reader"]

T = TypeVar("T")


@dataclass(frozen=True)
class Phase:
    """The Steps of a fault from ``at_s`` seconds after its start until the next phase. ``name`` is for display.

    ``cuts`` are the paths of protected links that are cut meanwhile; the link's protection decides what follows.
    """

    at_s: float
    name: str
    steps: Plan
    cuts: tuple[PathCut, ...] = ()


@dataclass(frozen=True)
class Compiled:
    """The phases of a fault, the first at 0, and the links it affects (for events, reports and ``status``).

    Attributes:
        phases: ascending in time; the last one stays active until the fault is undone.
        links: names of the affected links.
        period_s: the phases repeat with this period in seconds; 0: they run once.
        lasts_s: the fault ends by itself after this many seconds; None: it is active until undone.
        nodes: names of the nodes affected directly, not through a link.
    """

    phases: tuple[Phase, ...]
    links: tuple[str, ...]
    period_s: float = 0.0
    lasts_s: float | None = None
    nodes: tuple[str, ...] = ()

    @classmethod
    def at_once(cls, name: str, steps: Plan, links: tuple[str, ...]) -> Compiled:
        """Return a fault with a single phase."""
        return cls((Phase(0.0, name, steps),), links)

    @property
    def steps(self) -> Plan:
        """The Steps of the first phase."""
        return self.phases[0].steps

    def timeline(self) -> Iterator[Phase]:
        """Yield every phase, including the first, with its time since the start; endless if there is a period."""
        for begin in itertools.count() if self.period_s else (0,):
            for phase in self.phases:
                at_s = begin * self.period_s + phase.at_s
                if self.lasts_s is not None and at_s >= self.lasts_s:
                    return
                yield replace(phase, at_s=at_s)


Compile = Callable[[Topology, str, Mapping[str, str]], Compiled]
"""Compile (topology, target, parameters as written) to phases; raises UserError with the parameter and the fix."""


class CompileRanks(Protocol):
    """As :data:`Compile`, of a fault of ranks: their numbers depend on how many ranks the job has on each node."""

    def __call__(
        self, topology: Topology, target: str, parameters: Mapping[str, str], ranks_per_node: int = 1
    ) -> Compiled: ...


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault. ``parameters`` maps each parameter to its help text.

    ``ending`` names the parameters that give a fault an end of its own. ``compile_ranks`` replaces ``compile`` for a
    fault of ranks, where a job has several on each node.
    """

    name: str
    summary: str
    targets: str
    compile: Compile
    parameters: Mapping[str, str] = field(default_factory=dict)
    ending: frozenset[str] = frozenset()
    compile_ranks: CompileRanks | None = None


class Reader:
    """Read parameters one by one; :meth:`finish` raises one error for all mistakes."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters
        self._wrong: dict[str, None] = {}

    def read(self, key: str, parse: Callable[[Any], T], default: T) -> T:
        """Return the value of ``key``; ``default`` if it is not written, or invalid, which is recorded."""
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
        """Record a mistake in ``key``; duplicates are dropped."""
        self._wrong[f"{key}={self._parameters.get(key, '…')}: {why}"] = None

    def finish(self) -> None:
        """Raise UserError if any mistake was recorded."""
        if self._wrong:
            raise UserError("; ".join(self._wrong))
