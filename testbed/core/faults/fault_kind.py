"""A kind of fault as a value: its targets, its parameters, and its effect, which is Steps.

A fault never acts by itself: its Steps go through the one journal and the one reconciler, so undoing a fault is
undoing Steps, whatever happens to the process that injected it. A fault that changes over time compiles to phases: the
keeper replaces the Steps of one phase by those of the next. Undo does not depend on phases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from testbed.core.faults.fault_target import Aim
from testbed.core.physics.change import Change
from testbed.core.physics.protection_selector import PathCut
from testbed.core.plan.properties import Changed
from testbed.core.plan.step import Plan
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName, UserError

__all__ = ["Compiled", "FaultKind", "Given", "Parameter", "Phase"]


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

    @cached_property
    def stated(self) -> Mapping[str, tuple[Change, ...]]:
        """The changes of each direction over all phases; phases that differ in loss alone count once, at the most.

        Darkness and total loss leave nothing to conflict with. Takes milliseconds for a fault of a thousand phases.
        """
        most: dict[str, dict[Change, float]] = {}
        changed = (step for phase in self.phases for step in phase.steps if isinstance(step, Changed))
        for step in changed:
            if not step.change.dark:
                losses = most.setdefault(step.direction, {})
                lossless = replace(step.change, loss=0.0)
                loss = step.change.loss if step.change.loss < 1 else 0.0
                losses[lossless] = max(losses.get(lossless, 0.0), loss)
        return {
            direction: tuple(replace(change, loss=loss) for change, loss in losses.items())
            for direction, losses in most.items()
        }

    def timeline(self) -> Iterator[Phase]:
        """Yield every phase, including the first, with its time since the start; endless if there is a period."""
        for begin in itertools.count() if self.period_s else (0,):
            for phase in self.phases:
                at_s = begin * self.period_s + phase.at_s
                if self.lasts_s is not None and at_s >= self.lasts_s:
                    return
                yield replace(phase, at_s=at_s)


@dataclass(frozen=True)
class Parameter:
    """One parameter: its help text, its parser (raises ValueError), its value where it is not written."""

    help: str
    parse: Callable[[Any], Any]
    default: Any = None


class Given:
    """The parameters of one fault, parsed. All mistakes are collected, and raised as one error."""

    def __init__(self, kind: FaultKind, written: Mapping[str, str]) -> None:
        self.written = written
        self._values: dict[str, Any] = {key: parameter.default for key, parameter in kind.takes.items()}
        self._mistakes: dict[str, None] = {}
        for key, value in written.items():
            try:
                self._values[key] = kind.takes[key].parse(value)
            except ValueError as error:
                self.note(key, str(error))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def one_of(self, examples: Mapping[str, str]) -> str:
        """Return which of these parameters is written. Raises UserError unless exactly one is."""
        keys = [key for key in examples if key in self.written]
        if len(keys) != 1:
            *first, last = (f"{key}={example}" for key, example in examples.items())
            got = " and ".join(keys) or "none"
            raise UserError(f"expected one of {', '.join(first)} and {last}, got {got}; write exactly one")
        return keys[0]

    def note(self, key: str, why: str) -> None:
        """Record a mistake in ``key``; duplicates are dropped."""
        self._mistakes[f"{key}={self.written.get(key, '…')}: {why}"] = None

    def finish(self) -> None:
        """Raise UserError if any mistake was recorded."""
        if self._mistakes:
            raise UserError("; ".join(self._mistakes))


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault.

    Attributes:
        effect: compiles it for a target; it notes mistakes in parameters that depend on the target.
        takes: its parameters, by the key that users write.
        find: resolves the target, before anything else is looked at. Raises UnknownName or UserError.
        ending: the parameters that give it an end of its own.
        of_ranks: it depends on how many ranks the job has on each node.
    """

    name: str
    summary: str
    targets: str
    effect: Callable[[Aim, Given], Compiled]
    takes: Mapping[str, Parameter] = field(default_factory=dict)
    find: Callable[[Aim], object] = Aim.directions
    ending: frozenset[str] = frozenset()
    of_ranks: bool = False

    @property
    def parameters(self) -> Mapping[str, str]:
        """The help text of each parameter."""
        return {key: parameter.help for key, parameter in self.takes.items()}

    def compile(self, topology: Topology, target: str, written: Mapping[str, str], ranks_per_node: int = 1) -> Compiled:
        """Compile to phases. Raises UserError with the parameter and the fix."""
        for key in written:
            if key not in self.takes:
                raise UnknownName(f"{self.name} parameter", key, self.takes)
        aim = Aim(topology, target, ranks_per_node)
        self.find(aim)
        given = Given(self, written)
        given.finish()
        compiled = self.effect(aim, given)
        given.finish()
        return compiled
