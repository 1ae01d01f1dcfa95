"""Record one rank's evidence for proving wrong training afterwards, in the manner of Jepsen.

A falling train_loss does not prove that the sums were correct. So each rank records in ``rank-<r>.checks.jsonl``
(format: docs/checkers.md):

* each operation of the process groups, tagged with attempt, group and sequence (:mod:`~testbed_agents.operation_log`);
* what strategies add and decode themselves (:mod:`~testbed_agents.evidence`);
* of steps selected by the seed, and after exchanges: checksums of the tensors that a strategy names
  (``Strategy.fingerprints``); of every step a checksum of some of their elements;
* what the rank was waiting for if that took too long.

The records of all ranks are judged offline.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from testbed_agents.checksums import crc32, elements
from testbed_agents.evidence import Evidence
from testbed_agents.operation_log import OperationLog
from testbed_agents.records import Records
from testbed_agents.strategies import Strategy

__all__ = ["EVERY", "Checks", "drawn", "optimizer_steps"]

EVERY = 10
"""One step in each block of this many is selected."""

HANG_SHARE = 0.5
"""An operation that takes longer than this share of the process group's timeout hangs. Recorded before gloo aborts it
and ends the process group."""

HELD_SHARE = 0.25
"""A process that does not run for this share of the bound is recorded as held (paused)."""

_LONGEST_NAP_S = 1.0

_TRACED_TENSORS, _TRACED_ELEMENTS = 8, 8
"""From how many tensors of a name, and how many elements of each, the trace of a step is taken."""


def drawn(seed: int, step: int) -> bool:
    """Return whether ``step`` (from 1) is selected for details: one in :data:`EVERY`, the same on all ranks."""
    block, within = divmod(step - 1, EVERY)
    return random.Random(f"{seed}/steps/{block}").randrange(EVERY) == within


class Checks:
    """Writes the records: ``begin`` and ``end`` around each step; operations by ``operations``, as their observer.

    ``first`` and ``last`` are the steps of this attempt. These two and each multiple of ``also_every`` (steps with a
    checkpoint; 0: none) are always selected, so that an attempt's initial parameters can be compared with those of the
    previous attempt. Must be closed.

    ``counts_exchanges``: outer_version counts exchanges, not steps. ``observe``: called with each operation's duration.
    """

    def __init__(
        self,
        records: Records,
        *,
        rank: int,
        world_size: int,
        strategy: Strategy,
        optimizer: torch.optim.Optimizer,
        seed: int,
        first: int,
        last: int,
        also_every: int,
        timeout_s: float,
        counts_exchanges: bool = False,
        observe: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._records, self._strategy, self._optimizer = records, strategy, optimizer
        self._seed, self._first, self._last, self._also_every = seed, first, last, also_every
        self._hang_s = HANG_SHARE * timeout_s
        self._counts_exchanges = counts_exchanges
        self._version = strategy.outer_version
        self._drawn, self._before = False, dict[str, str]()
        self._taken = True  # the beginning has fingerprints
        self._closed = threading.Event()
        self.operations = OperationLog(seed, observe)
        self.operations.begin(first - 1, False)
        self.evidence = Evidence(records, seed, lambda: self.operations.step)
        self._traces = _Traces(seed)
        fingerprints = self._fingerprints()
        records.write(
            "begin",
            t=time.monotonic(),
            rank=rank,
            world_size=world_size,
            step=first - 1,
            hang_s=self._hang_s,
            parameters=fingerprints.get("parameters") or "+".join(fingerprints.values()),
            fingerprints=fingerprints,
            optimizer_steps=optimizer_steps(optimizer),
            **self._outer(),
        )
        self._watchdog = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._watchdog.start()

    def begin(self, step: int) -> None:
        self._drawn = (
            step in (self._first, self._last)
            or drawn(self._seed, step)
            or (self._also_every > 0 and step % self._also_every == 0)
        )
        self._before = self._fingerprints() if self._drawn or self._taken else {}
        self.operations.begin(step, self._drawn)

    def end(self, last: bool = False) -> None:
        """Write the records of the step, after the optimizer's update and the step's exchange. Raises RecordsError.

        ``last``: this attempt ends after this step, earlier than planned, and another may resume from here.
        """
        exchanged = self._counts_exchanges and self._strategy.outer_version != self._version
        self._version = self._strategy.outer_version
        self._taken = self._drawn or last or exchanged
        after = self._fingerprints() if self._taken else {}
        self._write("step", last=False, before=self._before, after=after, optimizer_steps=self._steps())

    def finishing(self) -> None:
        """Begin what follows the last step: an attempt that is stopped ends with an exchange. It is recorded with the
        next step number, because the twin defines the operations of each step."""
        self.operations.begin(self.operations.step + 1, False)

    def finished(self) -> None:
        """Write what followed the last step. Raises RecordsError."""
        self._write("finish", last=True, before={}, after=self._fingerprints(), optimizer_steps=self._steps())

    def close(self) -> None:
        """Record what has failed or never ended; stop the watchdog thread and close the records."""
        self._closed.set()
        self._watchdog.join()
        try:
            groups, operations = self.operations.take()
            operations += self.operations.unfinished()
            if operations:
                self._write_groups(groups)
                self._records.write("unfinished", t=time.monotonic(), step=self.operations.step, operations=operations)
        except Exception:  # a full disk, or a newer attempt: the trainer has reported it
            pass
        self._records.close()

    def _write(
        self, kind: str, *, last: bool, before: Mapping[str, str], after: Mapping[str, str], optimizer_steps: int
    ) -> None:
        groups, operations = self.operations.take()
        self._write_groups(groups)
        fields: dict[str, object] = {}
        if before:
            fields["fingerprints_before"] = before
        if after:
            fields["fingerprints"] = after
        if "parameters" in before:
            fields["trained_on"] = before["parameters"]
        if "parameters" in after:
            fields["became"] = after["parameters"]
        self._records.write(
            kind,
            t=time.monotonic(),
            step=self.operations.step,
            optimizer_steps=optimizer_steps,
            operations=operations,
            trace=self._traces.of(self._strategy.fingerprints()),
            **self._outer(),
            **fields,
        )

    def _write_groups(self, groups: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        for name, ranks in groups:
            self._records.write("group", group=name, ranks=list(ranks))

    def _steps(self) -> int:
        return optimizer_steps(self._optimizer)

    def _outer(self) -> dict[str, object]:
        return {"outer_version": self._strategy.outer_version} if self._counts_exchanges else {}

    def _fingerprints(self) -> dict[str, str]:
        return {name: crc32(tensors) for name, tensors in self._strategy.fingerprints().items()}

    def _watch(self) -> None:
        """Record hangs and pauses.

        A hang is recorded once per step and operation, when it takes longer than the bound. A pause of this process
        (SIGSTOP) is recognised by a sleep that took far too long.
        """
        nap = min(_LONGEST_NAP_S, self._hang_s / 10)
        place: tuple[object, ...] = ()
        recorded, woke_t = False, time.monotonic()
        while not self._closed.wait(nap):
            now = time.monotonic()
            operation, since_t = self.operations.waiting()
            current = (self.operations.step, id(operation) if operation else None)
            if current != place:
                place, recorded = current, False
            try:
                if now - woke_t > nap + HELD_SHARE * self._hang_s:
                    self._records.write("held", t=now, since_t=woke_t)
                if now - since_t > self._hang_s and not recorded:
                    recorded = True
                    self._records.write("waits", t=now, since_t=since_t, **self.operations.place(operation))
            except Exception:  # a full disk, or a newer attempt: the trainer gets the same error at its next record
                return
            woke_t = now


class _Traces:
    """Checksums of a few elements of the tensors of each name, always the same ones, drawn by the seed.

    Cheap enough for every step. An optimizer changes nearly every element, so a step after which the same elements have
    values that they had before has lost something.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._chosen: dict[str, list[tuple[int, list[int]]]] = {}

    def of(self, named: Mapping[str, Iterable[Tensor]]) -> dict[str, str]:
        checksums = {}
        for name, tensors in named.items():
            listed = list(tensors)
            key = f"{name}/{len(listed)}"
            if key not in self._chosen:
                self._chosen[key] = self._choose(name, [tensor.numel() for tensor in listed])
            chosen = self._chosen[key]
            checksums[name] = crc32(elements([listed[index]], places) for index, places in chosen)
        return checksums

    def _choose(self, name: str, sizes: list[int]) -> list[tuple[int, list[int]]]:
        chance = random.Random(f"{self._seed}/trace/{name}")
        nonempty = [index for index, size in enumerate(sizes) if size]
        tensors = sorted(chance.sample(nonempty, min(_TRACED_TENSORS, len(nonempty))), key=lambda index: -sizes[index])
        counts = {index: min(_TRACED_ELEMENTS, sizes[index]) for index in tensors}
        return [(index, chance.sample(range(sizes[index]), count)) for index, count in counts.items()]


def optimizer_steps(optimizer: torch.optim.Optimizer) -> int:
    """Return the number of updates by the optimizer's own count, the minimum over parameters; 0 before the first."""
    counts = [state["step"] for state in optimizer.state.values() if "step" in state]
    return int(torch.stack(counts).min()) if counts else 0
