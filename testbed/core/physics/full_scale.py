"""The same lab at full scale: what a rate in the lab stands for. Distance and latency are never scaled.

Every rate that a reader meets is followed by its meaning at full scale, in the words of this module; at scale 1 a rate
stands for itself, and nothing is added.
"""

from __future__ import annotations

from collections.abc import Iterable

from testbed.core.units import format_rate

__all__ = ["MOST_RATES", "at_full_scale", "full_rate_bps", "sentence", "stands_for"]

MOST_RATES = 3
"""A sentence names at most this many rates; a lab of more has them in its tables."""
_DIGITS = 4


def full_rate_bps(rate_bps: float, scale: float) -> float:
    """Return the rate in bits per second that ``rate_bps`` in a lab of this ``scale`` stands for; 0 is unlimited.

    >>> full_rate_bps(8e8, 1000)
    800000000000.0
    """
    return rate_bps * scale


def at_full_scale(rate_bps: float | None, scale: float, digits: int = _DIGITS) -> str:
    """Return ``rate_bps`` at full scale in words; empty at scale 1, for an unlimited rate, and for an unknown one.

    >>> at_full_scale(8e8, 1000), at_full_scale(8e8, 1)
    ('800 Gb/s', '')
    """
    if not rate_bps or scale == 1:
        return ""
    return format_rate(full_rate_bps(rate_bps, scale), digits)


def stands_for(rate_bps: float | None, scale: float, digits: int = _DIGITS) -> str:
    """Return ``rate_bps`` and what it stands for, in a cell's few words; the rate alone where that says it all.

    >>> stands_for(8e8, 1000), stands_for(8e8, 1)
    ('800 Mb/s for 800 Gb/s', '800 Mb/s')
    """
    if rate_bps is None:
        return "-"
    full = at_full_scale(rate_bps, scale, digits)
    return f"{format_rate(rate_bps, digits)} for {full}" if full else format_rate(rate_bps, digits)


def sentence(rates_bps: Iterable[float], scale: float) -> str:
    """Return a sentence on a lab's rates at full scale, each once; empty where there is nothing to say.

    >>> sentence([8e8, 8e8, 4e8], 1000)
    'Scale 1000: 800 Mb/s stands for 800 Gb/s, 400 Mb/s for 400 Gb/s; distance and latency are not scaled.'
    """
    rates = [rate for rate in dict.fromkeys(rates_bps) if at_full_scale(rate, scale)]
    if not rates:
        return ""
    first, *more = rates[:MOST_RATES]
    told = f"{format_rate(first, _DIGITS)} stands for {at_full_scale(first, scale)}"
    told += "".join(f", {stands_for(rate, scale)}" for rate in more)
    told += ", and so on" if len(rates) > MOST_RATES else ""
    return f"Scale {scale:g}: {told}; distance and latency are not scaled."
