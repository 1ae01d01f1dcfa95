"""The status file of an attempt: shared memory of all ranks of a job, for what must not travel with the collectives.

All nodes of a lab are on one host, so the ranks map a file of the job's folder. It holds, by rank: the step that the
rank has entered, its newest checkpoint, when its gradients of the last steps were ready, when it had updated its
parameters, its train_loss, and where it is in the timing before the first step; and once, for all: the order to stop,
or to save the state and stop.

An order names the step after which all ranks obey: the newest that any rank has entered. Entering a step and giving
an order exclude each other by a lock on the file, so no rank can enter a later step unseen. An order needs no bytes on
a fiber, and reaches ranks that do not exchange anything for many steps.

What is written without the lock is written and read at once, as bytes: ``pack_into`` fills with zeros first, which
another rank would take for a time or a train_loss.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import mmap
import os
import struct
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from testbed_agents.records import RecordsError

__all__ = ["Order", "StatusFile"]

Order: TypeAlias = Literal["", "stop", "save"]

_ORDERS: tuple[Order, ...] = ("", "stop", "save")
_HEAD = struct.Struct("<qq")
"""Number of the order, and the step after which it is obeyed."""
_ENTERED = struct.Struct("<q")
_SAVED = struct.Struct("<q")
"""Step of the rank's newest checkpoint."""
_NOTE = struct.Struct("<qddd")
"""Step; t of gradients ready; t of parameters updated; train_loss. NaN: not known."""
_KEPT = 4
"""Notes kept per rank: how many steps ranks that step together can be apart, and one more."""
_BARRIER = struct.Struct("<qdd")
"""Number of a barrier; t at which this rank reached it; its value."""
_KEPT_BARRIERS = 2
"""A rank that reaches a barrier has read all of the one before the last."""
_RANK_BYTES = _ENTERED.size + _SAVED.size + _KEPT * _NOTE.size + _KEPT_BARRIERS * _BARRIER.size
_POLL_S = 0.0005


