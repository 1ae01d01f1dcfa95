"""The log of the host's stalls, which the keeper keeps as long as a lab is up: recorded of a job, and looked at."""

from __future__ import annotations

import time
from typing import Final

from testbed.core.analysis.host_noise import NoiseSummary, StallLog
from testbed.core.records.stalls import Stall
from testbed.errors import LabError
from testbed.host.files.store import STALLS, RunDirectory
from testbed.keeper import client, protocol

__all__ = ["StallRecorder", "recent_noise"]

_NEWEST: Final = 1 << 62
"""More than the number of any stall: the answer has none, and the number of the next."""
_MOST: Final = 20_000
"""Stalls that are looked at of the last :data:`RECENT_S`."""
RECENT_S: Final = 60.0


class StallRecorder:
    """Appends stalls to the run directory of a job; without a stall log (no privilege) it gets no file.

    :attr:`stalls` are those recorded so far; :attr:`watching` is None until the keeper has answered.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._next = _NEWEST
        self.stalls: list[Stall] = []
        self.watching: bool | None = None

    def sample(self, keeper: client.Connection) -> None:
        """Append the stalls since the last call; the first call begins the log. Raises StorageError."""
        if self.watching is False:
            return
        try:
            answer = keeper.ask(protocol.Stalls(since=self._next))
        except LabError:  # a keeper that has ended is reported by whoever asks for its counters
            self.watching = bool(self.watching)
            return
        self._next = answer["next"]
        if self.watching is None:
            self.watching = answer["watching"]
            if self.watching:
                self._run.write_text(STALLS, "")
        for core, began_t, length_s in answer["stalls"]:
            stall = Stall(core, began_t, length_s)
            self._run.append(STALLS, stall.to_dict())
            self.stalls.append(stall)


def recent_noise(keeper: client.Connection) -> NoiseSummary | None:
    """Summarize the stalls of the last :data:`RECENT_S`; None without a stall log. Raises LabError."""
    newest = keeper.ask(protocol.Stalls(since=_NEWEST))
    if not newest["watching"]:
        return None
    answer = keeper.ask(protocol.Stalls(since=max(0, newest["next"] - _MOST)))
    now = time.monotonic()
    stalls = tuple(Stall(*stall) for stall in answer["stalls"])
    return StallLog(stalls, (), True).summary(now - RECENT_S, now)
