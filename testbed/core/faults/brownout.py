"""A brown-out: loss that grows as the optical margin falls.

A receiver with error correction hides a falling signal until its margin is used up, then loses frames by orders of
magnitude within a decibel. Where the margin falls evenly in dB, the logarithm of the loss rises about evenly: the ramp
is geometric. Its floor, where nothing is lost at the beginning, is ours: one packet in a million. Said by its margin
the ramp follows the curve of ``core/physics/margin.py`` itself.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.margin import LEAST_MARGIN_DB, frame_loss, margin_db
from testbed.core.physics.parameters import judge, lay
from testbed.core.plan.properties import Shape
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, format_probability, parse_duration_s, parse_probability
from testbed.core.user_text import shown
from testbed.errors import UserError

__all__ = ["BROWN_OUT", "FLOOR", "MOST_PHASES", "brown_out", "margin_ramp", "ramp"]

FLOOR: Final = 1e-6
"""Where a ramp from nothing begins: below it a lab's traffic sees nothing within a minute."""

PHASES_PER_S: Final = 10
LEAST_PHASES: Final = 20
SHORTEST_PHASE_S: Final = 0.02
MOST_PHASES: Final = 1000


def ramp(begin: float, end: float, over_s: float) -> tuple[tuple[float, float], ...]:
    """(seconds, loss) of each step of a geometric ramp from ``begin`` at 0 to ``end`` at ``over_s``.

    Ten steps a second; a short ramp has twenty, unless that would be less than 20 ms each, a long one 1000 in all.
    """
    inner = tuple((share * over_s, begin * (end / begin) ** share) for share in _shares(over_s))
    return (*inner, (over_s, end))


def margin_ramp(begin: float, margin: float, over_s: float) -> tuple[tuple[float, float], ...]:
    """The same from the loss ``begin`` to ``margin`` dB of light, which falls evenly."""
    first = margin_db(begin)
    inner = tuple((share * over_s, frame_loss(first + share * (margin - first))) for share in _shares(over_s))
    return (*inner, (over_s, frame_loss(margin)))


def _shares(over_s: float) -> list[float]:
    """How far each step begins, from 0 to below 1."""
    wanted = max(PHASES_PER_S * over_s, min(LEAST_PHASES, over_s / SHORTEST_PHASE_S))
    count = max(1, min(MOST_PHASES, math.ceil(wanted)))
    return [number / count for number in range(count)]


def brown_out(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """The named directions lose more and more, up to ``loss`` or down to ``margin``, within ``over``.

    Raises UserError.
    """
    directions = target_directions(topology, target)
    if ("loss" in parameters) == ("margin" in parameters):
        said = "not both" if "loss" in parameters else "there is neither"
        raise UserError(f"brown-out needs one of loss=5% and margin=-0.7dB; {said}")
    if "over" not in parameters:
        raise UserError("brown-out needs over=10s: how long it takes")
    reader = Reader(parameters)
    end = reader.read("loss", parse_probability, 1.0)
    margin = reader.read("margin", _margin, None)
    written = reader.read("from", parse_probability, None)
    over_s = reader.read("over", _time, 1.0)
    hold_s = reader.read("hold", _hold, None)
    reader.finish()
    ramps = []
    for link, direction in directions:
        # A direction that loses more by itself begins there: light that fades heals nothing on its way.
        begin = max(_lost(link.impairment(direction)) if written is None else written, FLOOR)
        if margin is None and begin >= end:
            reader.note("loss", f"it rises from {format_probability(begin)}; write more than that")
        if margin is not None and frame_loss(margin) <= begin:
            fix = f"{format_probability(begin)} are lost at {margin_db(begin):.2f} dB already; write less than that"
            reader.note("margin", fix)
        ramps.append(ramp(begin, end, over_s) if margin is None else margin_ramp(begin, margin, over_s))
    reader.finish()
    phases = []
    for moment in zip(*ramps, strict=True):
        steps = []
        for (link, direction), (_, loss) in zip(directions, moment, strict=True):
            own = link.impairment(direction)
            impairment = lay({"loss": loss}, own)
            if judge(impairment):  # bursts of the link's own that so much loss cannot have
                impairment = dataclasses.replace(impairment, burst=0.0)
            steps.append(Shape(direction, impairment))
            for it in judge(impairment):
                reader.note("loss", f"{it.key}: {it.why}")
        at_s, worst = moment[0][0], max(loss for _, loss in moment)
        phases.append(Phase(at_s, f"loss {format_probability(worst, 3)}", tuple(steps)))
    reader.finish()
    links = target_links(topology, target)[0]
    return Compiled(tuple(phases), links, lasts_s=None if hold_s is None else over_s + hold_s)


def _lost(own: Impairment) -> float:
    return own.chain.mean_loss if own.chain else own.loss


def _time(value: object) -> float:
    duration_s = parse_duration_s(value)
    if duration_s < SHORTEST_PHASE_S:
        raise Unreadable(f"{shown(value)} is too short for a ramp", "write a time such as 10s, or inject impair loss=…")
    return duration_s


def _margin(value: object) -> float | None:
    fix = f"write a margin in dB from {LEAST_MARGIN_DB:g} to 1, such as -0.7dB"
    match = re.fullmatch(r"([+-]?[0-9]{1,3}(?:\.[0-9]{1,9})?)\s*(?:dB)?", str(value).strip(), re.ASCII)
    if match is None:
        raise Unreadable(f"{shown(value)} is no margin", fix)
    margin = float(match[1])
    if not LEAST_MARGIN_DB <= margin <= 1:
        raise Unreadable(f"{shown(value)} is out of range", fix)
    return margin


def _hold(value: object) -> float | None:
    return parse_duration_s(value)


BROWN_OUT = FaultKind(
    "brown-out",
    "loss that grows, as when the optical margin falls",
    "a link, one direction of it (north:west), or a duct",
    brown_out,
    {
        "loss": "what it ends at (5%); or",
        "margin": "the optical margin that it ends at (-0.7dB, which loses 1.7%)",
        "over": "how long it grows (10s), by the same factor each second, or as the margin falls evenly",
        "from": "what it begins with [the direction's own loss, one packet in a million at least]",
        "hold": "how long it stays at its worst; without it, until it is healed",
    },
    frozenset({"hold"}),
)