class StatusFile:
    """The status file of one attempt at ``path``; each rank opens it before the ranks meet. Raises RecordsError."""

    def __init__(self, path: Path, rank: int, world_size: int) -> None:
        self.path, self._rank, self._world_size = path, rank, world_size
        size = _HEAD.size + world_size * _RANK_BYTES
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._file, size)  # the same for all ranks; new bytes are zeros
            self._map = mmap.mmap(self._file, size)
        except OSError as error:
            raise RecordsError(f"cannot write {path}: {error.strerror}") from error

    def unlink(self) -> None:
        """Remove the file's name, once all ranks have opened it: nothing is left, however they end."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def enter(self, step: int, request: Order = "") -> Order:
        """Enter ``step``, unless an order says to end before it: then return the order.

        ``request``: the order that this rank was given. The first request of any rank becomes the order.
        """
        with self._locked():
            number, after = _HEAD.unpack_from(self._map)
            if request and not number:
                number, after = _ORDERS.index(request), max(self._entered(rank) for rank in range(self._world_size))
                _HEAD.pack_into(self._map, 0, number, after)
            if number and step > after:
                return _order(number)
            _ENTERED.pack_into(self._map, self._entered_offset(self._rank), step)
            return ""

    def publish(
        self, step: int, *, ready_t: float = math.nan, updated_t: float = math.nan, loss: float | None = None
    ) -> None:
        """Publish what is known of this rank's ``step``; each call repeats what the one before had, and adds to it."""
        offset = self._note_offset(self._rank, step)
        self._map[offset : offset + _NOTE.size] = _NOTE.pack(step, ready_t, updated_t, _known(loss))

    def gradients_lag_s(self, step: int, ranks: Collection[int]) -> float:
        """Return how much later than this rank the last of ``ranks`` had its gradients of ``step`` ready, in s."""
        return self._lag_s(step, ranks, 1)

    def update_lag_s(self, step: int, ranks: Collection[int]) -> float:
        """Return how much later than this rank the last of ``ranks`` had updated its parameters in ``step``, in s."""
        return self._lag_s(step, ranks, 2)

    def mean_loss(self, step: int, ranks: Collection[int]) -> float:
        """Return the mean train_loss of ``step`` over those of ``ranks`` that have one; not finite if none has one, or
        if training diverged."""
        losses = [note[3] for rank in ranks if (note := self._note(rank, step)) and not math.isnan(note[3])]
        return math.fsum(losses) / len(losses) if losses else math.nan

    def entered(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Return the newest step that each of ``ranks`` has entered."""
        with self._locked():
            return tuple(self._entered(rank) for rank in ranks)

    def saved(self, step: int) -> int:
        """Publish that this rank's checkpoint of ``step`` is on disk; return the newest step of which all ranks had one
        before, 0 for none in this attempt."""
        with self._locked():
            of_all = min(_SAVED.unpack_from(self._map, self._saved_offset(rank))[0] for rank in range(self._world_size))
            _SAVED.pack_into(self._map, self._saved_offset(self._rank), step)
            return int(of_all)

    def barrier(self, number: int, value: float, timeout_s: float) -> tuple[float, float]:
        """Wait until all ranks have reached barrier ``number``, from 1; return when the last one did, and the greatest
        ``value`` of all ranks.

        Costs no byte on a network, whose operations may be what is timed. Raises RuntimeError.
        """
        offset = self._barrier_offset(self._rank, number)
        # The number is written last and read first: a rank that reads it reads the other fields whole.
        reached, number_bytes = _BARRIER.pack(number, time.monotonic(), value), _ENTERED.size
        self._map[offset + number_bytes : offset + _BARRIER.size] = reached[number_bytes:]
        self._map[offset : offset + number_bytes] = reached[:number_bytes]
        deadline_t = time.monotonic() + timeout_s
        for rank in range(self._world_size):
            while self._barrier_number(rank, number) != number:
                if time.monotonic() > deadline_t:
                    raise RuntimeError(f"rank {rank} did not reach a barrier within {timeout_s:g} s")
                time.sleep(_POLL_S)
        places = (self._barrier_offset(rank, number) for rank in range(self._world_size))
        barriers = [_BARRIER.unpack(self._map[start : start + _BARRIER.size]) for start in places]
        return max(reached_t for _, reached_t, _ in barriers), max(highest for _, _, highest in barriers)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            self._map.close()
            os.close(self._file)
            self._file = -1

    def _lag_s(self, step: int, ranks: Collection[int], field: int) -> float:
        times = [note[field] for rank in ranks if (note := self._note(rank, step)) and not math.isnan(note[field])]
        own = self._note(self._rank, step)
        return max(0.0, max(times) - own[field]) if own and times and not math.isnan(own[field]) else 0.0

    def _note(self, rank: int, step: int) -> tuple[int, float, float, float] | None:
        offset = self._note_offset(rank, step)
        note: tuple[int, float, float, float] = _NOTE.unpack(self._map[offset : offset + _NOTE.size])
        return note if note[0] == step else None

    def _entered(self, rank: int) -> int:
        return int(_ENTERED.unpack_from(self._map, self._entered_offset(rank))[0])

    @staticmethod
    def _entered_offset(rank: int) -> int:
        return _HEAD.size + rank * _RANK_BYTES

    def _saved_offset(self, rank: int) -> int:
        return self._entered_offset(rank) + _ENTERED.size

    def _note_offset(self, rank: int, step: int) -> int:
        return self._saved_offset(rank) + _SAVED.size + step % _KEPT * _NOTE.size

    def _barrier_number(self, rank: int, number: int) -> int:
        offset = self._barrier_offset(rank, number)
        return int(_ENTERED.unpack(self._map[offset : offset + _ENTERED.size])[0])

    def _barrier_offset(self, rank: int, number: int) -> int:
        return self._note_offset(rank, 0) + _KEPT * _NOTE.size + number % _KEPT_BARRIERS * _BARRIER.size

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _order(number: int) -> Order:
    return _ORDERS[number]


def _known(loss: float | None) -> float:
    """Return the published loss: infinity for one that is not finite, because NaN means that there is none."""
    return math.nan if loss is None else loss if math.isfinite(loss) else math.inf
