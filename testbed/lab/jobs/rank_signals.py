"""End the processes of a program's ranks: SIGINT, SIGTERM, SIGKILL, each to the whole process group of each rank."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

from testbed.host import runner

__all__ = ["GRACE_S", "INTERRUPT_GRACE_S", "RankSignals"]

GRACE_S: Final = 5.0
"""How long ranks may take to end after SIGTERM."""

INTERRUPT_GRACE_S: Final = 30.0
"""How long ranks may take to end after SIGINT, on which programs save their state."""

_KILLED_S: Final = 10.0
_LOOK_S: Final = 0.02
_ORDER: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class RankSignals:
    """The signals for a job's ranks: any thread may ask for one, and the job's thread sends it.

    ``children`` are the processes by rank; those of ``watched`` run in containers, under a watchdog that takes signals
    as frames on its stdin.
    """

    def __init__(self) -> None:
        self.children: dict[int, subprocess.Popen[bytes]] = {}
        self.watched: set[int] = set()
        self.wanted = threading.Event()
        """Set once the ranks are to end."""
        self._stage = -1
        """The latest stage that was asked for, an index of the order."""
        self._patience_s = {signal.SIGINT: INTERRUPT_GRACE_S, signal.SIGTERM: GRACE_S, signal.SIGKILL: _KILLED_S}

    def ask(self, number: signal.Signals, patience_s: float | None = None) -> None:
        """Have the ranks ended, from this signal of the order on, or from a later one that was asked for already.

        Safe in a signal's handler. ``patience_s``: how long they may take after it.
        """
        if patience_s is not None:
            self._patience_s[number] = patience_s
        self._stage = max(self._stage, _ORDER.index(number))
        self.wanted.set()

    def next(self) -> signal.Signals:
        """Ask for the next signal of the order, as another Ctrl-C does; return it."""
        number = _ORDER[min(self._stage + 1, len(_ORDER) - 1)]
        self.ask(number)
        return number

    def end(self) -> None:
        """Send signals until all ranks have ended, from SIGTERM on unless another was asked for; reap them."""
        stage = self._stage if self._stage >= 0 else _ORDER.index(signal.SIGTERM)
        while alive := self._alive():
            self._send(alive, _ORDER[stage])
            until = time.monotonic() + self._patience_s[_ORDER[stage]]
            while self._alive() and time.monotonic() < until and self._stage <= stage:
                time.sleep(_LOOK_S)
            if stage == len(_ORDER) - 1:
                return
            stage = max(stage + 1, self._stage)

    def _alive(self) -> Mapping[int, subprocess.Popen[bytes]]:
        return {rank: child for rank, child in self.children.items() if child.poll() is None}

    def _send(self, alive: Mapping[int, subprocess.Popen[bytes]], number: signal.Signals) -> None:
        self._frames([child for rank, child in alive.items() if rank in self.watched], number)
        for rank, child in alive.items():
            if rank not in self.watched:
                _kill_group(child, number)

    def _frames(self, children: Collection[subprocess.Popen[bytes]], number: signal.Signals) -> None:
        for child in children:
            with contextlib.suppress(OSError, ValueError):
                assert child.stdin is not None
                os.write(child.stdin.fileno(), runner.signal_frame(number))
        if number == signal.SIGKILL:  # a watchdog that does not answer ends with its command
            until = time.monotonic() + 1.0
            for child in children:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, until - time.monotonic()))
                _kill_group(child, number)


def _kill_group(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
