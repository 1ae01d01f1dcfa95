"""Refuse a change that a direction cannot have: on the healthy link, or beside faults that are in force.

Healing must never lead to values that no emulator has, in whatever order faults are healed. So a fault is refused
beside another one even where a third fault masks the conflict for now: every pair is judged by itself, in every phase.
Only delays and probabilities add up over more than two faults, and they are judged at their most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from testbed.core.faults.fault_kind import Compiled
from testbed.core.physics.change import Change
from testbed.core.physics.fold import Named, fold
from testbed.core.physics.impairment import MOST_DELAY_S, Impairment
from testbed.core.physics.one_qdisc import not_together
from testbed.core.physics.parameters import Misread, judge
from testbed.core.topology.model import Link, Topology
from testbed.core.units import format_delay, format_rate
from testbed.errors import UserError

__all__ = ["judge_change", "refuse_overlap"]


def judge_change(link: Link, direction: str, change: Change) -> tuple[Misread, ...]:
    """Return the mistakes of a change on the healthy link, on either path, by the key that users write."""
    mistakes: dict[Misread, None] = {}
    own = link.impairment(direction)
    if change.rate_bps and own.rate_bps and change.rate_bps > own.rate_bps:
        why = f"the rate of {direction} is {format_rate(own.rate_bps)}, and a fault cannot raise it; write at most that"
        mistakes[Misread("rate", why)] = None
    for base in _bases(link, direction):
        before = set(_misread(base, (), link.mtu))
        changed = _misread(base, [("", change)], link.mtu)
        mistakes |= dict.fromkeys(mistake for mistake in changed if mistake not in before)
    return tuple(mistakes)


def refuse_overlap(topology: Topology, active: Mapping[str, Compiled], name: str, fault: Compiled) -> None:
    """Raise UserError if ``fault`` states what a direction cannot have beside ``active``, the faults in force.

    Names are those of the message: ``f3 (jitter north)``.
    """
    links: dict[str, Link] = {direction: link for link in topology.links for direction in link.directions}
    for direction, changes in fault.stated.items():
        link = links[direction]
        beside = {other: rival.stated[direction] for other, rival in active.items() if direction in rival.stated}
        if not beside:
            continue
        for base in _bases(link, direction):
            for other, stated in beside.items():
                for why in _pair(base, stated, changes, link.mtu):
                    raise UserError(
                        f"{name} cannot be in force on {direction} beside {other}: {why};"
                        f" heal {other.partition(' ')[0]} first"
                    )
            for why in _all(base, [changes, *beside.values()]):
                names = ", ".join(beside)
                raise UserError(
                    f"{name} cannot be in force on {direction} beside {names}: {why}; heal one of them first"
                )


def _bases(link: Link, direction: str) -> tuple[Impairment, ...]:
    """Return the direction's impairment on each path that it may be on."""
    own = link.impairment(direction)
    return (own,) if link.second_path is None else (own, link.switched(direction))


def _pair(base: Impairment, one: Iterable[Change], other: Iterable[Change], mtu: int) -> Iterator[str]:
    """Yield what is wrong with both together and with neither alone."""
    for first in one:
        for second in other:
            apart: tuple[list[Named], ...] = ([], [("", first)], [("", second)])
            alone = {mistake for changes in apart for mistake in _misread(base, changes, mtu)}
            together = _misread(base, [("", first), ("", second)], mtu)
            yield from (f"{mistake.key}: {mistake.why}" for mistake in together if mistake not in alone)


def _all(base: Impairment, faults: Sequence[Iterable[Change]]) -> Iterator[str]:
    """Yield what is wrong with what adds up, at its most."""
    delays_s = (change.delay_s for changes in faults for change in changes if change.delay_s is not None)
    most_s = max([base.delay_s, *delays_s])
    most_s += math.fsum(max((change.extra_s for change in changes), default=0.0) for changes in faults)
    if most_s > MOST_DELAY_S:
        yield f"delay: {format_delay(most_s, 4)} together; expected at most {MOST_DELAY_S:g} s"
    chances = [
        Change(
            loss=max((change.loss for change in changes), default=0.0),
            corrupt=max((change.corrupt for change in changes), default=0.0),
            corrupt_surviving=max((change.corrupt_surviving for change in changes), default=0.0),
            duplicate=max((change.duplicate for change in changes), default=0.0),
        )
        for changes in faults
    ]
    before = set(not_together(base))
    folded = fold(base, [("", change) for change in chances]).impairment
    yield from (why for why in not_together(folded) if why not in before)


def _misread(base: Impairment, changes: Sequence[Named], mtu: int) -> tuple[Misread, ...]:
    impairment = fold(base, changes).impairment
    beside = (Misread(key, why) for key, _, why in (text.partition(": ") for text in not_together(impairment)))
    return (*judge(impairment, mtu), *beside)
