"""What is in force on each direction of a lab's fibers, and who made it: the fold of the journal's properties."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from testbed.core.physics.fold import LINK
from testbed.core.physics.impairment import Impairment
from testbed.core.plan.addressing import PLANT
from testbed.core.plan.properties import Carrier, Changed, Shape, fold_of
from testbed.core.plan.step import Step
from testbed.core.topology.model import Topology
from testbed.keeper.engine import LAB
from testbed.keeper.journal import PROTECTED, Journal
from testbed.keeper.protocol import DirectionInForce, ValueInForce

__all__ = ["InForce"]

Key = tuple[str, ...]


class InForce:
    """Reads the journal; safe from any thread."""

    def __init__(self, journal: Journal, topology: Topology) -> None:
        self._journal = journal
        self._ends: dict[str, tuple[str, str]] = {
            direction: topology.interfaces.ends(link.name) for link in topology.links for direction in link.directions
        }

    def all(self) -> list[DirectionInForce]:
        """Return what is in force on every direction, in the order of the topology."""
        return self._read(self._ends)

    def changed_by(self, steps: Iterable[Step]) -> dict[str, DirectionInForce]:
        """Return what is in force on the directions that these Steps act on, without what the link itself makes."""
        shaped = {step.direction for step in steps if isinstance(step, Shape | Changed)}
        ports = {step.interface for step in steps if isinstance(step, Carrier) and step.namespace == PLANT}
        touched = [name for name, ends in self._ends.items() if name in shaped or ports.intersection(ends)]
        in_force = {direction["direction"]: direction for direction in self._read(touched)}
        for direction in in_force.values():
            direction["values"] = [value for value in direction["values"] if value["by"] != [LINK]]
            del direction["impairment"]
        return in_force

    def differences(
        self, compare: Callable[[Mapping[str, Impairment]], list[str]], also: Collection[str] = ()
    ) -> list[str]:
        """Have the directions that are not the link's alone, and those of ``also``, compared with the emulator's own
        values.

        ``compare`` is that of the emulator's handler. Raises LabError.
        """
        changed = [
            direction
            for direction in self.all()
            if any(value["by"] != [LINK] for value in direction["values"])
            or direction["dark_by"]
            or direction["direction"] in also
        ]
        return (
            compare({direction["direction"]: Impairment(**direction["impairment"]) for direction in changed})
            if changed
            else []
        )

    def _read(self, directions: Iterable[str]) -> list[DirectionInForce]:
        directions = list(directions)
        keys = {name: self._keys(name) for name in directions}
        by_key = self._journal.properties({key for direction_keys in keys.values() for key in direction_keys})
        return [self._direction(name, [by_key[key] for key in keys[name]]) for name in directions]

    def _keys(self, direction: str) -> tuple[Key, ...]:
        carriers = (Carrier(PLANT, end, False).key for end in self._ends[direction])
        return (("shape", direction), *carriers)

    def _direction(self, direction: str, properties: list) -> DirectionInForce:  # type: ignore[type-arg]
        shaping, *ports = properties
        folded = fold_of([(_maker(owner), step) for owner, step in shaping])
        cuts = [_maker(owner) for port in ports for owner, step in port if not step.up]
        values: list[ValueInForce] = [
            {"key": folded_value.key, "text": folded_value.text, "by": list(folded_value.by)}
            for folded_value in folded.values
            if folded_value.key != "dark"
        ]
        silent = [maker for folded_value in folded.values if folded_value.key == "dark" for maker in folded_value.by]
        return {
            "direction": direction,
            "dark_by": list(dict.fromkeys([*cuts, *silent])),
            "values": values,
            "masked": [{"fault": fault, "key": key} for fault, key in folded.masked],
            "impairment": dataclasses.asdict(folded.impairment),
        }


def _maker(owner: str) -> str:
    """Return the owner's name for people."""
    return LINK if owner == LAB else "protection" if owner.startswith(PROTECTED) else owner
