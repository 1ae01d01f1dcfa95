"""A loop over events: processes that sleep and wait for signals."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator


class Signal:
    """Fires once, then what waits for it goes on."""

    def __init__(self, fired: bool = False) -> None:
        self.fired = fired
        self.callbacks: list[Callable[[], None]] = []

    def fire(self) -> None:
        if self.fired:
            return
        self.fired = True
        for callback in self.callbacks:
            callback()

    def then(self, callback: Callable[[], None]) -> None:
        if self.fired:
            callback()
        else:
            self.callbacks.append(callback)


Process = Generator["float | Signal", None, None]
"""Yields seconds to sleep, or a signal to wait for."""


class Clock:
    """Calls what is due in the order of time, then of its request."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()

    def at(self, time_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self.due, (time_s, next(self.numbers), callback))

    def start(self, process: Process) -> Signal:
        """Run a process; the signal fires at its end."""
        ended = Signal()

        def go_on() -> None:
            for wait in process:
                if isinstance(wait, Signal):
                    if wait.fired:
                        continue
                    wait.then(go_on)
                else:
                    self.at(self.now + wait, go_on)
                return
            ended.fire()

        go_on()
        return ended

    def run_until(self, is_done: Callable[[], bool]) -> None:
        while self.due and not is_done():
            self.now, _, callback = heapq.heappop(self.due)
            callback()
