"""Inputs of a prediction from a validation: what a collective library takes and sends, beside its fiber. Pure."""

from __future__ import annotations

from typing import Any, Final

from testbed.core.validation.result import Speed, Validation
from testbed.errors import UserError

__all__ = ["measured_collective"]

IN_FLIGHT: Final = {"torch-gloo": 2}
"""Operations that a library runs at once, by its name, as ``benchmarks/operations_in_flight.py`` measured it: over
1000 km 2, 4 and 8 all_reduces of 64 KiB took 1.06, 2.05 and 4.45 times as long as one."""


def measured_collective(validation: Validation, library: str | None = None) -> dict[str, Any]:
    """Return ``wire_factor``, ``delays``, ``operation_s``, ``rate_bps``, ``delay_s``, by the names of ``Inputs``.

    w is what crossed the busier direction per byte of the vector, in the largest all_reduce. c and o share the fixed
    part of a time a + b n, through the two largest sizes of one pattern: a flat ring of R ranks has c = 4 (R - 1), else
    all of it counts as delays; what is left is software. The rate is what the library reached, w / b, at most the
    certified one: on a busy machine copies cost as much as the fiber. ``in_flight``, q, is there for libraries of
    :data:`IN_FLIGHT`.

    Args:
        library: name; default: the first with an all_reduce of at least two sizes.

    Raises:
        UserError: no such library, or too few sizes.
    """
    for it in validation.libraries:
        if library not in (None, it.name):
            continue
        sizes = sorted(
            (s for s in it.speeds if s.operation == "all_reduce" and s.size and s.crossing), key=lambda s: s.size
        )
        if sizes:
            alike = [s for s in sizes if s.pattern == sizes[-1].pattern]
            if len(alike) > 1:
                in_flight = {"in_flight": IN_FLIGHT[it.name]} if it.name in IN_FLIGHT else {}
                return _fitted(validation, alike[-2], alike[-1]) | in_flight
    wanted = "" if library is None else f" of {library}"
    raise UserError(f"the validation has no all_reduce{wanted} of two sizes, as its part about speed has")


def _fitted(validation: Validation, small: Speed, large: Speed) -> dict[str, Any]:
    busiest = max(large.crossing, key=lambda name: large.crossing[name])
    link = validation.links[busiest]
    delay_s, certified_bps = link["delay_s"], 8 * link["rate"]
    wire_factor = large.crossing[busiest] / large.size
    per_byte_s = max((large.median_s - small.median_s) / (large.size - small.size), 8 * wire_factor / certified_bps)
    fixed_s = max(0.0, small.median_s - per_byte_s * small.size)
    delays = fixed_s / delay_s if delay_s else 0.0
    if large.pattern == "flat ring" and 1 < wire_factor < 2:
        ranks = round(2 / (2 - wire_factor))
        delays = min(delays, 4 * (ranks - 1))
    return {
        "wire_factor": wire_factor,
        "delays": delays,
        "operation_s": fixed_s - delays * delay_s,
        "rate_bps": 8 * wire_factor / per_byte_s,
        "delay_s": delay_s,
    }
