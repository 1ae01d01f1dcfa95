"""The result of a checker: its verdict, what it checked, what it found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from testbed.core.json_form import Keywords
from testbed.core.records.check_record import Grouped

__all__ = ["Checker", "CheckerFinding", "conclude", "named"]


@dataclass(frozen=True)
class CheckerFinding:
    """A violation; ``sequence`` is None where it concerns no single operation, ``ranks`` are those it names.

    ``group`` is the process group, or the name of the exchange; empty in records of former versions, and where it
    concerns none.
    """

    attempt: int
    step: int
    sequence: int | None
    """Which operation of its group; null: it concerns none."""
    ranks: tuple[int, ...]
    text: str
    group: str = ""
    """Process group, or name of the exchange; empty: none."""
    fragment: int | None = None


@dataclass(frozen=True)
class Checker:
    """``holds``: None when too little was recorded to decide; ``why`` says what is missing. ``found`` counts in the
    unit of its metric: sums, hangs, steps, updates; ``findings`` are in the order of steps, the first likely the cause
    of the others."""

    id: Annotated[str, Keywords(enum=["sums", "hangs", "parameters", "updates", "exchanges", "served"])]
    holds: bool | None
    """Null: too little was recorded to tell; why says what."""
    looked_at: str
    why: str
    found: int
    """Wrong sums, hangs, steps on other parameters, lost updates, wrong exchanges."""
    findings: tuple[CheckerFinding, ...]
    """The first of them."""

    @property
    def metric(self) -> float | None:
        """The value that an expectation compares. A violation that was found counts, however little else is known."""
        return None if self.holds is None else float(self.found)


_FINDINGS_KEPT = 20


def conclude(
    name: str,
    records: Grouped,
    looked_at: str,
    findings: Sequence[CheckerFinding],
    violation_count: int,
    undecided: str = "",
) -> Checker:
    """Conclude a checker: true only if nothing was found, nothing is missing, and everything could be decided."""
    ordered = sorted(
        findings, key=lambda finding: (finding.attempt, finding.step, finding.sequence or 0, finding.ranks)
    )
    missing = records.incomplete or undecided
    holds = False if violation_count else None if missing else True
    return Checker(name, holds, looked_at, "" if holds else missing, violation_count, tuple(ordered[:_FINDINGS_KEPT]))


def named(ranks: Iterable[int]) -> str:
    listed = sorted(set(ranks))
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"
