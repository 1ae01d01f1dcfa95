"""The fault ``impair``: a fiber that stays up with other impairments."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.faults.overlap import judge_change
from testbed.core.physics.change import Change, stated
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.parameters import PARAMETERS, Misread, judge, lay, parse
from testbed.core.plan.properties import Changed
from testbed.core.topology.model import Link, Topology
from testbed.errors import UserError

__all__ = ["IMPAIR", "impair", "silenced"]


def impair(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Change the given values of the target's directions. Raises UserError."""
    directions = target_directions(topology, target)
    if not parameters:
        keys = ", ".join(f"{key}=…" for key in PARAMETERS)
        raise UserError(f"expected at least one parameter, got none; write one of {keys}")
    reader = Reader(parameters)
    steps: list[Changed] = []
    values, unread = parse(parameters)
    for it in (*unread, *_without_effect(values)):
        reader.note(it.key, it.why)
    reader.finish()
    fields = {PARAMETERS[key].field: value for key, value in values.items()}
    for link, direction in directions:
        own = link.impairment(direction)
        # Loss, corruption and duplication as written must make sense by themselves: the link's own stay beside them.
        misread = judge(lay(values, dataclasses.replace(own, **_NO_CHANCES)), link.mtu)
        step = Changed(direction, stated(fields, own))
        for it in misread or judge_change(link, direction, step.change):
            reader.note(it.key, it.why)  # a mistake may depend on the direction
        steps.append(step)
    reader.finish()
    return Compiled.at_once("impaired", tuple(steps), target_links(topology, target)[0])


_ADDING: Final = ("loss", "p", "corrupt", "duplicate")
_NO_CHANCES: Final[dict[str, Any]] = {
    it.name: it.default
    for it in dataclasses.fields(Impairment)
    if it.name in ("loss", "burst", "p", "r", "h", "k", "corrupt", "corrupt_survives", "duplicate")
}


def _without_effect(values: Mapping[str, Any]) -> Iterator[Misread]:
    """Yield values that change nothing: a fault adds to what the link does, and cannot take from it."""
    for key in _ADDING:
        if values.get(key) == 0:
            yield Misread(key, "expected more than 0: a fault adds to the link's own and cannot reduce it")
    if values.get("largest") == 0:
        yield Misread("largest", "expected a size such as 1400B: a fault cannot lift the link's own limit")


def silenced(directions: Iterable[tuple[Link, str]], flush: bool = False) -> tuple[Changed, ...]:
    """Return Steps with which each direction loses every packet that enters it, while ports keep their carrier.

    The cut is at the sender's end, so packets in flight still arrive; with ``flush`` it is at the receiver's end, and
    packets in flight are lost.
    """
    return tuple(Changed(direction, Change(dark=True), flush) for _, direction in directions)


IMPAIR = FaultKind(
    "impair",
    "a fiber stays up, worse: probabilities and limits below come on top of the link's own and of other faults",
    "a link, one direction of it (north:west), or a duct",
    impair,
    {key: parameter.words for key, parameter in PARAMETERS.items()},
)
