"""Quantities as people write them, to SI and back: ``40 km``, ``200us``, ``800G``, ``64 KiB``, ``0.1%``.

A bare number takes the natural unit of its field. Whatever is not a finite number in a believable range is refused
with :class:`Unreadable`, a ``ValueError`` whose text is a plain sentence that ends in what would be right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

from testbed.core.user_text import LONGEST_SHOWN, shown

__all__ = [
    "Unreadable",
    "format_delay",
    "format_duration",
    "format_length",
    "format_probability",
    "format_rate",
    "format_size",
    "parse_delay_s",
    "parse_duration_s",
    "parse_length_m",
    "parse_number",
    "parse_probability",
    "parse_rate_bps",
    "parse_size_bytes",
]

_LENGTH: Final = {"m": 1.0, "km": 1e3, "mi": 1609.344}
_DELAY: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_RATE: Final = {
    prefix + suffix: factor
    for prefix, factor in (("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
    for suffix in ("b/s", "bit/s", "bps", "bit", "")
    if prefix or suffix
}
_SIZE: Final = {
    "B": 1.0,
    **{prefix + "B": 1e3**power for power, prefix in enumerate("kMGT", 1)},
    "KB": 1e3,
    **{prefix + "iB": 1024.0**power for power, prefix in enumerate("KMGT", 1)},
}
_PROBABILITY: Final = {"": 1.0, "%": 1e-2}

_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ%/]*)", re.ASCII)


class Unreadable(ValueError):
    """``message`` says what is wrong with a value, ``fix`` what would be right; ``str()`` is both."""

    def __init__(self, message: str, fix: str = "") -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message}; {fix}" if fix else message)


def _quantity(value: object, units: Mapping[str, float], natural: str, fix: str) -> float:
    """``value`` in SI: finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable("there is no value" if value is None else f"{shown(value)} is no quantity", fix)
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip()) if len(value) <= LONGEST_SHOWN else None
        if match is None:
            raise Unreadable(f"{shown(value)} cannot be read", fix)
        number, unit = float(match[1]), match[2].replace("µ", "u").replace("μ", "u") or natural
        if unit not in units:
            raise Unreadable(f"{shown(value)} has an unknown unit '{unit}'", fix)
    else:
        try:
            number, unit = float(value), natural
        except OverflowError:
            number, unit = math.inf, natural
    if not math.isfinite(number * max(units[unit], 1.0)):
        raise Unreadable(f"{shown(value)} is not a finite number", fix)
    if number < 0:
        raise Unreadable(f"{shown(value)} is negative", fix)
    factor = units[unit]
    # 200 / 1e6 is the float nearest to 0.0002 and 200 * 1e-6 is not: 1e-6 itself is rounded already.
    return number * factor if factor >= 1 else number / round(1 / factor)


def _within(si: float, value: object, low: float, high: float, low_text: str, high_text: str) -> float:
    if si < low:
        raise Unreadable(f"{shown(value)} is too small", f"the least is {low_text}")
    if si > high:
        raise Unreadable(f"{shown(value)} is too large", f"the most is {high_text}")
    return si


def parse_length_m(value: object, *, natural: str = "km") -> float:
    """Metres, 1 m to 40 000 km (half way around the Earth is 20 000); a bare number is in ``natural`` units.

    >>> parse_length_m("40 km"), parse_length_m(40), parse_length_m("500 m")
    (40000.0, 40000.0, 500.0)
    """
    si = _quantity(value, _LENGTH, natural, "write a length such as 40, 40 km or 500 m")
    return _within(si, value, 1.0, 4e7, "1 m", "40000 km, around the Earth")


def parse_delay_s(value: object, *, natural: str = "s", most_s: float = 60.0) -> float:
    """Seconds of a latency, 0 to ``most_s``; a bare number is in ``natural`` units.

    >>> parse_delay_s("200us"), parse_delay_s("5 ms")
    (0.0002, 0.005)
    """
    si = _quantity(value, _DELAY, natural, "write a time such as 200us, 5 ms or 10 s")
    return _within(si, value, 0.0, most_s, "0", format_duration(most_s))


def parse_duration_s(value: object, *, natural: str = "s") -> float:
    """Seconds of something that is waited for, 0 to 7 days; a bare number is in ``natural`` units."""
    return parse_delay_s(value, natural=natural, most_s=7 * 24 * 3600.0)


