"""Faults of a fiber that stays up with other impairments: ``impair``, its presets for common faults, ``latency-step``.

Each states a few values of each direction; the link's others, and those of other faults, stay.

Routers see restoration in the optical layer (ITU-T G.808), a ``latency-step``, as the same link with another delay,
after a gap in which nothing arrives: protection switching must finish within 50 ms (ITU-T G.841), restoration by a
controller takes seconds. No port loses its carrier, so traffic is not rerouted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Final

from testbed.core.faults.fault_kind import Compiled, FaultKind, Given, Parameter, Phase
from testbed.core.faults.fault_target import LINKS, Aim
from testbed.core.faults.overlap import judge_change
from testbed.core.physics.change import Change, stated
from testbed.core.physics.fiber import propagation_s
from testbed.core.physics.impairment import LEAST_LARGEST_BYTES, Impairment
from testbed.core.physics.parameters import PARAMETERS, judge, lay
from testbed.core.plan.properties import Changed
from testbed.core.topology.model import Link
from testbed.core.units import Unreadable, format_delay, parse_delay_s, parse_length_m, parse_probability
from testbed.core.user_text import expected
from testbed.errors import UserError

__all__ = ["IMPAIR", "LATENCY_STEP", "PRESETS", "judge_steps", "silenced"]

State = Callable[[Link, Impairment], Change]
"""What a fault states of a direction of a link, given the direction's own impairment."""


def _changed(aim: Aim, given: Given, state: State, blamed: str = "") -> tuple[Changed, ...]:
    """State the change of each direction; what it cannot have is a mistake in ``blamed``, else in what is stated."""
    steps = tuple(Changed(name, state(link, link.impairment(name))) for link, name in aim.directions())
    judge_steps(aim, given, steps, blamed)
    return steps


def judge_steps(aim: Aim, given: Given, steps: Iterable[Changed], blamed: str = "") -> None:
    """Note what the directions cannot have as mistakes in the parameter ``blamed``, else in those that are stated."""
    for (link, direction), step in zip(aim.directions(), steps, strict=True):
        for mistake in judge_change(link, direction, step.change):
            given.note(blamed or mistake.key, f"{mistake.key}: {mistake.why}" if blamed else mistake.why)


def silenced(directions: Iterable[tuple[Link, str]], flush: bool = False) -> tuple[Changed, ...]:
    """Return Steps with which each direction loses every packet that enters it, while ports keep their carrier.

    The cut is at the sender's end, so packets in flight still arrive; with ``flush`` it is at the receiver's end, and
    packets in flight are lost.
    """
    return tuple(Changed(direction, Change(dark=True), flush) for _, direction in directions)


def _impair(aim: Aim, given: Given) -> Compiled:
    """Change the given values."""
    values = {key: given[key] for key in given.written}
    if not values:
        keys = ", ".join(f"{key}=…" for key in PARAMETERS)
        raise UserError(f"expected at least one parameter, got none; write one of {keys}")
    for key in ("loss", "p", "corrupt", "duplicate"):
        if values.get(key) == 0:
            given.note(key, "expected more than 0: a fault adds to the link's own and cannot reduce it")
    if values.get("largest") == 0:
        given.note("largest", "expected a size such as 1400B: a fault cannot lift the link's own limit")
    for link, direction in aim.directions():
        # Loss, corruption and duplication as written must make sense by themselves: the link's own stay beside them.
        without_chances = dataclasses.replace(link.impairment(direction), **_NO_CHANCES)
        for mistake in judge(lay(values, without_chances), link.mtu):
            given.note(mistake.key, mistake.why)
    given.finish()
    fields = {PARAMETERS[key].field: value for key, value in values.items()}
    return Compiled.at_once("impaired", _changed(aim, given, lambda link, own: stated(fields, own)), aim.carrying())


def _jitter(aim: Aim, given: Given) -> Compiled:
    """Vary the delay around its mean, by a tenth of it by default."""

    def spread(link: Link, own: Impairment) -> Change:
        spread_s = own.delay_s / 10 if given["amount"] is None else given["amount"]
        return stated({"jitter_s": spread_s, "jitter_distribution": given["distribution"]}, own)

    return Compiled.at_once("jitter", _changed(aim, given, spread, "amount"), aim.carrying())


def _rate_squeeze(aim: Aim, given: Given) -> Compiled:
    """Reduce the rate to a share of the link's own, or to an absolute rate. The queue stays: it is the router's."""
    share, rate_bps = given["to"]
    for link, direction in aim.directions():
        own_bps = link.impairment(direction).rate_bps
        if not rate_bps and not own_bps:
            given.note("to", f"the rate of {direction} is unlimited; write a rate such as 50M")
        if rate_bps and own_bps and rate_bps >= own_bps:
            given.note("to", f"the rate of {direction} is {own_bps / 1e6:g} Mb/s; write less than that")
    given.finish()
    steps = _changed(aim, given, lambda link, own: Change(rate_bps=rate_bps or own.rate_bps * share), "to")
    return Compiled.at_once("squeezed", steps, aim.carrying())


def _corruption(aim: Aim, given: Given) -> Compiled:
    """Flip bits; Ethernet's frame check drops the frame unless ``survives`` is set."""
    change = Change(**{"corrupt_surviving" if given["survives"] else "corrupt": given["share"]})
    return Compiled.at_once("corrupt", _changed(aim, given, lambda link, own: change, "share"), aim.carrying())


