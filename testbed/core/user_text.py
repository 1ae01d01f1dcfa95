"""Format user-supplied values and names for messages: short, printable, with the closest valid alternative.

Every message about a user's value uses one of three forms, each with a hint on what to write instead:
:func:`unknown`, :func:`expected`, :func:`out_of_range`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from testbed.errors import UnknownName

__all__ = ["LONGEST_SHOWN", "expected", "out_of_range", "printable", "shown", "unknown"]

LONGEST_SHOWN: Final = 64


def printable(text: str) -> str:
    """Escape what a terminal would not show, or obey: control characters, line ends and the like."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shown(value: object) -> str:
    """Format a user's value to fit one terminal line: strings quoted, control characters escaped."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**20):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, int):
        return "a very large number"
    text = value if isinstance(value, str) else repr(value).replace("'", "")
    text = printable(text[: LONGEST_SHOWN + 1])
    if len(text) > LONGEST_SHOWN:
        text = text[: LONGEST_SHOWN - 1] + "…"
    return f"'{text}'" if isinstance(value, str) else text


def unknown(what: str, name: str, available: Iterable[str]) -> tuple[str, str]:
    """Return (message, fix) for a name that does not exist: the words of :class:`~testbed.errors.UnknownName`.

    >>> unknown("link", "nroth", ["north", "south"])
    ("unknown link 'nroth'", 'did you mean north?')
    >>> unknown("link", "x", ["north", "south"])
    ("unknown link 'x' (available: north, south)", '')
    """
    error = UnknownName(what, name, available)
    return (str(error).partition("; did you mean ")[0], error.hint) if error.close else (str(error), "")


def expected(what: str, value: object, fix: str) -> tuple[str, str]:
    """Return (message, fix) for a value of the wrong kind; None means that the value is missing.

    >>> expected("a length", "forty", "write 40 km or 500 m")
    ("expected a length, got 'forty'", 'write 40 km or 500 m')
    """
    return f"expected {what}, got {'no value' if value is None else shown(value)}", fix


def out_of_range(value: object, low: str, high: str) -> tuple[str, str]:
    """Return (message, fix) for a value outside ``low`` to ``high``, both included.

    >>> out_of_range(0, "1 m", "40000 km")
    ('0 is out of range', 'expected 1 m to 40000 km')
    """
    return f"{shown(value)} is out of range", f"expected {low} to {high}"
