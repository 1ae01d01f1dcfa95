"""How a user's own values and names appear in messages: short, printable, and with the nearest that would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

__all__ = ["LONGEST_SHOWN", "nearest", "shown"]

LONGEST_SHOWN: Final = 64


def shown(value: object) -> str:
    """A user's value, short enough for a line of a terminal; text is quoted, control characters are escaped."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**20):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, int):
        return "a very large number"
    text = value if isinstance(value, str) else repr(value).replace("'", "")
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: LONGEST_SHOWN + 1])
    if len(text) > LONGEST_SHOWN:
        text = text[: LONGEST_SHOWN - 1] + "…"
    return f"'{text}'" if isinstance(value, str) else text


def nearest(name: str, known: Iterable[str]) -> str:
    """``did you mean north?``, else what there is; for the end of a finding."""
    names = [name for name in known if name.isprintable() and len(name) <= 64]  # some come from the file itself
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in names], n=1, cutoff=0.6)
    if near:
        return f"did you mean {next(known for known in names if known.lower() == near[0])}?"
    return "there is " + ", ".join(names[:16]) + (", …" if len(names) > 16 else "") if names else "there is none"