def _black_hole(aim: Aim, given: Given) -> Compiled:
    """Drop packets above a size without an ICMP error: pings pass, transfers hang (RFC 2923)."""
    for link, direction in aim.directions():
        if given["largest"] >= link.mtu:
            given.note("largest", f"the MTU of {direction} is {link.mtu} B; write less than that")
    given.finish()
    steps = _changed(aim, given, lambda link, own: Change(largest_bytes=given["largest"]), "largest")
    return Compiled.at_once("black hole", steps, aim.carrying())


def _latency_step(aim: Aim, given: Given) -> Compiled:
    """Change the delay, and nothing else: the queue is the router's, not the path's."""
    key = given.one_of({"extra": "1ms", "km": "120", "delay": "2ms"})

    def moved(link: Link, own: Impairment) -> Change:
        if key == "extra":
            return Change(extra_s=given["extra"])
        if key == "delay":
            return Change(delay_s=given["delay"])
        # Over the same fiber; the latency of optics and huts stays.
        own_path_s, new_path_s = propagation_s(link.length_m, link.fiber), propagation_s(given["km"], link.fiber)
        return Change(delay_s=own.delay_s + new_path_s - own_path_s)

    steps = _changed(aim, given, moved, key)
    delays_s = [step.change.delay_s for step in steps if step.change.delay_s is not None]
    name = f"delay {format_delay(max(delays_s), 4)}" if delays_s else f"delay + {format_delay(given['extra'], 4)}"
    dark = (Phase(0.0, "dark", silenced(aim.directions())),) if given["gap"] else ()
    return Compiled((*dark, Phase(given["gap"], name, steps)), aim.carrying())


def _more_than_0(parse: Callable[[Any], Any], wanted: str, fix: str) -> Callable[[Any], Any]:
    def parse_more(value: object) -> Any:
        if not (parsed := parse(value)):
            raise Unreadable(f"expected {wanted}", fix)
        return parsed

    return parse_more


def _share_or_rate(value: object) -> tuple[float, float]:
    """Parse a share or a rate to (share of the link's rate, 0) or (0, bits per second)."""
    text = str(value).strip()
    if not text.endswith("%"):
        return 0.0, PARAMETERS["rate"].parse(value)
    share = parse_probability(text)
    if not 0 < share < 1:
        raise Unreadable(*expected("a share above 0% and below 100%", value, "write 10%, or a rate such as 50M"))
    return share, 0.0


_NO_CHANCES: Final[dict[str, Any]] = {
    field.name: field.default
    for field in dataclasses.fields(Impairment)
    if field.name in ("loss", "burst", "p", "r", "h", "k", "corrupt", "corrupt_survives", "duplicate")
}

IMPAIR: Final = FaultKind(
    "impair",
    "a fiber stays up, worse: probabilities and limits below come on top of the link's own and of other faults",
    LINKS,
    _impair,
    {key: Parameter(parameter.help_text, parameter.parse) for key, parameter in PARAMETERS.items()},
)

LATENCY_STEP: Final = FaultKind(
    "latency-step",
    "the optical layer moves a fiber to another path",
    LINKS,
    _latency_step,
    {
        "extra": Parameter("additional one-way delay, on top of all others (1ms); or", parse_delay_s),
        "km": Parameter("length of the new path, of the same fiber (120); or", parse_length_m),
        "delay": Parameter("new one-way delay (2ms)", parse_delay_s),
        "gap": Parameter("dark for this long before, without loss of carrier (50ms) [0]", parse_delay_s, 0.0),
    },
)

PRESETS: Final = (
    FaultKind(
        "jitter",
        "the delay of packets varies",
        LINKS,
        _jitter,
        {
            "amount": Parameter(
                "its spread (a tenth of the delay)",
                _more_than_0(parse_delay_s, "a time greater than 0", "write a time such as 20us"),
            ),
            "distribution": Parameter(
                f"{PARAMETERS['distribution'].help_text} (normal)", PARAMETERS["distribution"].parse, "normal"
            ),
        },
    ),
    FaultKind(
        "rate-squeeze",
        "reduced rate, as after the loss of some of a link's waves",
        LINKS,
        _rate_squeeze,
        {"to": Parameter("remaining rate: a share of the link's own, or 50M (10%)", _share_or_rate, (0.1, 0.0))},
    ),
    FaultKind(
        "corruption",
        "bits are flipped in transit",
        LINKS,
        _corruption,
        {
            "share": Parameter(
                "share of corrupted packets (0.1%)",
                _more_than_0(parse_probability, "a share greater than 0", "write a share such as 0.1%"),
                1e-3,
            ),
            "survives": Parameter(
                "true: Ethernet's frame check misses the flipped bit, TCP and UDP see it (false)",
                PARAMETERS["corrupt_survives"].parse,
                False,
            ),
        },
    ),
    FaultKind(
        "mtu-black-hole",
        "large packets are dropped without an ICMP error: pings pass, transfers hang",
        LINKS,
        _black_hole,
        {
            "largest": Parameter(
                "largest IP packet that passes (1400 B)",
                _more_than_0(
                    PARAMETERS["largest"].parse, f"at least {LEAST_LARGEST_BYTES} B", "write a size such as 1400B"
                ),
                1400,
            )
        },
    ),
)
