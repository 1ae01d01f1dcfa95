"""Time compression of an experiment: ``1 year = 60s``, ``12 h = 5s``, or a plain factor."""

from __future__ import annotations

import re
from typing import Final

from testbed.core.faults.causes import YEAR_S
from testbed.core.units import Unreadable, parse_duration_s
from testbed.core.user_text import expected, out_of_range, shown

__all__ = ["parse_compression"]

_UNITS: Final = {
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "day": 86400.0,
    "days": 86400.0,
    "week": 7 * 86400.0,
    "weeks": 7 * 86400.0,
    "month": YEAR_S / 12,
    "months": YEAR_S / 12,
    "year": YEAR_S,
    "years": YEAR_S,
}
_SHAPE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([a-z]{1,6})\s*=\s*(.{1,20})", re.ASCII)
_MOST: Final = 1e12


def parse_compression(value: object) -> float:
    """Return real-world seconds per second of the experiment, at least 1. Raises Unreadable.

    >>> parse_compression("12 h = 6s"), parse_compression(3600)
    (7200.0, 3600.0)
    """
    fix = "write 1 year = 60s, 12 h = 5s, or a factor such as 3600"
    if isinstance(value, int | float) and not isinstance(value, bool):
        factor = float(value) if abs(value) <= _MOST else _MOST * 2
    else:
        match = _SHAPE.fullmatch(value.strip()) if isinstance(value, str) and len(value) <= 60 else None
        if match is None or match[2] not in _UNITS:
            raise Unreadable(*expected("a time compression", value, fix))
        lasts_s = parse_duration_s(match[3])
        if lasts_s == 0:
            raise Unreadable(f"compressed time must be greater than 0 in {shown(value)}", fix)
        factor = float(match[1]) * _UNITS[match[2]] / lasts_s
    if not 1 <= factor <= _MOST:
        message, bounds = out_of_range(factor, "1", "1e12")
        raise Unreadable(f"factor {message}", f"{bounds}; {fix}")
    return factor
