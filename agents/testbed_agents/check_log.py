"""What one rank writes down so that wrong training can be proved afterwards, in the manner of Jepsen.

A run that ends with a falling train_loss has not shown that its sums were right. So each rank records, in
``rank-<r>.checks.jsonl`` (contract: docs/checkers.md), what a reader needs to tell: of each collective, tagged with
attempt, step and sequence, what came out of it and some elements, drawn by the seed, that went in and came out; of
steps drawn by the seed, what the parameters were before and after; and what it waited for when that took too long.
Nothing is judged here: that is done offline, from the records of all ranks.

Costs, measured (docs/checkers.md): a CRC-32 of what came out of each collective, 0.24 ns a byte. It is taken when the
step is over, so that neither compute nor exposed communication of the step records has it; the step is longer by it.
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
"""Of each collective so many elements are recorded, more of them in a drawn step."""

EVERY = 10
"""One step is drawn of each so many."""

HANG_SHARE = 0.5
"""A collective hangs when it takes longer than this share of the process group's timeout: before gloo ends it, and with
it whatever could be asked."""

HELD_SHARE = 0.25
"""A process that does not run for this share of the bound is said to be held."""

_LONGEST_NAP_S = 1.0


@dataclass
class Collective:
    """One that this rank entered: what went in and, once it is over, what came out. Times in CLOCK_MONOTONIC."""

    sequence: int
    elements: int
    began_t: float
    at: list[int]
    inputs: Tensor
    ended_t: float | None = None
    output: Tensor | None = None


def drawn(seed: int, step: int) -> bool:
    """Whether ``step`` (from 1) is one of those that are looked at closely: one of each :data:`EVERY`, the same on all
    ranks."""
    block, within = divmod(step - 1, EVERY)
    return random.Random(f"{seed}/steps/{block}").randrange(EVERY) == within


def positions(seed: int, step: int, sequence: int, elements: int, count: int) -> list[int]:
    """Which elements of a collective are recorded; the same on all ranks."""
    return random.Random(f"{seed}/{step}/{sequence}").sample(range(elements), min(count, elements))


class Checks:
    """``begin`` and ``end`` around each step, ``entered`` and ``left`` around each collective, ``close`` at last.

    ``first`` and ``last`` are the steps of this attempt. Those two and each multiple of ``also_every`` (steps that
    leave a checkpoint; 0: none) are drawn in any case: what an attempt begins with can so be compared with what the one
    before had. ``left`` may be called from any thread.
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
        """Before ``inputs``, of one dimension, are handed over: their sum will take their place."""
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
        """The optimizer has made its step: write down what this one came to. Raises what Records does.

        ``last``: this attempt ends after it, sooner than was planned, and another goes on from here.
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
        """Nobody watches afterwards."""
        self._closed.set()
        self._watchdog.join()
        self._records.close()

    def _watch(self) -> None:
        """Write down, once for each place, what this rank waits for or does instead when it takes longer than a
        collective may; and when this process was held (SIGSTOP), which shows in a nap that was far too long."""
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
            except Exception:  # a full disk, or a newer attempt: the trainer meets it at its next record
                return
            woke_t = now


def crc32(tensors: Iterable[Tensor]) -> str:
    """Of their bytes, one after the other, in hexadecimal: tells what differs by accident, 1 in 4e9 times not."""
    value = 0
    for tensor in tensors:
        value = zlib.crc32(tensor.detach().contiguous().numpy().data, value)
    return f"{value:08x}"


def fingerprint(model: nn.Module) -> str:
    return crc32(model.parameters())


def optimizer_steps(optimizer: torch.optim.Optimizer) -> int:
    """How many updates the parameter with the fewest has had, by the optimizer's own count; 0 before the first."""
    counts: list[Callable[[], float]] = [state["step"].item for state in optimizer.state.values() if "step" in state]
    return int(min((count() for count in counts), default=0.0))


def floats(tensor: Tensor) -> str:
    """float32, little-endian, in hexadecimal: exact, and no decimal point to misread."""
    return tensor.numpy().astype("<f4").tobytes().hex()
