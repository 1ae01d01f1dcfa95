"""Record one rank's evidence for proving wrong training afterwards, in the manner of Jepsen.

A falling train_loss does not prove that the sums were correct. So each rank records in ``rank-<r>.checks.jsonl``
(format: docs/checkers.md):

* of each collective, tagged with attempt, step and sequence: a checksum of its result, and some elements of input and
  result, selected by the seed;
* of steps selected by the seed: checksums of the parameters before and after;
* what the rank was waiting for if that took too long.

The records of all ranks are judged offline.

Measured cost (docs/checkers.md): a CRC-32 of each collective's result, 0.24 ns per byte. It is computed after the step,
so it is not part of the recorded compute or exposed communication, but makes the step longer.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from testbed_agents.records import Records

ELEMENTS, ELEMENTS_DRAWN = 8, 64
"""Number of elements recorded per collective, otherwise and in a selected step."""

EVERY = 10
"""One step in each block of this many is selected."""

HANG_SHARE = 0.5
"""A collective that takes longer than this share of the process group's timeout hangs. Recorded before gloo aborts it
and ends the process group."""

HELD_SHARE = 0.25
"""A process that does not run for this share of the bound is recorded as held (paused)."""

_LONGEST_NAP_S = 1.0


@dataclass
class Collective:
    """A collective that this rank entered: its input and, once finished, its result. Times in CLOCK_MONOTONIC."""

    sequence: int
    elements: int
    began_t: float
    at: list[int]
    inputs: Tensor
    ended_t: float | None = None
    output: Tensor | None = None


def drawn(seed: int, step: int) -> bool:
    """Return whether ``step`` (from 1) is selected for details: one in :data:`EVERY`, the same on all ranks."""
    block, within = divmod(step - 1, EVERY)
    return random.Random(f"{seed}/steps/{block}").randrange(EVERY) == within


def positions(seed: int, step: int, sequence: int, elements: int, count: int) -> list[int]:
    """Return which elements of a collective are recorded; the same on all ranks."""
    return random.Random(f"{seed}/{step}/{sequence}").sample(range(elements), min(count, elements))


class Checks:
    """Writes the records: ``begin`` and ``end`` around each step, ``entered`` and ``left`` around each collective.

    ``first`` and ``last`` are the steps of this attempt. These two and each multiple of ``also_every`` (steps with a
    checkpoint; 0: none) are always selected, so that an attempt's initial parameters can be compared with those of the
    previous attempt. ``left`` may be called from any thread. Must be closed.
    """

    def __init__(
        self,
        records: Records,
        *,
        rank: int,
        world_size: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int,
        first: int,
        last: int,
        also_every: int,
        timeout_s: float,
    ) -> None:
        self._records, self._model, self._optimizer = records, model, optimizer
        self._seed, self._first, self._last, self._also_every = seed, first, last, also_every
        self._hang_s = HANG_SHARE * timeout_s
        self._lock = threading.Lock()
        self._step, self._drawn, self._trained_on = first - 1, False, ""
        self._collectives: list[Collective] = []
        self._moved_t = time.monotonic()
        self._closed = threading.Event()
        records.write(
            "begin",
            t=self._moved_t,
            rank=rank,
            world_size=world_size,
            step=first - 1,
            hang_s=self._hang_s,
            parameters=fingerprint(model),
            optimizer_steps=optimizer_steps(optimizer),
        )
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._watchdog.start()

    def begin(self, step: int) -> None:
        self._drawn = (
            step in (self._first, self._last)
            or drawn(self._seed, step)
            or (self._also_every > 0 and step % self._also_every == 0)
        )
        self._trained_on = fingerprint(self._model) if self._drawn else ""
        with self._lock:
            self._step, self._collectives, self._moved_t = step, [], time.monotonic()

    def entered(self, inputs: Tensor) -> Collective:
        """Record a collective's input, a 1-D tensor, before the all-reduce replaces it by the sum."""
        sequence, elements = len(self._collectives), inputs.numel()
        count = ELEMENTS_DRAWN if self._drawn else ELEMENTS
        at = positions(self._seed, self._step, sequence, elements, count)
        now = time.monotonic()
        entered = Collective(sequence, elements, now, at, inputs[at].clone())
        with self._lock:
            self._collectives.append(entered)
            self._moved_t = now
        return entered

    def left(self, entered: Collective, output: Tensor) -> None:
        with self._lock:
            entered.output = output
            entered.ended_t = self._moved_t = time.monotonic()

    def end(self, last: bool = False) -> None:
        """Write the records of the step, after the optimizer's update. Raises RecordsError.

        ``last``: this attempt ends after this step, earlier than planned, and another resumes from here.
        """
        done = [each for each in self._collectives if each.output is not None and each.ended_t is not None]
        fields: dict[str, object] = {}
        if self._drawn:
            fields = {"trained_on": self._trained_on, "became": fingerprint(self._model)}
        elif last:
            fields = {"became": fingerprint(self._model)}
        self._records.write(
            "step",
            t=time.monotonic(),
            step=self._step,
            optimizer_steps=optimizer_steps(self._optimizer),
            collectives=[
                {
                    "elements": each.elements,
                    "began_t": each.began_t,
                    "ended_t": each.ended_t,
                    "crc32": crc32([each.output]),
                }
                for each in done
                if each.output is not None
            ],
            **fields,
        )
        for each in done:
            if each.output is not None:
                self._records.write(
                    "sample",
                    step=self._step,
                    sequence=each.sequence,
                    at=each.at,
                    inputs=floats(each.inputs),
                    outputs=floats(each.output[each.at]),
                )
        with self._lock:
            self._collectives, self._moved_t = [], time.monotonic()

    def close(self) -> None:
        """Stop the watchdog thread and close the records."""
        self._closed.set()
        self._watchdog.join()
        self._records.close()

    def _watch(self) -> None:
        """Record hangs and pauses.

        A hang is recorded once per step and collective, when it takes longer than the bound. A pause of this process
        (SIGSTOP) is recognised by a sleep that took far too long.
        """
        nap = min(_LONGEST_NAP_S, self._hang_s / 10)
        place: tuple[int, int | None] = (0, None)
        told, woke_t = False, time.monotonic()
        while not self._closed.wait(nap):
            now = time.monotonic()
            with self._lock:
                waiting = next((each for each in self._collectives if each.ended_t is None), None)
                here = (self._step, waiting.sequence if waiting else None)
                since_t = waiting.began_t if waiting else self._moved_t
            if here != place:
                place, told = here, False
            try:
                if now - woke_t > nap + HELD_SHARE * self._hang_s:
                    self._records.write("held", t=now, since_t=woke_t)
                if now - since_t > self._hang_s and not told:
                    told = True
                    self._records.write("waits", t=now, step=place[0], sequence=place[1], since_t=since_t)
            except Exception:  # a full disk, or a newer attempt: the trainer gets the same error at its next record
                return
            woke_t = now


def crc32(tensors: Iterable[Tensor]) -> str:
    """Return the CRC-32 of the concatenated bytes, in hexadecimal; misses an accidental difference 1 in 4e9 times."""
    value = 0
    for tensor in tensors:
        value = zlib.crc32(tensor.detach().contiguous().numpy().data, value)
    return f"{value:08x}"


def fingerprint(model: nn.Module) -> str:
    return crc32(model.parameters())


def optimizer_steps(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of updates by the optimizer's own count, the minimum over parameters; 0 before the first."""
    counts: list[Callable[[], float]] = [state["step"].item for state in optimizer.state.values() if "step" in state]
    return int(min((count() for count in counts), default=0.0))


def floats(tensor: Tensor) -> str:
    """Encode as little-endian float32 in hexadecimal, which is exact."""
    return tensor.numpy().astype("<f4").tobytes().hex()
