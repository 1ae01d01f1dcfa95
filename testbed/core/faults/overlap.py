"""Refuse a change that a direction cannot have: on the healthy link, or beside faults that are in force.

Healing must never lead to values that no emulator has, in whatever order faults are healed. So a fault is refused
beside another one even where a third fault masks the conflict for now: every pair is judged by itself, in every phase.
Only delays and probabilities add up over more than two faults, and they are judged at their most.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.faults.fault_kind import Compiled
from testbed.core.physics.change import Change
from testbed.core.physics.fold import Named, fold
from testbed.core.physics.impairment import MOST_DELAY_S, Impairment
from testbed.core.physics.one_qdisc import not_together
from testbed.core.physics.parameters import Misread, judge
from testbed.core.plan.properties import Changed
from testbed.core.topology.model import Link, Topology
from testbed.core.units import format_delay, format_rate
from testbed.errors import UserError

__all__ = ["Begun", "judge_change", "refuse_overlap", "stated_by"]


@dataclass(frozen=True)
class Begun:
    """A fault with the words that name it in a refusal, ``f3 (jitter north)``, and what :func:`stated_by` gives."""

    name: str
    stated: Mapping[str, tuple[Change, ...]]


def judge_change(link: Link, direction: str, change: Change) -> tuple[Misread, ...]:
    """Return the mistakes of a change on the healthy link, on either path, by the key that users write."""
    found: dict[Misread, None] = {}
    own = link.impairment(direction)
    if change.rate_bps and own.rate_bps and change.rate_bps > own.rate_bps:
        why = f"the rate of {direction} is {format_rate(own.rate_bps)}, and a fault cannot raise it; write at most that"
        found[Misread("rate", why)] = None
    for base in _bases(link, direction):
        before = set(_misread(base, (), link.mtu))
        found |= dict.fromkeys(it for it in _misread(base, [("", change)], link.mtu) if it not in before)
    return tuple(found)


def refuse_overlap(topology: Topology, active: Sequence[Begun], wanted: Begun) -> None:
    """Raise UserError if ``wanted`` states what a direction cannot have beside ``active``, the faults in force."""
    links: dict[str, Link] = {name: link for link in topology.links for name in link.directions}
    for direction, changes in wanted.stated.items():
        link = links[direction]
        beside = [(it, it.stated[direction]) for it in active if direction in it.stated]
        if not beside:
            continue
        for base in _bases(link, direction):
            for it, theirs in beside:
                for why in _pair(base, theirs, changes, link.mtu):
                    raise UserError(
                        f"{wanted.name} cannot be in force on {direction} beside {it.name}: {why};"
                        f" heal {it.name.partition(' ')[0]} first"
                    )
            for why in _all(base, [changes, *(theirs for _, theirs in beside)]):
                names = ", ".join(it.name for it, _ in beside)
                raise UserError(
                    f"{wanted.name} cannot be in force on {direction} beside {names}: {why}; heal one of them first"
                )


def _bases(link: Link, direction: str) -> tuple[Impairment, ...]:
    """Return the direction's impairment on each path that it may be on."""
    own = link.impairment(direction)
    return (own,) if link.second_path is None else (own, link.switched(direction))


def stated_by(compiled: Compiled) -> Mapping[str, tuple[Change, ...]]:
    """Return the changes of each direction over all phases; phases that differ in loss alone count once, at the most.

    Darkness and total loss leave nothing to conflict with. Takes milliseconds for a fault of a thousand phases.
    """
    found: dict[str, dict[Change, float]] = {}
    for phase in compiled.phases:
        for step in phase.steps:
            if isinstance(step, Changed) and not step.change.dark:
                worst = found.setdefault(step.direction, {})
                apart = dataclasses.replace(step.change, loss=0.0)
                loss = step.change.loss if step.change.loss < 1 else 0.0
                worst[apart] = max(worst.get(apart, 0.0), loss)
    return {
        direction: tuple(dataclasses.replace(change, loss=loss) for change, loss in worst.items())
        for direction, worst in found.items()
    }


def _pair(base: Impairment, one: Iterable[Change], other: Iterable[Change], mtu: int) -> Iterator[str]:
    """Yield what is wrong with both together and with neither alone."""
    for first in one:
        for second in other:
            alone = {it for changes in ([], [("", first)], [("", second)]) for it in _misread(base, changes, mtu)}
            both = _misread(base, [("", first), ("", second)], mtu)
            yield from (f"{it.key}: {it.why}" for it in both if it not in alone)


def _all(base: Impairment, faults: Sequence[Iterable[Change]]) -> Iterator[str]:
    """Yield what is wrong with what adds up, at its most."""
    changes = [it for phases in faults for it in phases]
    most_s = max([base.delay_s, *(it.delay_s for it in changes if it.delay_s is not None)])
    most_s += math.fsum(max((it.extra_s for it in phases), default=0.0) for phases in faults)
    if most_s > MOST_DELAY_S:
        yield f"delay: {format_delay(most_s, 4)} together; expected at most {MOST_DELAY_S:g} s"
    chances = [
        Change(
            loss=max((it.loss for it in phases), default=0.0),
            corrupt=max((it.corrupt for it in phases), default=0.0),
            corrupt_surviving=max((it.corrupt_surviving for it in phases), default=0.0),
            duplicate=max((it.duplicate for it in phases), default=0.0),
        )
        for phases in faults
    ]
    before = set(not_together(base))
    folded = fold(base, [("", it) for it in chances]).impairment
    yield from (why for why in not_together(folded) if why not in before)


def _misread(base: Impairment, changes: Sequence[Named], mtu: int) -> tuple[Misread, ...]:
    impairment = fold(base, changes).impairment
    beside = (Misread(key, why) for key, _, why in (it.partition(": ") for it in not_together(impairment)))
    return (*judge(impairment, mtu), *beside)
