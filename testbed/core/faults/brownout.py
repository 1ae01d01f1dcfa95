"""The fault ``brown-out``: loss that grows as the optical margin shrinks.

Forward error correction hides a fading signal until its margin is used up; then frame loss grows by orders of
magnitude within a decibel. While the margin falls linearly in dB, the logarithm of the loss rises about linearly, so
the ramp is geometric. It starts at one packet in a million (our choice) if the link loses less. Given as a margin, the
ramp follows the curve of ``core/physics/margin.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Phase, Reader
from testbed.core.faults.fault_target import target_directions, target_links
from testbed.core.faults.overlap import judge_change
from testbed.core.physics.change import Change
from testbed.core.physics.impairment import Impairment
from testbed.core.physics.margin import LEAST_MARGIN_DB, frame_loss, margin_db
from testbed.core.plan.properties import Changed
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable, format_probability, parse_duration_s, parse_probability
from testbed.core.user_text import expected, out_of_range, shown
from testbed.errors import UserError

__all__ = ["BROWN_OUT", "FLOOR", "MOST_PHASES", "brown_out", "margin_ramp", "ramp"]

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


def brown_out(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """Ramp the loss of the target's directions up to ``loss`` or down to ``margin``, within ``over``.

    The ramp is of the fiber's whole loss, the link's own included; the loss of other faults comes on top.
    Raises UserError.
    """
    directions = target_directions(topology, target)
    if ("loss" in parameters) == ("margin" in parameters):
        got = "both" if "loss" in parameters else "neither"
        raise UserError(f"expected one of loss=5% and margin=-0.7dB, got {got}; write exactly one")
    if "over" not in parameters:
        raise UserError("missing over, the duration of the ramp; add over=10s")
    reader = Reader(parameters)
    end = reader.read("loss", parse_probability, 1.0)
    margin = reader.read("margin", _margin, None)
    written = reader.read("from", parse_probability, None)
    over_s = reader.read("over", _time, 1.0)
    hold_s = reader.read("hold", _hold, None)
    reader.finish()
    ramps = []
    for link, direction in directions:
        # A direction with more loss of its own starts there: fading light never reduces the loss.
        begin = max(_lost(link.impairment(direction)), written or 0.0, FLOOR)
        if margin is None and begin >= end:
            reader.note("loss", f"the ramp starts at {format_probability(begin)}; write more than that")
        if margin is not None and frame_loss(margin) <= begin:
            why = f"the ramp starts at {format_probability(begin)}, or {margin_db(begin):.2f} dB; write less than that"
            reader.note("margin", why)
        ramps.append(ramp(begin, end, over_s) if margin is None else margin_ramp(begin, margin, over_s))
    reader.finish()
    phases = []
    for moment in zip(*ramps, strict=True):
        steps = []
        for (link, direction), (_, loss) in zip(directions, moment, strict=True):
            change = Change(loss=_beside(_lost(link.impairment(direction)), loss))
            steps.append(Changed(direction, change))
        at_s, worst = moment[0][0], max(loss for _, loss in moment)
        phases.append(Phase(at_s, f"loss {format_probability(worst, 3)}", tuple(steps)))
    for step, (link, direction) in zip(steps, directions, strict=True):
        for it in judge_change(link, direction, step.change):
            reader.note("loss" if margin is None else "margin", f"{it.key}: {it.why}")
    reader.finish()
    links = target_links(topology, target)[0]
    return Compiled(tuple(phases), links, lasts_s=None if hold_s is None else over_s + hold_s)


def _lost(own: Impairment) -> float:
    return own.chain.mean_loss if own.chain else own.loss


def _beside(own: float, loss: float) -> float:
    """Return the random loss that makes ``loss`` together with the link's ``own``; 0 if the own is more."""
    if not own or loss >= 1:
        return loss
    return max(0.0, 1.0 - (1.0 - loss) / (1.0 - own))


def _time(value: object) -> float:
    duration_s = parse_duration_s(value)
    if duration_s < SHORTEST_PHASE_S:
        fix = f"expected at least {SHORTEST_PHASE_S * 1e3:g} ms for a ramp; for a single step inject impair loss=…"
        raise Unreadable(f"{shown(value)} is out of range", fix)
    return duration_s


def _margin(value: object) -> float | None:
    fix = f"write a margin in dB from {LEAST_MARGIN_DB:g} to 1, such as -0.7dB"
    match = re.fullmatch(r"([+-]?[0-9]{1,3}(?:\.[0-9]{1,9})?)\s*(?:dB)?", str(value).strip(), re.ASCII)
    if match is None:
        raise Unreadable(*expected("a margin in dB", value, fix))
    margin = float(match[1])
    if not LEAST_MARGIN_DB <= margin <= 1:
        raise Unreadable(*out_of_range(value, f"{LEAST_MARGIN_DB:g} dB", "1 dB"))
    return margin


def _hold(value: object) -> float | None:
    return parse_duration_s(value)


BROWN_OUT = FaultKind(
    "brown-out",
    "loss that grows, as the optical margin shrinks",
    "a link, one direction of it (north:west), or a duct",
    brown_out,
    {
        "loss": "final loss (5%); or",
        "margin": "final optical margin (-0.7dB, which loses 1.7%)",
        "over": "duration of the ramp (10s): loss grows geometrically, or the margin falls linearly",
        "from": "initial loss [the direction's own, at least one packet in a million]",
        "hold": "time at the final value [until healed]",
    },
    frozenset({"hold"}),
)
