"""Convert quantities between their written form and SI: ``40 km``, ``200us``, ``800G``, ``64 KiB``, ``0.1%``.

A bare number takes the natural unit of its field. A latency and the compute of a step have none: 80 would be 80 s where
80 ms were meant, so it is refused. Anything but a finite number in a plausible range raises :class:`Unreadable`, a
``ValueError`` whose message ends with what to write instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from testbed.core.user_text import LONGEST_SHOWN, expected, out_of_range, shown, unknown

__all__ = [
    "Unreadable",
    "format_delay",
    "format_duration",
    "format_length",
    "format_number",
    "format_percent",
    "format_probability",
    "format_rate",
    "format_size",
    "parse_choice",
    "parse_count",
    "parse_delay_s",
    "parse_duration_s",
    "parse_length_m",
    "parse_number",
    "parse_probability",
    "parse_rate_bps",
    "parse_size_bytes",
    "parse_step_s",
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
_COUNT: Final = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_PROBABILITY: Final = {"": 1.0, "%": 1e-2}

_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ%/]*)", re.ASCII)


class Unreadable(ValueError):
    """A value that cannot be used: ``message`` is the reason, ``fix`` what to write instead, ``str()`` both."""

    def __init__(self, message: str, fix: str = "") -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message}; {fix}" if fix else message)


def parse_choice(value: object, choices: Iterable[str], what: str = "value") -> str:
    """Return ``value`` if it is one of ``known``; ``what`` names it in the message.

    >>> parse_choice("west", ("east", "west"))
    'west'
    """
    names = tuple(choices)
    if not isinstance(value, str):
        raise Unreadable(*expected(f"a {what}", value, f"write one of {', '.join(names)}"))
    if value not in names:
        raise Unreadable(*unknown(what, value, names))
    return value


def _quantity(value: object, units: Mapping[str, float], natural: str, what: str, fix: str) -> float:
    """Convert ``value`` to SI: a finite number of any sign. ``what`` names the quantity, such as "a length".

    ``natural``: the unit of a bare number; empty where ``units`` has no unit of that name: only 0 may be bare then.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable(*expected(what, value, fix))
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value.strip()) if len(value) <= LONGEST_SHOWN else None
        if match is None:
            raise Unreadable(*expected(what, value, fix))
        number, unit = float(match[1]), match[2].replace("µ", "u").replace("μ", "u") or natural
        if unit and unit not in units:
            raise Unreadable(f"unknown unit '{unit}' in {shown(value)}", fix)
    else:
        try:
            number, unit = float(value), natural
        except OverflowError:
            number, unit = math.inf, natural
    if unit not in units:
        if number:
            raise Unreadable(*expected(f"{what} with its unit", value, fix))
        return 0.0
    if not math.isfinite(number * max(units[unit], 1.0)):
        raise Unreadable(*expected("a finite number", value, fix))
    factor = units[unit]
    # 200 / 1e6 is the float nearest to 0.0002 and 200 * 1e-6 is not: 1e-6 itself is rounded already.
    return number * factor if factor >= 1 else number / round(1 / factor)


def _within(si: float, value: object, low: float, high: float, low_text: str, high_text: str) -> float:
    if not low <= si <= high:
        raise Unreadable(*out_of_range(value, low_text, high_text))
    return si


def parse_length_m(value: object, *, natural: str = "km") -> float:
    """Return metres, 1 m to 40 000 km (once around the Earth); a bare number is in ``natural`` units.

    >>> parse_length_m("40 km"), parse_length_m(40), parse_length_m("500 m")
    (40000.0, 40000.0, 500.0)
    """
    si = _quantity(value, _LENGTH, natural, "a length", "write 40, 40 km or 500 m")
    return _within(si, value, 1.0, 4e7, "1 m", "40000 km")


def parse_delay_s(value: object, *, natural: str = "", most_s: float = 60.0) -> float:
    """Return seconds of latency, 0 to ``most_s``; a bare number is in ``natural`` units, or refused without one.

    >>> parse_delay_s("200us"), parse_delay_s("5 ms")
    (0.0002, 0.005)
    """
    si = _quantity(value, _DELAY, natural, "a time", "write 200us, 5 ms or 10 s")
    return _within(si, value, 0.0, most_s, "0", format_duration(most_s))


MOST_DURATION_S: Final = 7 * 24 * 3600.0
"""The longest duration or timeout: 7 days."""


def parse_duration_s(value: object, *, natural: str = "s") -> float:
    """Return seconds of a duration or timeout, 0 to 7 days; a bare number is in ``natural`` units."""
    return parse_delay_s(value, natural=natural, most_s=MOST_DURATION_S)


def parse_step_s(value: object) -> float:
    """Return seconds of a step or a part of it, 0 to 7 days; a bare number is refused.

    >>> parse_step_s("80ms")
    0.08
    """
    return parse_duration_s(value, natural="")


