"""The reference library: rings over plain TCP, written for tests. It aims to be right and easy to read, then fast.

all_reduce is the ring of Patarasuk and Yuan (Bandwidth optimal all-reduce algorithms for clusters of workstations,
2009): with P ranks, 2(P−1)n/P bytes leave each of them. An operation fails when nothing has moved for the timeout: a
slow fiber is no error, one that is down is. ``broken`` adds deliberate defects, to test the judge.
"""

from __future__ import annotations

import time

import numpy as np

from testbed_agents.adapters.elements import Array, narrow, shares, split, widen
from testbed_agents.adapters.helper import Adapter, Call, World, everything, main
from testbed_agents.adapters.mesh import Mesh, MeshError, Part

SEGMENT_BYTES = 256 << 10
"""Segment size along a chain of ranks: the next rank gets the first segment while the second is being received."""


class Ring(Adapter):
    library, version = "reference ring", "1"
    offers = everything(same_bits=True)
    groups = True
    rebuilds = True

    def __init__(self) -> None:
        self._mesh: Mesh | None = None
        self.timeout_s = 0.0

    def join(self, world: World) -> None:
        self.leave()
        self.timeout_s = world.timeout_s
        self._mesh = Mesh(world.rank, world.addresses, world.port, world.attempt, time.monotonic() + world.timeout_s)

    def group(self, name: str, ranks: tuple[int, ...]) -> None:
        pass  # every two ranks are connected already

    def leave(self) -> None:
        if self._mesh:
            self._mesh.close()
            self._mesh = None

    def perform(self, call: Call, given: Array, room: Array) -> Array | None:
        try:
            return super().perform(call, given, room)
        except MeshError:
            self.leave()  # late data must not count as an answer to the next call, and the other ranks must notice
            raise

    def all_reduce(self, call: Call, given: Array, room: Array) -> Array:
        blocks = [given[share] for share in shares(call.count, call.size)]
        self._reduce_around(call, blocks)
        if call.reduction == "avg":
            divide(call, blocks[call.rank])
        self._gather_around(call, blocks)
        return given

    def reduce_scatter(self, call: Call, given: Array, room: Array) -> Array:
        blocks = split(given, call.size)
        self._reduce_around(call, blocks)
        if call.reduction == "avg":
            divide(call, blocks[call.rank])
        return blocks[call.rank]

    def all_gather(self, call: Call, given: Array, room: Array) -> Array:
        blocks = split(room, call.size)
        blocks[call.rank][:] = given
        self._gather_around(call, blocks)
        return room

    def broadcast(self, call: Call, given: Array, room: Array) -> Array:
        last = (call.root - 1) % call.size
        buffer = given if call.rank == call.root else room
        segments = cut(buffer)
        for step in range(len(segments) + 1):
            sends = call.rank != last and step >= 1
            awaits = call.rank != call.root and step < len(segments)
            self.exchange(
                call,
                self._to(call, call.rank + 1, step - 1, segments[step - 1]) if sends else None,
                self._to(call, call.rank - 1, step, segments[step]) if awaits else None,
            )
        return buffer

    def reduce(self, call: Call, given: Array, room: Array) -> Array | None:
        # The chain runs down to the root, as a broadcast runs up; the other way the vector would cross a fiber twice.
        first = (call.root - 1) % call.size
        segments, scratch = cut(given), cut(room)
        for step in range(len(segments) + 1):
            sends = call.rank != call.root and step >= 1
            awaits = call.rank != first and step < len(segments)
            self.exchange(
                call,
                self._to(call, call.rank - 1, step - 1, segments[step - 1]) if sends else None,
                self._to(call, call.rank + 1, step, scratch[step]) if awaits else None,
            )
            if awaits:
                self.combine(call, segments[step], scratch[step])
        if call.rank != call.root:
            return None
        if call.reduction == "avg":
            divide(call, given)
        return given

    def all_to_all(self, call: Call, given: Array, room: Array) -> Array:
        sent, received = split(given, call.size), split(room, call.size)
        received[call.rank][:] = sent[call.rank]
        for step in range(1, call.size):
            to, source = (call.rank + step) % call.size, (call.rank - step) % call.size
            self.exchange(call, self._to(call, to, step, sent[to]), self._to(call, source, step, received[source]))
        return room

    def send(self, call: Call, given: Array, room: Array) -> Array | None:
        if call.rank == call.root:
            self.exchange(call, self._to(call, call.to, 0, given), None)
            return None
        self.exchange(call, None, self._to(call, call.root, 0, room))
        return room

    def barrier(self, call: Call) -> None:
        """Dissemination (Hensgen, Finkel, Manber: Two algorithms for barrier synchronization, 1988)."""
        nothing = np.empty(0, np.uint8)
        step, distance = 0, 1
        while distance < call.size:
            to, source = call.rank + distance, call.rank - distance
            self.exchange(call, self._to(call, to, step, nothing), self._to(call, source, step, nothing))
            step, distance = step + 1, 2 * distance

    def exchange(self, call: Call, sent: Part | None, awaited: Part | None) -> None:
        if not self._mesh:
            raise MeshError("the connections were closed after an error; join again")
        self._mesh.exchange(call.number, self.timeout_s, sent, awaited)

    def combine(self, call: Call, into: Array, received: Array) -> None:
        """Add, or take the larger, element by element, in the type's own precision."""
        operation = np.maximum if call.reduction == "max" else np.add
        if call.type == "bfloat16":
            into[:] = narrow(operation(widen(into), widen(received)))
        else:
            operation(into, received, out=into)

    def _reduce_around(self, call: Call, blocks: list[Array]) -> None:
        """Reduce block k onto rank k; it begins at rank k + 1 and goes once around."""
        scratch = np.empty(max(block.size for block in blocks), blocks[0].dtype)
        for step in range(call.size - 1):
            sent = blocks[(call.rank - step - 1) % call.size]
            accumulated = blocks[(call.rank - step - 2) % call.size]
            received = scratch[: accumulated.size]
            self.exchange(
                call,
                self._to(call, call.rank + 1, step, sent),
                self._to(call, call.rank - 1, step, received),
            )
            self.combine(call, accumulated, received)

    def _gather_around(self, call: Call, blocks: list[Array]) -> None:
        """Pass block k, which is on rank k, once around to all."""
        for step in range(call.size - 1):
            self.exchange(
                call,
                self._to(call, call.rank + 1, call.size + step, blocks[(call.rank - step) % call.size]),
                self._to(call, call.rank - 1, call.size + step, blocks[(call.rank - step - 1) % call.size]),
            )

    @staticmethod
    def _to(call: Call, rank: int, step: int, data: Array) -> Part:
        return Part(call.ranks[rank % call.size], step, data.view(np.uint8).data)


def cut(vector: Array) -> list[Array]:
    """Return the segments of a vector for a chain."""
    step = SEGMENT_BYTES // vector.itemsize
    return [vector[begin : begin + step] for begin in range(0, vector.size, step)]


def divide(call: Call, vector: Array) -> None:
    """Turn a sum into an average, in place."""
    if call.type == "bfloat16":
        vector[:] = narrow(widen(vector) / np.float32(call.size))
    else:
        vector /= vector.dtype.type(call.size)


if __name__ == "__main__":
    main(Ring())
