"""A step that a launched program reported, as the testbed recorded it in ``ranks/rank-<r>.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from testbed.core.fields import Fields, number
from testbed.core.json_record import Derived, JsonRecord

__all__ = ["ProgressRecord"]

_OWN = frozenset({"kind", "t", "step", "tokens", "train_loss", "rank", "attempt"})


def _own_values(fields: Fields, _: str) -> dict[str, float]:
    values = {str(name): number(fields, name) for name in fields if name not in _OWN}
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class ProgressRecord(JsonRecord):
    """One rank had ended ``step`` at ``t``, in seconds of CLOCK_MONOTONIC: when its line was read, or the time that the
    program's file gives, brought onto that clock.

    Attributes:
        tokens: those of the whole job since this rank's previous record; None: not told.
        train_loss: as printed; None: not told.
        values: what else the line tells, by the name of its group, such as ``epoch``.
    """

    t: float
    step: int
    tokens: float | None = None
    train_loss: float | None = None
    values: Annotated[Mapping[str, float], Derived(_own_values)] = field(default_factory=dict)
