"""Split the output of a program into lines as it is read, each with the time at which its last byte was.

A carriage return ends a line too: progress bars draw each state over the one before. Many write it *before* the text
(tqdm), so a bar's last state has no end until the next one is drawn; :meth:`OutputLines.quiet` offers it meanwhile.
"""

from __future__ import annotations

import re
from typing import Final

from testbed.core.workload.progress_lines import LONGEST

__all__ = ["OutputLines"]

_END: Final = re.compile(rb"[\r\n]")
_MOST_BYTES: Final = 16 * LONGEST
"""Bytes kept of a line: LONGEST characters of up to four bytes, and as many of colours. The rest is skipped."""


class OutputLines:
    """The lines of one stream of one process. Memory and time per byte are bounded, whatever is printed."""

    def __init__(self) -> None:
        self._rest = b""
        self._rest_t = 0.0
        self._drawn = False
        """Whether the line that has begun follows a carriage return."""
        self._offered = False

    def feed(self, t: float, data: bytes) -> list[tuple[float, str]]:
        """Return (time, text) of the lines that ``data``, read at ``t``, ends; empty ones are left out."""
        if not data:
            return []
        pieces = _END.split(data)
        if len(pieces) == 1:
            self._keep(t, pieces[0])
            return []
        self._keep(t, pieces[0])
        lines = self._take()
        lines += [(t, _text(piece)) for piece in pieces[1:-1] if piece]
        self._drawn = data[len(data) - len(pieces[-1]) - 1] == 0x0D
        self._keep(t, pieces[-1])
        return lines

    def quiet(self) -> list[tuple[float, str]]:
        """Return the state of a bar that has been drawn and not ended, if it was not returned before.

        To be called when nothing was read for a moment; if the line goes on after all, it is returned again as a whole.
        """
        if not self._drawn or self._offered or not self._rest:
            return []
        self._offered = True
        return [(self._rest_t, _text(self._rest))]

    def end(self) -> list[tuple[float, str]]:
        """Return the last line, which has no end."""
        return self._take()

    def _keep(self, t: float, piece: bytes) -> None:
        if not piece:
            return
        if len(self._rest) < _MOST_BYTES:
            self._rest += piece[: _MOST_BYTES - len(self._rest)]
        self._rest_t, self._offered = t, False

    def _take(self) -> list[tuple[float, str]]:
        line, self._rest = self._rest, b""
        again, self._offered = self._offered, False
        return [(self._rest_t, _text(line))] if line and not again else []


def _text(line: bytes) -> str:
    return line[:_MOST_BYTES].decode(errors="replace")
