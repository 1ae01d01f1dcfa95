"""What a checker says: its verdict, what it looked at, what it found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.core.records.check_record import Grouped

__all__ = ["Checker", "Finding", "conclude", "named"]


@dataclass(frozen=True)
class Finding:
    """Something that was wrong; ``sequence`` is None where it is of no one collective, ``ranks`` are those it names."""

    attempt: int
    step: int
    sequence: int | None
    ranks: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Checker:
    """``holds``: None when too little was recorded to tell, ``why`` says what. ``found`` counts as its metric does:
    sums, hangs, steps, updates; ``findings`` are in the order of steps, the first likely the cause of the others."""

    id: str
    holds: bool | None
    looked_at: str
    why: str
    found: int
    findings: tuple[Finding, ...]

    @property
    def metric(self) -> float | None:
        """What an expectation compares. A fault that was found is known, however little else is."""
        return None if self.holds is None else float(self.found)


_FINDINGS_KEPT = 20


def conclude(
    name: str, records: Grouped, looked_at: str, findings: Sequence[Finding], found: int, untold: str = ""
) -> Checker:
    """True only if nothing was found, nothing is missing, and there is nothing that could not be told."""
    ordered = sorted(findings, key=lambda it: (it.attempt, it.step, it.sequence or 0, it.ranks))
    missing = records.incomplete or untold
    holds = False if found else None if missing else True
    return Checker(name, holds, looked_at, "" if holds else missing, found, tuple(ordered[:_FINDINGS_KEPT]))


def named(ranks: Iterable[int]) -> str:
    listed = sorted(set(ranks))
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"
