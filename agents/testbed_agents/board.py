"""The board of an attempt: a file that all ranks of a job map, for what must not travel with the collectives.

All nodes of a lab are on one host, so the ranks share a file of the job's folder. On it are, by rank: the step that the
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

__all__ = ["Board", "Order"]

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
_MET = struct.Struct("<qdd")
"""Number of a meeting; t of this rank's coming; what it brings."""
_KEPT_MEETINGS = 2
"""A rank that comes to a meeting has read all of the one before the last."""
_RANK_BYTES = _ENTERED.size + _SAVED.size + _KEPT * _NOTE.size + _KEPT_MEETINGS * _MET.size
_LOOKS_EVERY_S = 0.0005


class Board:
    """The board of one attempt at ``path``; each rank opens it before the ranks meet. Raises RecordsError."""

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

    def remove_name(self) -> None:
        """Remove the file's name, once all ranks have opened it: nothing is left, however they end."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def enter(self, step: int, wish: Order = "") -> Order:
        """Enter ``step``, unless an order says to end before it: then return the order.

        ``wish``: what this rank was asked for. The first wish of any rank becomes the order.
        """
        with self._locked():
            number, after = _HEAD.unpack_from(self._map)
            if wish and not number:
                number, after = _ORDERS.index(wish), max(self._entered(rank) for rank in range(self._world_size))
                _HEAD.pack_into(self._map, 0, number, after)
            if number and step > after:
                return _order(number)
            _ENTERED.pack_into(self._map, self._at(self._rank), step)
            return ""

    def note(
        self, step: int, *, ready_t: float = math.nan, updated_t: float = math.nan, loss: float | None = None
    ) -> None:
        """Note what is known of this rank's ``step``; of one step call it with more each time."""
        at = self._place(self._rank, step)
        self._map[at : at + _NOTE.size] = _NOTE.pack(step, ready_t, updated_t, _known(loss))

    def later(self, step: int, ranks: Collection[int]) -> float:
        """Return how much later than this rank the last of ``ranks`` had its gradients of ``step`` ready, in s."""
        return self._later(step, ranks, 1)

    def later_updated(self, step: int, ranks: Collection[int]) -> float:
        """Return how much later than this rank the last of ``ranks`` had updated its parameters in ``step``, in s."""
        return self._later(step, ranks, 2)

    def mean_loss(self, step: int, ranks: Collection[int]) -> float:
        """Return the mean train_loss of ``step`` over those of ``ranks`` that know it; not finite if none does, or
        if training diverged."""
        losses = [note[3] for rank in ranks if (note := self._note(rank, step)) and not math.isnan(note[3])]
        return math.fsum(losses) / len(losses) if losses else math.nan

    def entered(self, ranks: Collection[int]) -> tuple[int, ...]:
        """Return the newest step that each of ``ranks`` has entered."""
        with self._locked():
            return tuple(self._entered(rank) for rank in ranks)

    def saved(self, step: int) -> int:
        """Note that this rank's checkpoint of ``step`` is on disk; return the newest step of which all ranks had one
        before, 0 for none in this attempt."""
        with self._locked():
            of_all = min(_SAVED.unpack_from(self._map, self._saved_at(rank))[0] for rank in range(self._world_size))
            _SAVED.pack_into(self._map, self._saved_at(self._rank), step)
            return int(of_all)

    def meet(self, number: int, value: float, timeout_s: float) -> tuple[float, float]:
        """Wait until all ranks have come to meeting ``number``, from 1; return when the last one came, and the greatest
        value that a rank brought.

        Costs no byte on a network, whose operations may be what is timed. Raises RuntimeError.
        """
        at = self._met_at(self._rank, number)
        # The number comes last, and is read first: who sees it finds the rest.
        self._map[at + _ENTERED.size : at + _MET.size] = _MET.pack(number, time.monotonic(), value)[_ENTERED.size :]
        self._map[at : at + _ENTERED.size] = _ENTERED.pack(number)
        deadline_t = time.monotonic() + timeout_s
        for rank in range(self._world_size):
            while self._met(rank, number) != number:
                if time.monotonic() > deadline_t:
                    raise RuntimeError(f"rank {rank} did not come to a meeting within {timeout_s:g} s")
                time.sleep(_LOOKS_EVERY_S)
        places = (self._met_at(rank, number) for rank in range(self._world_size))
        found = [_MET.unpack(self._map[at : at + _MET.size]) for at in places]
        return max(came_t for _, came_t, _ in found), max(brought for _, _, brought in found)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file >= 0:
            self._map.close()
            os.close(self._file)
            self._file = -1

    def _later(self, step: int, ranks: Collection[int], which: int) -> float:
        times = [note[which] for rank in ranks if (note := self._note(rank, step)) and not math.isnan(note[which])]
        own = self._note(self._rank, step)
        return max(0.0, max(times) - own[which]) if own and times and not math.isnan(own[which]) else 0.0

    def _note(self, rank: int, step: int) -> tuple[int, float, float, float] | None:
        at = self._place(rank, step)
        found: tuple[int, float, float, float] = _NOTE.unpack(self._map[at : at + _NOTE.size])
        return found if found[0] == step else None

    def _entered(self, rank: int) -> int:
        return int(_ENTERED.unpack_from(self._map, self._at(rank))[0])

    @staticmethod
    def _at(rank: int) -> int:
        return _HEAD.size + rank * _RANK_BYTES

    def _saved_at(self, rank: int) -> int:
        return self._at(rank) + _ENTERED.size

    def _place(self, rank: int, step: int) -> int:
        return self._saved_at(rank) + _SAVED.size + step % _KEPT * _NOTE.size

    def _met(self, rank: int, number: int) -> int:
        at = self._met_at(rank, number)
        return int(_ENTERED.unpack(self._map[at : at + _ENTERED.size])[0])

    def _met_at(self, rank: int, number: int) -> int:
        return self._place(rank, 0) + _KEPT * _NOTE.size + number % _KEPT_MEETINGS * _MET.size

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
    """Return what is noted: infinity for a loss that is no number, because NaN means that it is not known."""
    return math.nan if loss is None else loss if math.isfinite(loss) else math.inf
