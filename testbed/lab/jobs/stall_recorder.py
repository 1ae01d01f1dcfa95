"""Append the host's stalls, which the keeper logs as long as a lab is up, to the run directory of a job."""

from __future__ import annotations

import time

from testbed.core.records.stalls import Stall
from testbed.errors import LabError
from testbed.host.files.store import STALLS, RunDirectory
from testbed.keeper import client, protocol

__all__ = ["StallRecorder"]


class StallRecorder:
    """Without a stall log (no privilege, or a keeper of an earlier version) the run directory gets no file.

    :attr:`stalls` are those recorded so far; :attr:`watching` is None until the keeper has answered.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._began_t = time.monotonic()
        self._next = 0
        self.stalls: list[Stall] = []
        self.watching: bool | None = None

    def sample(self, keeper: client.Connection) -> None:
        """Append the stalls since the last call, those since the job began. Raises StorageError."""
        if self.watching is False:
            return
        try:
            answer = keeper.ask(protocol.Stalls(since=self._next))
        except LabError:  # a keeper that has ended is reported by whoever asks for its counters
            self.watching = bool(self.watching)
            return
        if self.watching is None:
            self.watching = answer["watching"]
            if self.watching:
                self._run.write_text(STALLS, "")
        self._next = answer["next"]
        for core, began_t, length_s in answer["stalls"]:
            stall = Stall(int(core), began_t, length_s)
            if self.watching and stall.ended_t > self._began_t:
                self._run.append(STALLS, stall.to_dict())
                self.stalls.append(stall)
