"""Faults of the light: a fiber that goes on working, worse than before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from testbed.core import units
from testbed.core.faults.fault import Compiled, FaultKind, target_links
from testbed.core.plan.build import impairment
from testbed.core.plan.step import Shape
from testbed.core.topology.model import Topology
from testbed.errors import UserError

_PARAMETERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "delay": ("delay_s", units.parse_delay_s, "one way, in place of the link's own (5ms)"),
    "rate": ("rate_bps", units.parse_rate_bps, "on the wire, already scaled (100M)"),
    "queue": ("queue_bytes", units.parse_size_bytes, "bytes that may wait (64 KiB)"),
    "loss": ("loss", units.parse_probability, "probability per MTU segment (0.1%)"),
}


def impair(topology: Topology, target: str, parameters: Mapping[str, str]) -> Compiled:
    """The named directions get these values; what is not named keeps the link's own. Raises UserError."""
    names, toward = target_links(topology, target)
    changes: dict[str, Any] = {}
    for key, text in parameters.items():
        field, parse, _ = _PARAMETERS[key]
        try:
            changes[field] = parse(text)
        except ValueError as error:
            raise UserError(f"{key}={text}: {error}") from error
    if not changes:
        raise UserError("impair needs at least one of " + ", ".join(f"{key}=…" for key in _PARAMETERS))
    if changes.get("rate_bps") == 0:
        raise UserError("rate=0 would mean no limit; a fiber that passes nothing is a cut")
    steps = tuple(
        Shape(direction, dataclasses.replace(impairment(topology.link(name)), **changes))
        for name in names
        for direction in topology.link(name).directions
        if not toward or direction == f"{name}:{toward}"
    )
    return Compiled(steps, names)


IMPAIR = FaultKind(
    "impair",
    "a fiber that goes on, worse: delay, rate, queue or loss replaced",
    "a link, one direction of it (north:west), or a duct",
    impair,
    {key: words for key, (_, _, words) in _PARAMETERS.items()},
)
