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
        shaped = {it.direction for it in steps if isinstance(it, Shape | Changed)}
        ports = {it.interface for it in steps if isinstance(it, Carrier) and it.namespace == PLANT}
        touched = [name for name, ends in self._ends.items() if name in shaped or ports.intersection(ends)]
        found = {it["direction"]: it for it in self._read(touched)}
        for it in found.values():
            it["values"] = [value for value in it["values"] if value["by"] != [LINK]]
            del it["impairment"]
        return found

    def differences(
        self, compare: Callable[[Mapping[str, Impairment]], list[str]], also: Collection[str] = ()
    ) -> list[str]:
        """Have the directions that are not the link's alone, and those of ``also``, compared with the emulator's own
        values.

        ``compare`` is that of the emulator's handler. Raises LabError.
        """
        changed = [
            it
            for it in self.all()
            if any(value["by"] != [LINK] for value in it["values"]) or it["dark_by"] or it["direction"] in also
        ]
        return compare({it["direction"]: Impairment(**it["impairment"]) for it in changed}) if changed else []

    def _read(self, directions: Iterable[str]) -> list[DirectionInForce]:
        directions = list(directions)
        keys = {name: self._keys(name) for name in directions}
        found = self._journal.properties({key for each in keys.values() for key in each})
        return [self._direction(name, [found[key] for key in keys[name]]) for name in directions]

    def _keys(self, direction: str) -> tuple[Key, ...]:
        carriers = (Carrier(PLANT, end, False).key for end in self._ends[direction])
        return (("shape", direction), *carriers)

    def _direction(self, direction: str, found: list) -> DirectionInForce:  # type: ignore[type-arg]
        shaping, *ports = found
        folded = fold_of([(_maker(owner), step) for owner, step in shaping])
        cuts = [_maker(owner) for port in ports for owner, step in port if not step.up]
        values: list[ValueInForce] = [
            {"key": it.key, "text": it.text, "by": list(it.by)} for it in folded.values if it.key != "dark"
        ]
        silent = [maker for it in folded.values if it.key == "dark" for maker in it.by]
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
