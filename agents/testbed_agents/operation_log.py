"""What a rank records of its operations: checksums of what it put in and got out, and some elements of sums.

Everything that must be right is made certain offline (``testbed/core/checkers``) from the records of all ranks:

* of an all_reduce the CRC-32 of the result, which all ranks must have; of every reduction some elements of input and
  result, drawn by the seed, which are added again;
* of operations that move data (all_gather, all_to_all, broadcast, send, ...) the CRC-32 of each part that this rank
  sent and of each that it received: what one received must be what another sent.

A checksum is taken when an operation has ended, before the caller that waits for it continues, because a result does
not last until the end of the step: FSDP2 frees it, an outer optimizer changes it in place. That is as cheap as a copy,
needs no memory, and happens in gloo's threads, beside the operations that are still running (docs/checkers.md has the
figures).
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from testbed_agents.checksums import ELEMENTS, ELEMENTS_DRAWN, crc32, elements, hexadecimal, positions
from testbed_agents.watched import MESSAGES, REDUCTIONS, Operation

__all__ = ["OperationLog"]

_SETTLES_WITHIN_S, _LOOKS_EVERY_S = 10.0, 0.0002
"""Bound of the wait for evidence that another thread is taking: milliseconds, unless the host is overloaded."""


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass
class _Note:
    """What was taken at the beginning of an operation."""

    step: int
    at: list[int]
    inputs: Tensor | None = None
    sent: list[str] | None = None


class OperationLog:
    """Observer of watched groups. ``observe`` is called with the duration of each operation. Thread-safe."""

    def __init__(self, seed: int, observe: Callable[[float], None] = lambda seconds: None) -> None:
        self._seed, self._observe = seed, observe
        self._lock = threading.Lock()
        self._running: set[Operation] = set()
        self._messages: weakref.WeakSet[Operation] = weakref.WeakSet()  # weak: one that is never waited for never ends
        self._done: list[tuple[int, dict[str, Any], Operation | None]] = []
        self._sums: Counter[str] = Counter()
        self._groups: list[tuple[str, tuple[int, ...]]] = []
        self._told = 0
        self.step, self.drawn = 0, False
        self.moved_t = time.monotonic()
        """When an operation last began or ended, or a step."""

    def entered(self, operation: Operation) -> None:
        note = _Note(self.step, [])
        if operation.kind in REDUCTIONS and operation.byte_count:
            given = operation.inputs
            if operation.kind == "reduce_scatter" and operation.sent:
                given = [tensor for part in operation.sent() for tensor in part]  # by destination
            count = max(ELEMENTS_DRAWN if self.drawn else ELEMENTS, len(operation.ranks))
            total = sum(tensor.numel() for tensor in given)
            note.at = positions(self._seed, operation.group, operation.sequence or 0, total, count)
            note.inputs = elements(given, note.at)
        elif operation.sent and _shared(operation):
            note.sent = [crc32(part) for part in operation.sent()]  # gone once the result takes its place
        operation.note = note
        with self._lock:
            (self._messages if operation.kind in MESSAGES else self._running).add(operation)
            self._note_group(operation.group, operation.ranks)
            self.moved_t = operation.began_t

    def _forget(self, operation: Operation) -> None:
        (self._messages if operation.kind in MESSAGES else self._running).discard(operation)

    def _note_group(self, group: str, ranks: tuple[int, ...]) -> None:
        if (group, ranks) not in self._groups:
            self._groups.append((group, ranks))

    def left(self, operation: Operation) -> None:
        note = operation.note
        if not isinstance(note, _Note):  # it began before there was an observer
            return
        try:
            evidence = {} if operation.error else self._evidence(operation, note)
        except BaseException:
            with self._lock:
                self._forget(operation)  # else the end of the step would wait for it
            raise
        operation.forget()
        with self._lock:
            self._forget(operation)
            # What remains to be done for the record is done at the end of the step, for all of them together.
            self._done.append((note.step, evidence, operation))
            self.moved_t = operation.ended_t or operation.began_t

    def added(self, group: str, ranks: tuple[int, ...], parts: Sequence[Tensor], total: Tensor) -> None:
        """Record a sum of messages as an operation of kind ``sum``, numbered for itself in its group."""
        added_t = round(time.monotonic(), 6)
        with self._lock:
            self._note_group(group, ranks)
            sequence = self._sums[group]
            self._sums[group] += 1
        count = ELEMENTS_DRAWN if self.drawn else ELEMENTS
        places = positions(self._seed, f"{group}/sum", sequence, total.numel(), count)
        line: dict[str, Any] = {
            "group": group,
            "sequence": sequence,
            "operation": "sum",
            "bytes": total.numel() * total.element_size(),
            "began_t": added_t,
            "ended_t": added_t,
            "dtype": _name(total.dtype),
            "crc32": crc32([total]),
            "sample": {
                "at": places,
                "parts": [hexadecimal(elements([part], places)) for part in parts],
                "outputs": hexadecimal(elements([total], places)),
            },
        }
        with self._lock:
            self._done.append((self.step, line, None))

    def _line(self, step: int, evidence: dict[str, Any], operation: Operation | None) -> dict[str, Any]:
        line = evidence
        if operation is not None:
            line = self._head(operation)
            if operation.error:
                line["failed"] = operation.error.partition("\n")[0][:200]
            line |= evidence
            if operation.waited_s is not None:  # known only after the end
                line["waited_s"] = round(operation.waited_s, 6)
            self._observe((operation.ended_t or operation.began_t) - operation.began_t)
        if step != self.step:
            line["step"] = step
        if "sample" in line:
            sample = line["sample"]
            line["sample"] = {
                key: hexadecimal(sampled) if isinstance(sampled, Tensor) else sampled for key, sampled in sample.items()
            }
        return line

    def _head(self, operation: Operation) -> dict[str, Any]:
        line: dict[str, Any] = {
            "group": operation.group,
            "sequence": operation.sequence,
            "operation": operation.kind,
            "bytes": operation.byte_count,
            "began_t": round(operation.began_t, 6),
        }
        if operation.ended_t is not None:
            line["ended_t"] = round(operation.ended_t, 6)
        for name, position in (("root", operation.root), ("peer", operation.peer)):
            if position is not None:
                line[name] = operation.ranks[position]
        if operation.kind in MESSAGES and operation.tag:
            line["tag"] = operation.tag
        return line

    def _evidence(self, operation: Operation, note: _Note) -> dict[str, Any]:
        if operation.kind in REDUCTIONS:
            return self._sum(operation, note)
        checksums: dict[str, Any] = {}
        if operation.sent:
            sent = note.sent or [crc32(part) for part in operation.sent()]
            checksums["sent"] = sent if operation.kind in ("all_to_all", "scatter") else sent[0]
        if operation.received:
            received = [None if part is None else crc32(part) for part in operation.received()]
            checksums["received"] = received[0] if operation.kind == "recv" else received
        return checksums

    def _sum(self, operation: Operation, note: _Note) -> dict[str, Any]:
        evidence: dict[str, Any] = {"reduction": operation.reduction}
        if operation.kind == "reduce" and operation.root != operation.position:
            outputs, places = [], []
        else:
            outputs, places = operation.outputs, note.at
            evidence["crc32"] = crc32(outputs)
        if operation.inputs:
            evidence["dtype"] = _name(operation.inputs[0].dtype)
        if note.inputs is None:
            return evidence
        sample: dict[str, Any] = {"at": note.at, "inputs": note.inputs}
        if operation.kind == "reduce_scatter":
            size = sum(tensor.numel() for tensor in outputs)
            begin = operation.position * size
            places = [position for position in places if begin <= position < begin + size]
            sample["outputs_at"] = places
            sample["outputs"] = elements(outputs, [position - begin for position in places])
        elif outputs:
            sample["outputs"] = elements(outputs, places)
        return {**evidence, "sample": sample}

    def begin(self, step: int, drawn: bool) -> None:
        """Begin ``step``: operations that begin from now on are of it."""
        with self._lock:
            self.step, self.drawn, self.moved_t = step, drawn, time.monotonic()

    def take(self) -> tuple[list[tuple[str, tuple[int, ...]]], list[dict[str, Any]]]:
        """Return new groups, and a line of each operation that has ended since the last call; for the record of a
        step. Wait for the evidence of those whose future is complete, which another thread is still taking."""
        self._settle()
        with self._lock:
            groups, self._told = self._groups[self._told :], len(self._groups)
            done, self._done = self._done, []
            self.moved_t = time.monotonic()
        return groups, [self._line(*ended) for ended in done]

    def _settle(self) -> None:
        deadline = time.monotonic() + _SETTLES_WITHIN_S
        while time.monotonic() < deadline:
            running = self._all_running()
            if not any(operation.over() for operation in running):
                return
            time.sleep(_LOOKS_EVERY_S)

    def _all_running(self) -> list[Operation]:
        with self._lock:
            return [*self._running, *self._messages]

    def unfinished(self) -> list[dict[str, Any]]:
        """Return a line of each operation that has not ended."""
        running = self._all_running()
        return [{**self._head(operation), "step": operation.note.step} for operation in running]

    def waiting(self) -> tuple[Operation | None, float]:
        """Return the operation that this rank has been in for longest, and since when; none: since when it is in none.

        A message counts while the rank waits for it: receipts are posted long before anything can arrive.
        """
        with self._lock:
            blocking = [
                (since_t, id(operation), operation)
                for operation in (*self._running, *self._messages)
                if (since_t := operation.blocked_t if operation.kind in MESSAGES else operation.began_t) is not None
            ]
            if blocking:
                since_t, _, operation = min(blocking)
                return operation, since_t
            return None, self.moved_t

    def place(self, operation: Operation | None) -> dict[str, Any]:
        """Return where the rank is, for a record: in ``operation``, or in none."""
        if operation is None:
            return {"step": self.step, "sequence": None}
        line = self._head(operation)
        kept = ("group", "sequence", "operation", "peer", "tag")
        return {"step": operation.note.step, **{key: line[key] for key in kept if key in line}}


def _shared(operation: Operation) -> bool:
    """Whether an input lies in the memory of a result."""
    places = {tensor.untyped_storage().data_ptr() for tensor in operation.outputs}
    return any(tensor.untyped_storage().data_ptr() in places for tensor in operation.inputs)
