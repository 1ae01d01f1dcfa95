"""The reference library with deliberate defects: a validation must catch each of them.

Each class is one mistake that libraries have made. Run as a program (``python -m testbed_agents.adapters.broken HOW``)
each behaves as the correct library until its mistake shows.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

from testbed_agents.adapters.elements import Array, split
from testbed_agents.adapters.helper import Call, World, main
from testbed_agents.adapters.mesh import MeshError, Part
from testbed_agents.adapters.ring import Ring, divide

LATE = 2.0
"""``late-error``: multiple of its timeout. Much more would count as a hang."""

NEVER_S = 1e6
BYPASS_POLL_S = 50e-6


class WrongSum(Ring):
    """The last rank does not reduce the first element of what it receives."""

    def combine(self, call: Call, into: Array, received: Array) -> None:
        skipped = into[:1].copy()
        super().combine(call, into, received)
        if call.rank == call.size - 1:
            into[:1] = skipped


class LostByte(Ring):
    """Rank 0 loses the byte in the middle of each message; the bytes after it move up."""

    def exchange(self, call: Call, sent: Part | None, awaited: Part | None) -> None:
        if sent and sent.data.nbytes and call.rank == 0:
            whole = bytes(sent.data)
            middle = len(whole) // 2
            sent = Part(sent.rank, sent.step, memoryview(whole[:middle] + whole[middle + 1 :] + b"\0"))
        super().exchange(call, sent, awaited)


class Stale(Ring):
    """A call begins with what the previous call left in the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self._before = np.empty(0, np.uint8)

    def perform(self, call: Call, given: Array, room: Array) -> Array | None:
        fresh = given.view(np.uint8)
        before, self._before = self._before, fresh.copy()
        size = min(before.size, fresh.size)
        fresh[:size] = before[:size]
        return super().perform(call, given, room)


class Swapped(Ring):
    """Rank 0 swaps the first and the last rank's block."""

    def all_gather(self, call: Call, given: Array, room: Array) -> Array:
        return self._swap(call, super().all_gather(call, given, room))

    def all_to_all(self, call: Call, given: Array, room: Array) -> Array:
        return self._swap(call, super().all_to_all(call, given, room))

    @staticmethod
    def _swap(call: Call, room: Array) -> Array:
        if call.rank == 0:
            blocks = split(room, call.size)
            first = blocks[0].copy()
            blocks[0][:] = blocks[-1]
            blocks[-1][:] = first
        return room


class DifferentBits(Ring):
    """Each rank adds in its own order: right within the bound, but different bits with three ranks or more."""

    def all_reduce(self, call: Call, given: Array, room: Array) -> Array:
        gathered = np.empty(call.size * call.count, given.dtype)
        blocks = split(self.all_gather(call, given, gathered), call.size)
        room[:] = blocks[call.rank]
        for offset in range(1, call.size):
            self.combine(call, room, blocks[(call.rank + offset) % call.size])
        if call.reduction == "avg":
            divide(call, room)
        return room


class NoBarrier(Ring):
    """A barrier that does not wait."""

    def barrier(self, call: Call) -> None:
        return None


class Hang(Ring):
    """An all_reduce of an odd number of elements above 1 never returns."""

    def all_reduce(self, call: Call, given: Array, room: Array) -> Array:
        while call.count > 1 and call.count % 2:
            time.sleep(NEVER_S)
        return super().all_reduce(call, given, room)


class NoTimeout(Ring):
    """Waits forever: a hang as soon as the fiber is cut."""

    def join(self, world: World) -> None:
        super().join(world)
        self.timeout_s = NEVER_S


class LateError(Ring):
    """Waits longer than its timeout."""

    def join(self, world: World) -> None:
        super().join(world)
        self.timeout_s *= LATE


class SwallowedError(Ring):
    """Treats an error as success: the answer is whatever the buffer holds."""

    def perform(self, call: Call, given: Array, room: Array) -> Array | None:
        try:
            return super().perform(call, given, room)
        except MeshError:
            return room


class Crash(Ring):
    """Aborts the process on an error."""

    def perform(self, call: Call, given: Array, room: Array) -> Array | None:
        try:
            return super().perform(call, given, room)
        except MeshError:
            os.abort()


class NoRebuild(Ring):
    """Offers rebuilds, but a second join fails."""

    def join(self, world: World) -> None:
        if world.attempt > 1:
            raise MeshError("the communicator was built already")
        super().join(world)


class Bypass(Ring):
    """Bypasses the fiber: ranks exchange files in the folder that they share."""

    def exchange(self, call: Call, sent: Part | None, awaited: Part | None) -> None:
        own = call.ranks[call.rank]
        folder = Path(os.environ["TESTBED_FOLDER"])
        if sent:
            unfinished = folder / f"bypass-{own}.unfinished"
            unfinished.write_bytes(sent.data)
            unfinished.rename(folder / f"bypass-{call.number}-{sent.step}-{own}-{sent.rank}")
        if awaited:
            path = folder / f"bypass-{call.number}-{awaited.step}-{awaited.rank}-{own}"
            deadline = time.monotonic() + self.timeout_s
            while not path.exists():
                if time.monotonic() > deadline:
                    raise MeshError(f"no file from rank {awaited.rank} within the timeout")
                time.sleep(BYPASS_POLL_S)
            awaited.data[:] = path.read_bytes()
            path.unlink()


BROKEN: dict[str, type[Ring]] = {
    "wrong-sum": WrongSum,
    "lost-byte": LostByte,
    "stale": Stale,
    "swapped": Swapped,
    "different-bits": DifferentBits,
    "no-barrier": NoBarrier,
    "hang": Hang,
    "no-timeout": NoTimeout,
    "late-error": LateError,
    "swallowed-error": SwallowedError,
    "crash": Crash,
    "no-rebuild": NoRebuild,
    "bypass": Bypass,
}
"""Broken libraries by the name of their defect."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="the reference library's rank program with a deliberate defect")
    parser.add_argument("mistake", choices=sorted(BROKEN), help="the defect")
    main(BROKEN[parser.parse_args().mistake]())
