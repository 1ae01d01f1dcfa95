"""A step that a launched program reported, as the testbed recorded it in ``ranks/rank-<r>.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.core.fields import Fields, need_number, number

__all__ = ["ProgressRecord"]

_OWN = frozenset({"kind", "t", "step", "tokens", "train_loss", "rank", "attempt"})


@dataclass(frozen=True)
class ProgressRecord:
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
    values: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, fields: Fields) -> ProgressRecord:
        named = {str(key): number(fields, key) for key in fields if key not in _OWN}
        return cls(
            t=need_number(fields, "t"),
            step=int(need_number(fields, "step")),
            tokens=number(fields, "tokens"),
            train_loss=number(fields, "train_loss"),
            values={key: value for key, value in named.items() if value is not None},
        )
