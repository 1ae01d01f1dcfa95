"""End a command whose client is gone: which signals it gets, and how long after each other.

A command that undoes what it began has time for that. A user's program has nothing that the testbed would undo, and is
gone after 5 s, even if it ignores signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from testbed.host.linux import process

__all__ = ["Escalation"]

_Order: TypeAlias = Sequence[tuple[float, signal.Signals]]
"""Signals, and the seconds from the first of them to each."""

_UNDOES: Final[_Order] = ((0.0, signal.SIGINT), (20.0, signal.SIGTERM), (30.0, signal.SIGKILL))

_ENDS_RANKS: Final[_Order] = ((0.0, signal.SIGINT), (2.0, signal.SIGINT), (3.0, signal.SIGINT), *_UNDOES[1:])
"""Each further SIGINT is the next signal for a program's ranks, as each further Ctrl-C. The command itself writes the
report, and ``run`` takes its lab down."""

_BY_VERB: Final[Mapping[str, _Order]] = {
    "exec": ((0.0, signal.SIGINT), (2.0, signal.SIGTERM), (3.0, signal.SIGKILL)),
    "launch": _ENDS_RANKS,
    "run": _ENDS_RANKS,
}


class Escalation:
    """The end of the command whose process leads process group and session ``leader``; it begins with :meth:`go_on`."""

    def __init__(self, leader: int, verb: str) -> None:
        self._leader = leader
        self._left = list(_BY_VERB.get(verb, _UNDOES))
        self._begun_t: float | None = None

    def go_on(self) -> None:
        """Send the signals that are due."""
        now = time.monotonic()
        self._begun_t = self._begun_t or now
        while self._left and now >= self._begun_t + self._left[0][0]:
            _, number = self._left.pop(0)
            _signal_group(self._leader, number)
            if number == signal.SIGKILL:
                # A program without a terminal, and a shell's jobs, have process groups of their own.
                process.kill_session(self._leader)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