def parse_rate_bps(value: object, *, natural: str = "G") -> float:
    """Return bits per second, 1 b/s to 1000 Tb/s; a bare number is in ``natural`` units: 800 is 800 Gb/s.

    >>> parse_rate_bps("800G") == parse_rate_bps("800 Gb/s") == parse_rate_bps(800) == 8e11
    True
    """
    si = _quantity(value, _RATE, natural, "a rate in bits per second", "write 800G, 800 Gb/s or 100 Mb/s")
    return _within(si, value, 1.0, 1e15, "1 b/s", "1000 Tb/s")


def parse_size_bytes(value: object, *, natural: str = "B") -> int:
    """Return whole bytes, 0 to 1 TB; kB, MB, GB are powers of 1000 and KiB, MiB, GiB of 1024.

    >>> parse_size_bytes("1 MB"), parse_size_bytes("64 KiB")
    (1000000, 65536)
    """
    si = _quantity(value, _SIZE, natural, "a size", "write 1 MB, 64 KiB or 1500 B")
    return round(_within(si, value, 0.0, 1e12, "0 B", "1 TB"))


def parse_probability(value: object) -> float:
    """Return a probability in 0..1; a percentage is accepted, too.

    >>> parse_probability("0.1%"), parse_probability("1e-9")
    (0.001, 1e-09)
    """
    si = _quantity(value, _PROBABILITY, "", "a probability", "write 0 to 1 such as 1e-9, or a percentage such as 0.1%")
    return _within(si, value, 0.0, 1.0, "0", "1, or 0% to 100%")


def parse_count(value: object) -> float:
    """Return a number of parameters or tokens, 1 or more; B is a thousand million.

    >>> parse_count("150M"), parse_count("10B")
    (150000000.0, 10000000000.0)
    """
    si = _quantity(value, _COUNT, "", "a number", "write a number such as 150M or 10B")
    return _within(si, value, 1.0, 1e18, "1", "1e18")


def parse_number(value: object, *, low: float, high: float) -> float:
    """Return a plain number without a unit, ``low`` to ``high``, both included."""
    si = _quantity(value, {"": 1.0}, "", "a number", f"write a number from {low:g} to {high:g}")
    return _within(si, value, low, high, f"{low:g}", f"{high:g}")


def format_number(value: float, digits: int = 6) -> str:
    """Format with ``digits`` significant digits, more where a whole number needs them: ``0.38``, ``112``, never
    ``1.1e+02``. Beyond 1e15 and below 1e-4 an exponent is the shorter form."""
    written = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in written and abs(value) < 1e15 else written


def format_percent(share: float, digits: int = 2) -> str:
    """Format 0..1 (or beyond) as a percentage: ``0.33 %``, ``7.1 %``, ``112 %``."""
    return f"{format_number(100 * share, digits)} %"


def _format(si: float, units: Mapping[str, float], ladder: tuple[str, ...], digits: int = 6) -> str:
    """Format with the largest unit of ``ladder`` (ascending) that leaves at least 1 before the decimal point."""
    unit = ladder[0]
    for candidate in ladder:
        # The tolerance keeps 0.2 ms, computed as 0.00019999999999999998 s, from being printed in a smaller unit.
        if abs(si) >= units[candidate] * (1 - 1e-9):
            unit = candidate
    return f"{format_number(si / units[unit], digits)} {unit}"


def format_length(length_m: float, digits: int = 6) -> str:
    """Format a length: ``40 km``, ``500 m``."""
    return _format(length_m, _LENGTH, ("m", "km"), digits)


def format_delay(delay_s: float, digits: int = 6) -> str:
    """Format a latency: ``200 us``, ``1.5 ms``."""
    return "0 s" if delay_s == 0 else _format(delay_s, _DELAY, ("ns", "us", "ms", "s"), digits)


def format_duration(duration_s: float, digits: int = 6) -> str:
    """Format a duration: like :func:`format_delay`, with minutes and hours (``8 s``, ``2 min``)."""
    return "0 s" if duration_s == 0 else _format(duration_s, _DELAY, ("ns", "us", "ms", "s", "min", "h"), digits)


def format_rate(rate_bps: float, digits: int = 6) -> str:
    """Format a rate: ``800 Mb/s``; 0 is ``unlimited``, as in an impairment."""
    return "unlimited" if rate_bps == 0 else _format(rate_bps, _RATE, ("b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"), digits)


def format_size(size_bytes: float, digits: int = 6) -> str:
    """Format a size in powers of 1000: ``1.5 MB``."""
    return _format(size_bytes, _SIZE, ("B", "kB", "MB", "GB", "TB"), digits)


def format_probability(probability: float, digits: int = 6) -> str:
    """Format a probability: ``0.1%``; values below one in a million as ``1e-09``."""
    if probability and probability < 1e-6:
        return f"{probability:.{digits}g}"
    return f"{format_number(probability * 100, digits)}%"
