"""A discrete-event simulation on one heap: processes, signals, and fibers with a lane for each direction. Pure.

A process is a generator. It yields seconds to pass, or a :class:`Signal` to wait for. Events of one time run in the
order in which they were scheduled, so a simulation is deterministic.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

__all__ = ["BACK", "MOST_EVENTS", "OUT", "Fiber", "Process", "Signal", "Simulation", "Slots", "TooMany", "Transfer"]

MOST_EVENTS = 25_000
"""Operations of one simulation, whose number depends on how long a cycle is; as many take half a second."""

OUT, BACK = 0, 1
"""The two directions of a fiber."""


class TooMany(Exception):
    """A simulation would have too many events; the message says of what, and how many are simulated at most."""


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
    """One operation on a fiber, with the times at which it went on.

    Attributes:
        software_s, propagation_s: how long the library works, the last bit travels.
        serial_s: how long each direction sends, :data:`OUT` and :data:`BACK`; 0 in a direction that it does not use.
        ready_s: all participants have the data; started_s: it has a slot; sent_s: the lanes have sent it.
    """

    software_s: float
    serial_s: tuple[float, float]
    propagation_s: float
    arrived: Signal = field(default_factory=Signal)
    ready_s: float = 0.0
    started_s: float = 0.0
    sent_s: float = 0.0


class Fiber:
    """A cut with one lane for each direction: operations hold a slot of the library, then send, then propagate.

    A lane sends first in, first out. What goes both ways has arrived when both directions have.
    """

    def __init__(self, simulation: Simulation, slots: Slots) -> None:
        self._simulation = simulation
        self._slots = slots
        self._free_s = [0.0, 0.0]

    def send(self, transfer: Transfer) -> None:
        """Begin ``transfer``, whose data is ready now; ``transfer.arrived`` fires when the last bit has arrived."""
        transfer.ready_s = self._simulation.now_s
        self._slots.take(lambda: self._start(transfer))

    def _start(self, transfer: Transfer) -> None:
        simulation, free_s = self._simulation, self._free_s
        transfer.started_s = simulation.now_s
        begin_s = transfer.started_s + transfer.software_s
        transfer.sent_s = begin_s
        for direction, serial_s in enumerate(transfer.serial_s):
            if serial_s:
                free_s[direction] = max(begin_s, free_s[direction]) + serial_s
                transfer.sent_s = max(transfer.sent_s, free_s[direction])

        def arrive() -> None:
            self._slots.give_back()
            simulation.fire(transfer.arrived)

        simulation.at(transfer.sent_s + transfer.propagation_s, arrive)
