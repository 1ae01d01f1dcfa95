"""Numbers for a reader: three digits with a unit; an en dash for an unknown value."""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

__all__ = [
    "UNKNOWN",
    "bits_per_s",
    "count",
    "duration",
    "goodput_means",
    "listed",
    "loss",
    "microseconds",
    "moment",
    "plural",
    "share",
    "size",
    "small_share",
    "upper_first",
]

UNKNOWN = "–"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    """Format ``value`` in the largest unit of ``steps`` that it reaches, to three digits, without an exponent."""
    factor, unit = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    scaled = value / factor
    digits = max(0, 2 - math.floor(math.log10(abs(scaled)))) if scaled else 0
    written = f"{scaled:.{min(digits, 3)}f}"
    return f"{written.rstrip('0').rstrip('.') if '.' in written else written} {unit}"


def duration(seconds: float | None) -> str:
    """``195 us``, ``1.3 ms``, ``72.4 s``, ``12 min``."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds == 0:
        return "0 s"
    if abs(seconds) >= 600:
        return f"{seconds / 60:.0f} min"
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")))


def microseconds(seconds: float | None) -> str:
    """Format always in us, so that a column can be compared; the caller writes ``> last bound``."""
    return UNKNOWN if seconds is None or not math.isfinite(seconds) else f"{seconds * 1e6:.1f}"


def moment(unix_s: float | None) -> str:
    """``2026-11-21 05:40 UTC``; empty if unknown."""
    try:
        return "" if unix_s is None else datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%F %H:%M UTC")
    except (OverflowError, OSError, ValueError):
        return ""


def share(value: float | None) -> str:
    """0..1 as a percentage with one decimal."""
    return UNKNOWN if value is None else f"{value * 100:.1f} %"


def small_share(value: float | None) -> str:
    """A share of which 0 and nearly 0 differ: ``0 %``, ``< 0.1 %``, ``12.3 %``."""
    if value is None:
        return UNKNOWN
    return "0 %" if value <= 0 else "< 0.1 %" if value < 0.0005 else share(value)


def loss(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def bits_per_s(value: float | None) -> str:
    return UNKNOWN if value is None else _scaled(value, ((1e9, "Gb/s"), (1e6, "Mb/s"), (1e3, "kb/s"), (1.0, "b/s")))


def count(value: float | None) -> str:
    """A whole number with thin spaces between thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", "\u202f")


def size(value: float | None) -> str:
    """Bytes: ``3.8 kB``, ``4.19 MB``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return _scaled(value, ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))) if value else "0 B"


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def goodput_means(goodput: float | None) -> str:
    """Return what goodput means; beyond 1, as run.json of an earlier version may have it, why that could happen."""
    if goodput is None or goodput <= 1:
        return "(productive + fault-free exposed) ÷ all rank-seconds"
    return (
        "over 100 %: nothing was lost, to within the noise of step times; the fault-free pace comes from the steps"
        " outside the faults, which happened to be the slower ones"
    )


def upper_first(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
