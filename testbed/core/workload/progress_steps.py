"""Turn what a program says of its progress into step records of one rank: steps counted, tokens as differences.

A record is written for every reading that has a step. A second reading of the same step, as of a progress bar that is
drawn again, is written only if it says something new: the first one of a step has its time, the last one its loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from testbed.core.workload.progress_patterns import RESERVED

__all__ = ["StepCounter"]

_LARGEST: Final = 1e15
"""A greater step or count of tokens is damage."""
_OWN: Final = frozenset(
    {
        "epoch_step",
        "epoch_steps",
        "sequences_per_step",
        "step",
        "tokens",
        "tokens_per_sequence",
        "tokens_per_step",
        "tokens_seen",
    }
)
"""What is read here; every other number of a reading is recorded as it is."""


class StepCounter:
    """The steps of one rank so far. ``tokens_per_step``: of the whole job, as the user says; None: the program's word.

    :attr:`step` is the latest step; None before the first.
    """

    def __init__(self, tokens_per_step: float | None = None) -> None:
        self.step: int | None = None
        self._told, self._announced = tokens_per_step, dict[str, float]()
        self._held: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._seen: float | None = None
        self._epoch: float | None = None
        self._before_epoch = self._in_epoch = 0.0

    def take(self, t: float, values: Mapping[str, float]) -> dict[str, Any] | None:
        """Return the fields of a step record for a reading at ``t`` (seconds, CLOCK_MONOTONIC); None if it has none."""
        # A loss of NaN, as of training that diverges, is no number that records can hold.
        values = {name: value for name, value in values.items() if math.isfinite(value)}
        for name in ("tokens_per_step", "sequences_per_step", "tokens_per_sequence"):
            if name in values:
                self._announced[name] = values[name]
        others = {name: value for name, value in values.items() if name not in _OWN and name not in RESERVED}
        self._held |= others | {name: values[name] for name in ("tokens", "tokens_seen") if name in values}
        step = self._step(values)
        if step is None:
            return None
        held, self._held = self._held, {}
        figures = {name: value for name, value in held.items() if name not in _OWN}
        if step == self.step:
            if all(self._written.get(name) == value for name, value in figures.items()):
                self._held = {name: value for name, value in held.items() if name in _OWN}
                return None
            tokens = None
            self._held = {name: value for name, value in held.items() if name == "tokens_seen"}
        else:
            tokens = self._tokens(step, held)
            self._written = {}
        self._written |= figures
        self.step = step
        loss = figures.pop("train_loss", None)
        return {"kind": "progress", "t": t, "step": step, "tokens": tokens, "train_loss": loss, **figures}

    def _step(self, values: Mapping[str, float]) -> int | None:
        """Return the step over all epochs; None if there is none, or it is not a whole number from 0."""
        if "step" in values:
            step = values["step"]
        elif "epoch_step" in values:
            step = self._over_epochs(values.get("epoch", 0.0), values["epoch_step"], values.get("epoch_steps"))
        else:
            return None
        return int(step) if 0 <= step <= _LARGEST and step == int(step) else None

    def _over_epochs(self, epoch: float, step: float, length: float | None) -> float:
        if length is not None:
            self._epoch, self._before_epoch, self._in_epoch = epoch, epoch * length, step
            return epoch * length + step
        if self._epoch is not None and epoch != self._epoch:
            self._before_epoch += self._in_epoch
        self._epoch, self._in_epoch = epoch, step
        return self._before_epoch + step

    def _tokens(self, step: int, held: Mapping[str, float]) -> int | None:
        """Return the tokens of the whole job since this rank's previous record; None where that is unknown."""
        if "tokens_seen" in held:
            before, self._seen = self._seen, held["tokens_seen"]
            return _whole(self._seen - before) if before is not None and self._seen >= before else None
        passed = step - self.step if self.step is not None else 0
        if passed <= 0:
            return None  # the first line, or a program that began again
        per_step = held.get("tokens", self._told if self._told is not None else self._per_step())
        return None if per_step is None else _whole(per_step * passed)

    def _per_step(self) -> float | None:
        announced = self._announced
        if "tokens_per_step" in announced:
            return announced["tokens_per_step"]
        if "sequences_per_step" in announced and "tokens_per_sequence" in announced:
            return announced["sequences_per_step"] * announced["tokens_per_sequence"]
        return None


def _whole(tokens: float) -> int | None:
    return round(tokens) if 0 <= tokens <= _LARGEST else None
