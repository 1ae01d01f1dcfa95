"""The same lab at full scale: what a rate in the lab stands for. Distance and latency are never scaled.

Every rate that a reader meets is followed by its meaning at full scale, in the words of this module; at scale 1 a rate
stands for itself, and nothing is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from testbed.core.units import format_rate, parse_rate_bps

__all__ = ["MOST_RATES", "at_full_scale", "full_rate_bps", "in_text", "of_program", "sentence", "stands_for", "written"]

MOST_RATES = 3
"""A sentence names at most this many rates; a lab of more has them in its tables."""
_DIGITS = 4
_RATE: Final = re.compile(r"(?<!for )(?<![\w.+-])([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)? [kMGT]?b/s)(?! (?:for|stands) )")
"""A rate in a text that the testbed wrote, unless the text says already what it stands for."""


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


def sentence(rates_bps: Iterable[float], scale: float, shown: Callable[[float], str] | None = None) -> str:
    """Return a sentence on a lab's rates at full scale, each once; empty where there is nothing to say.

    ``shown`` formats a rate; without it, as bits per second.

    >>> sentence([8e8, 8e8, 4e8], 1000)
    'Scale 1000: 800 Mb/s stands for 800 Gb/s, 400 Mb/s for 400 Gb/s; distance and latency are not scaled.'
    """
    rates = [rate for rate in dict.fromkeys(rates_bps) if at_full_scale(rate, scale)]
    if not rates:
        return ""
    show = shown or (lambda rate: format_rate(rate, _DIGITS))
    pairs = [(show(rate), show(full_rate_bps(rate, scale))) for rate in rates[:MOST_RATES]]
    rates_text = ", ".join(
        f"{here} {'for' if index else 'stands for'} {full}" for index, (here, full) in enumerate(pairs)
    )
    rates_text += ", and so on" if len(rates) > MOST_RATES else ""
    return f"Scale {scale:g}: {rates_text}; distance and latency are not scaled."


def of_program(scale: float) -> str:
    """Return a sentence on what a lab's scale means for a program whose bytes are its own; empty at scale 1."""
    if scale == 1:
        return ""
    return (
        f"links run at 1/{scale:g} of their real rate, but your program's bytes are not scaled: "
        f"a transfer takes {scale:g} times as long as on the real fiber; latency is real"
    )


def in_text(text: str, scale: float) -> str:
    """Return ``text``, a sentence or a value of the testbed's own, with what each rate in it stands for.

    >>> in_text("f2 rate 80 Mb/s", 1000), in_text("f2 loss 1.2%", 1000)
    ('f2 rate 80 Mb/s for 80 Gb/s', 'f2 loss 1.2%')
    """
    if scale == 1:
        return text
    return _RATE.sub(lambda match: stands_for(parse_rate_bps(match[1]), scale, 6), text)


def written(rate_bps: float, scale: float) -> str:
    """Return a rate as a topology file has it, which is at full scale, and what it is in the lab.

    >>> written(8e8, 1000), written(8e8, 1)
    ('800 Gb/s, here 800 Mb/s', '800 Mb/s')
    """
    full = at_full_scale(rate_bps, scale, 6)
    return f"{full}, here {format_rate(rate_bps)}" if full else format_rate(rate_bps)