def parse_rate_bps(value: object, *, natural: str = "G") -> float:
    """Bits per second, 1 b/s to 1000 Tb/s; a bare number is in ``natural`` units: 800 is 800 Gb/s.

    >>> parse_rate_bps("800G") == parse_rate_bps("800 Gb/s") == parse_rate_bps(800) == 8e11
    True
    """
    fix = "write a rate in bits per second such as 800G, 800 Gb/s or 100 Mb/s"
    si = _quantity(value, _RATE, natural, fix)
    if si == 0:
        raise Unreadable("a rate of 0 lets nothing through", fix)
    return _within(si, value, 1.0, 1e15, "1 b/s", "1000 Tb/s")


def parse_size_bytes(value: object, *, natural: str = "B") -> int:
    """Whole bytes, 0 to 1 TB; kB, MB, GB are powers of 1000 and KiB, MiB, GiB of 1024.

    >>> parse_size_bytes("1 MB"), parse_size_bytes("64 KiB")
    (1000000, 65536)
    """
    si = _quantity(value, _SIZE, natural, "write a size such as 1 MB, 64 KiB or 1500 B")
    return round(_within(si, value, 0.0, 1e12, "0 B", "1 TB"))


def parse_probability(value: object) -> float:
    """0..1, or a percentage.

    >>> parse_probability("0.1%"), parse_probability("1e-9")
    (0.001, 1e-09)
    """
    fix = "write a probability from 0 to 1 such as 1e-9, or a percentage such as 0.1%"
    si = _quantity(value, _PROBABILITY, "", fix)
    if si > 1:
        raise Unreadable(f"{shown(value)} is more than 1", fix)
    return si


def parse_number(value: object, *, low: float, high: float) -> float:
    """A plain number without a unit, ``low`` to ``high``, both included."""
    fix = f"write a number from {low:g} to {high:g}"
    if isinstance(value, str) and not _QUANTITY.fullmatch(value.strip()):
        raise Unreadable(f"{shown(value)} is no number", fix)
    si = _quantity(value, {"": 1.0}, "", fix)
    if not low <= si <= high:
        raise Unreadable(f"{shown(value)} is out of range", fix)
    return si


def _format(si: float, units: Mapping[str, float], ladder: tuple[str, ...], digits: int = 6) -> str:
    """The largest unit of ``ladder`` (ascending) that leaves at least 1 before the point."""
    unit = ladder[0]
    for candidate in ladder:
        # The hair below 1 keeps 0.2 ms, computed as 0.00019999999999999998 s, from being printed in a smaller unit.
        if abs(si) >= units[candidate] * (1 - 1e-9):
            unit = candidate
    return f"{si / units[unit]:.{digits}g} {unit}"


def format_length(length_m: float, digits: int = 6) -> str:
    """``40 km``, ``500 m``."""
    return _format(length_m, _LENGTH, ("m", "km"), digits)


def format_delay(delay_s: float, digits: int = 6) -> str:
    """``200 us``, ``1.5 ms``."""
    return "0 s" if delay_s == 0 else _format(delay_s, _DELAY, ("ns", "us", "ms", "s"), digits)


def format_duration(duration_s: float, digits: int = 6) -> str:
    """``8 s``, ``2 min``: as :func:`format_delay`, with minutes and hours."""
    return "0 s" if duration_s == 0 else _format(duration_s, _DELAY, ("ns", "us", "ms", "s", "min", "h"), digits)


def format_rate(rate_bps: float, digits: int = 6) -> str:
    """``800 Mb/s``; 0 is ``unlimited``, as in an impairment."""
    return "unlimited" if rate_bps == 0 else _format(rate_bps, _RATE, ("b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"), digits)


def format_size(size_bytes: float, digits: int = 6) -> str:
    """``1.5 MB``, in powers of 1000."""
    return _format(size_bytes, _SIZE, ("B", "kB", "MB", "GB", "TB"), digits)


def format_probability(probability: float, digits: int = 6) -> str:
    """``0.1%``; what is below a millionth as ``1e-09``."""
    if probability and probability < 1e-6:
        return f"{probability:.{digits}g}"
    return f"{probability * 100:.{digits}g}%"
