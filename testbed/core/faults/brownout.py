"""The fault ``brown-out``: loss that grows as the optical margin shrinks.

Forward error correction hides a fading signal until its margin is used up; then frame loss grows by orders of
magnitude within a decibel. While the margin falls linearly in dB, the logarithm of the loss rises about linearly, so
the ramp is geometric. It starts at one packet in a million (our choice) if the link loses less. Given as a margin, the
ramp follows the curve of ``core/physics/margin.py``.
"""

from __future__ import annotations

import math
import re
from typing import Final

from testbed.core.faults.causes import CAUSE
from testbed.core.faults.fault_kind import Compiled, FaultKind, Given, Parameter, Phase
from testbed.core.faults.fault_target import LINKS, Aim
from testbed.core.faults.impair import judge_steps
from testbed.core.physics.change import Change
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.margin import LEAST_MARGIN_DB, frame_loss, margin_db
from testbed.core.plan.properties import Changed
from testbed.core.units import Unreadable, format_probability, parse_duration_s, parse_probability
from testbed.core.user_text import expected, out_of_range, shown
from testbed.errors import UserError

__all__ = ["BROWN_OUT", "FLOOR", "MOST_PHASES", "margin_ramp", "ramp"]

FLOOR: Final = 1e-6
"""Start of a ramp on a lossless link: a smaller loss does not show in a minute of a lab's traffic."""

PHASES_PER_S: Final = 10
LEAST_PHASES: Final = 20
SHORTEST_PHASE_S: Final = 0.02
MOST_PHASES: Final = 1000


def ramp(begin: float, end: float, over_s: float) -> tuple[tuple[float, float], ...]:
    """Return (seconds, loss) of each step of a geometric ramp from ``begin`` at 0 to ``end`` at ``over_s``.

    Ten steps per second, at least 20 in total unless they would be shorter than 20 ms, at most 1000.
    """
    inner = tuple((share * over_s, begin * (end / begin) ** share) for share in _shares(over_s))
    return (*inner, (over_s, end))


def margin_ramp(begin: float, margin: float, over_s: float) -> tuple[tuple[float, float], ...]:
    """Return the same for a margin that falls linearly, from that of the loss ``begin`` to ``margin`` dB."""
    first = margin_db(begin)
    inner = tuple((share * over_s, frame_loss(first + share * (margin - first))) for share in _shares(over_s))
    return (*inner, (over_s, frame_loss(margin)))


def _shares(over_s: float) -> list[float]:
    """Return the start of each step as a share of the ramp, from 0 to below 1."""
    wanted = max(PHASES_PER_S * over_s, min(LEAST_PHASES, over_s / SHORTEST_PHASE_S))
    count = max(1, min(MOST_PHASES, math.ceil(wanted)))
    return [number / count for number in range(count)]


def _brown_out(aim: Aim, given: Given) -> Compiled:
    """Ramp the loss of the target's directions up to ``loss`` or down to ``margin``, within ``over``.

    The ramp is of the fiber's whole loss, the link's own included; the loss of other faults comes on top.
    """
    end_key = given.one_of({"loss": "5%", "margin": "-0.7dB"})
    if "over" not in given.written:
        raise UserError("missing over, the duration of the ramp; add over=10s")
    margin, over_s, hold_s = given["margin"], given["over"], given["hold"]
    end = given["loss"] if margin is None else frame_loss(margin)
    ramps = []
    for link, direction in aim.directions():
        # A direction with more loss of its own starts there: fading light never reduces the loss.
        begin = max(_lost(link.impairment(direction)), given["from"], FLOOR)
        if begin >= end:
            start = format_probability(begin)
            fix = f"{start}; write more" if margin is None else f"{start}, or {margin_db(begin):.2f} dB; write less"
            given.note(end_key, f"the ramp starts at {fix} than that")
        ramps.append(ramp(begin, end, over_s) if margin is None else margin_ramp(begin, margin, over_s))
    given.finish()
    phases = []
    for moment in zip(*ramps, strict=True):
        losses = {direction: loss for (_, direction), (_, loss) in zip(aim.directions(), moment, strict=True)}
        steps = tuple(
            Changed(direction, Change(loss=_beside(_lost(link.impairment(direction)), losses[direction])))
            for link, direction in aim.directions()
        )
        phases.append(Phase(moment[0][0], f"loss {format_probability(max(losses.values()), 3)}", steps))
    judge_steps(aim, given, steps, end_key)
    return Compiled(tuple(phases), aim.carrying(), lasts_s=None if hold_s is None else over_s + hold_s)


def _lost(own: Impairment) -> float:
    return own.chain.mean_loss if own.chain else own.loss


def _beside(own: float, loss: float) -> float:
    """Return the random loss that makes ``loss`` together with the link's ``own``; 0 if the own is more."""
    if not own or loss >= 1:
        return loss
    return max(0.0, 1.0 - (1.0 - loss) / (1.0 - own))


def _time(value: str) -> float:
    duration_s = parse_duration_s(value)
    if duration_s < SHORTEST_PHASE_S:
        fix = f"expected at least {SHORTEST_PHASE_S * 1e3:g} ms for a ramp; for a single step inject impair loss=…"
        raise Unreadable(f"{shown(value)} is out of range", fix)
    return duration_s


def _margin(value: str) -> float:
    fix = f"write a margin in dB from {LEAST_MARGIN_DB:g} to 1, such as -0.7dB"
    match = re.fullmatch(r"([+-]?[0-9]{1,3}(?:\.[0-9]{1,9})?)\s*(?:dB)?", str(value).strip(), re.ASCII)
    if match is None:
        raise Unreadable(*expected("a margin in dB", value, fix))
    margin = float(match[1])
    if not LEAST_MARGIN_DB <= margin <= 1:
        raise Unreadable(*out_of_range(value, f"{LEAST_MARGIN_DB:g} dB", "1 dB"))
    return margin


BROWN_OUT: Final = FaultKind(
    "brown-out",
    "loss that grows, as the optical margin shrinks",
    LINKS,
    _brown_out,
    {
        "loss": Parameter("final loss (5%); or", parse_probability),
        "margin": Parameter("final optical margin (-0.7dB, which loses 1.7%)", _margin),
        "over": Parameter("duration of the ramp (10s): loss grows geometrically, or the margin falls linearly", _time),
        "from": Parameter(
            "initial loss [the direction's own, at least one packet in a million]", parse_probability, 0.0
        ),
        "hold": Parameter("time at the final value [until healed]", parse_duration_s),
        **CAUSE,
    },
    ending=frozenset({"hold"}),
)
