"""What the operations of a collective library cost, by a validation of it. Pure."""

from __future__ import annotations

from typing import Final

from testbed.core.prediction.library_costs import PlainLibrary, gloo_rounds
from testbed.core.validation.result import Speed, Validation
from testbed.errors import UserError

__all__ = ["measured_collective"]

IN_FLIGHT: Final = {"torch-gloo": 2}
"""Operations that a library runs at once, by its name, as ``benchmarks/operations_in_flight.py`` measured it: over
1000 km 2, 4 and 8 all_reduces of 64 KiB took 1.06, 2.05 and 4.45 times as long as one."""


def measured_collective(validation: Validation, library: str | None = None) -> PlainLibrary:
    """Return what the operations of a library cost, as far as a validation measured them.

    Rounds and software share the fixed part of a time a + b n, through the two largest all_reduces of one pattern: a
    flat ring has 4 (n - 1) rounds among n ranks, or a share of them if it took less; else all of it is rounds, of any
    number of ranks. What is left is software, and so is what a byte takes longer than on the certified fiber. Other
    kinds, which were not timed, have gloo's rounds and the same software. Slots are known of :data:`IN_FLIGHT`.

    Args:
        library: name; default: the first with an all_reduce of at least two sizes.

    Raises:
        UserError: no such library, or too few sizes.
    """
    for result in validation.libraries:
        if library not in (None, result.name):
            continue
        sizes = sorted(
            (s for s in result.speeds if s.operation == "all_reduce" and s.size and s.crossing), key=lambda s: s.size
        )
        alike = [s for s in sizes if s.pattern == sizes[-1].pattern]
        if len(alike) > 1:
            return _fitted(validation, result.name, alike[-2], alike[-1])
    wanted = "" if library is None else f" of {library}"
    raise UserError(f"the validation has no all_reduce{wanted} of two sizes, as its part about speed has")


def _fitted(validation: Validation, name: str, small: Speed, large: Speed) -> PlainLibrary:
    busiest = max(large.crossing, key=lambda direction: large.crossing[direction])
    link = validation.links[busiest]
    delay_s, certified_bps = link["delay_s"], 8 * link["rate"]
    wire_factor = large.crossing[busiest] / large.size
    certified_s = 8 * wire_factor / certified_bps
    per_byte_s = max((large.median_s - small.median_s) / (large.size - small.size), certified_s)
    fixed_s = max(0.0, small.median_s - per_byte_s * small.size)
    ring = large.pattern == "flat ring" and 1 < wire_factor < 2
    delays, share = fixed_s / delay_s if delay_s else 0.0, 1.0
    if ring:
        most = gloo_rounds("all_reduce", round(2 / (2 - wire_factor)), 0.0)
        delays = min(delays, most)
        share = delays / most if delay_s else 1.0
    software_s = fixed_s - delays * delay_s

    def rounds(kind: str, ranks: int, byte_count: float) -> float:
        if kind != "all_reduce":
            return gloo_rounds(kind, ranks, 0.0)
        return share * gloo_rounds(kind, ranks, 0.0) if ring else delays

    def work_s(kind: str, ranks: int, byte_count: float) -> float:
        return software_s + (per_byte_s - certified_s) * byte_count

    return PlainLibrary(name, rounds, work_s, IN_FLIGHT.get(name), measured=frozenset({"all_reduce"}))
