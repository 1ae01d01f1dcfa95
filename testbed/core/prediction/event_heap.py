"""A discrete-event simulation on one heap: processes, signals, and a lane that sends first in, first out. Pure.

A process is a generator. It yields seconds to pass, or a :class:`Signal` to wait for. Events of one time run in the
order in which they were scheduled, so a simulation is deterministic.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

__all__ = ["Lane", "Process", "Signal", "Simulation", "Slots", "Transfer"]


class Signal:
    """Something that happens once: processes wait for it, and go on when it fires."""

    __slots__ = ("at_s", "waiting")

    def __init__(self) -> None:
        self.at_s: float | None = None
        """When it fired; None before."""
        self.waiting: list[Callable[[], None]] = []


Process = Generator[float | Signal, None, None]


class Simulation:
    """A clock and a heap of events."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Call ``action`` at ``time_s``, which is now or later."""
        heapq.heappush(self._heap, (time_s, next(self._order), action))

    def fire(self, signal: Signal) -> None:
        """Let ``signal`` happen now."""
        signal.at_s = self.now_s
        for go_on in signal.waiting:
            go_on()
        signal.waiting.clear()

    def start(self, process: Process) -> None:
        """Run ``process`` from now on."""

        def go_on() -> None:
            for wanted in process:
                if isinstance(wanted, Signal):
                    if wanted.at_s is None:
                        wanted.waiting.append(go_on)
                        return
                elif wanted > 0:
                    self.at(self.now_s + wanted, go_on)
                    return

        go_on()

    def run(self) -> float:
        """Run until nothing is left to happen; return the time of the last event in seconds."""
        while self._heap:
            self.now_s, _, action = heapq.heappop(self._heap)
            action()
        return self.now_s


class Slots:
    """A number of slots that operations take in the order in which they ask; None for any number."""

    def __init__(self, number: int | None) -> None:
        self._free = number
        self._queue: deque[Callable[[], None]] = deque()

    def take(self, then: Callable[[], None]) -> None:
        """Call ``then`` as soon as a slot is free, which it then holds."""
        if self._free is None:
            then()
        elif self._free > 0:
            self._free -= 1
            then()
        else:
            self._queue.append(then)

    def give_back(self) -> None:
        """Free one slot."""
        if self._queue:
            self._queue.popleft()()
        elif self._free is not None:
            self._free += 1


@dataclass
class Transfer:
    """One operation on a lane, with the times at which it went on.

    Attributes:
        software_s, serial_s, propagation_s: how long the library works, the lane sends, the last bit travels.
        ready_s: all participants have the data; started_s: it has a slot; sent_from_s, sent_s: the lane sends it.
    """

    software_s: float
    serial_s: float
    propagation_s: float
    arrived: Signal = field(default_factory=Signal)
    ready_s: float = 0.0
    started_s: float = 0.0
    sent_from_s: float = 0.0
    sent_s: float = 0.0


class Lane:
    """One direction of a cut: operations hold a slot of the library, then send one after the other, then propagate."""

    def __init__(self, simulation: Simulation, in_flight: int | None = None) -> None:
        self._simulation = simulation
        self._slots = Slots(in_flight)
        self._free_s = 0.0

    def send(self, transfer: Transfer) -> None:
        """Begin ``transfer``, whose data is ready now; ``transfer.arrived`` fires when the last bit has arrived."""
        transfer.ready_s = self._simulation.now_s
        self._slots.take(lambda: self._start(transfer))

    def _start(self, transfer: Transfer) -> None:
        simulation = self._simulation
        transfer.started_s = simulation.now_s
        transfer.sent_from_s = max(transfer.started_s + transfer.software_s, self._free_s)
        transfer.sent_s = self._free_s = transfer.sent_from_s + transfer.serial_s

        def arrive() -> None:
            self._slots.give_back()
            simulation.fire(transfer.arrived)

        simulation.at(transfer.sent_s + transfer.propagation_s, arrive)
