"""Record the host's stalls during a job; the keeper logs them as long as a lab is up."""

from __future__ import annotations

from collections import deque
from typing import Final

from testbed.core.records.stalls import Stall
from testbed.errors import LabError
from testbed.host.files.store import STALLS, RunDirectory
from testbed.keeper import client, protocol

__all__ = ["StallRecorder"]

MOST_KEPT: Final = 200_000
"""Stalls kept in memory, as many as the keeper's; the file has all."""


class StallRecorder:
    """Appends stalls to the run directory of a job; without a stall log (no privilege) it creates no file.

    :attr:`stalls` are the latest of those recorded so far; :attr:`watching` is None until the keeper has answered.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._next = protocol.NEWEST_STALL
        self.stalls: deque[Stall] = deque(maxlen=MOST_KEPT)
        self.watching: bool | None = None

    def sample(self, connection: client.Connection) -> None:
        """Append the stalls since the last call; the first call begins the log. Raises StorageError."""
        if self.watching is False:
            return
        try:
            answer = connection.keeper.stalls(since=self._next)
        except LabError:  # the request for counters reports a keeper that has ended
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
