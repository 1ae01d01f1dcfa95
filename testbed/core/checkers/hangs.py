"""Hangs: collectives that took longer than their bound, and which rank waited for which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.core.checkers.finding import Checker, Finding, conclude, named
from testbed.core.records.check_record import Grouped, Tag

__all__ = ["hangs"]


def hangs(records: Grouped) -> Checker:
    findings: dict[tuple[int, int], Finding] = {}
    seen = 0
    for tag, entries in sorted(_entries(records).items()):
        seen += 1
        attempt, step, _ = tag
        bound = min((start.hang_s for start in records.began.get(attempt, {}).values()), default=math.inf)
        # The next collective of a step waits in the queue behind it: that is the same hang.
        if (attempt, step) not in findings and any(entry.lasted_s > bound for entry in entries.values()):
            findings[attempt, step] = _hang(records, tag, entries)
    bounds = {start.hang_s for starts in records.began.values() for start in starts.values()}
    looked_at = f"{seen} collectives, bound {' and '.join(f'{each:g} s' for each in sorted(bounds))}"
    undecided = "" if seen else "no collective was entered"
    return conclude("hangs", records, looked_at, list(findings.values()), len(findings), undecided)


@dataclass(frozen=True)
class _Entry:
    """``until_t``: when it ended, or when the rank was last seen in it."""

    began_t: float
    until_t: float
    ended: bool

    @property
    def lasted_s(self) -> float:
        return self.until_t - self.began_t


def _entries(records: Grouped) -> dict[Tag, dict[int, _Entry]]:
    """Return collective -> rank -> when it was in it."""
    entries: dict[Tag, dict[int, _Entry]] = {}
    for rank, waits in records.waits.items():
        for wait in waits:
            if wait.sequence is not None:
                tag = (wait.attempt, wait.step, wait.sequence)
                entries.setdefault(tag, {})[rank] = _Entry(wait.since_t, wait.t, ended=False)
    for (attempt, step), ranks in records.steps.items():
        for rank, each in ranks.items():
            for index, one in enumerate(each.collectives):
                entries.setdefault((attempt, step, index), {})[rank] = _Entry(one.began_t, one.ended_t, ended=True)
    return entries


def _hang(records: Grouped, tag: Tag, entries: Mapping[int, _Entry]) -> Finding:
    """Return the finding: which rank waited for which."""
    began_t = min(entry.began_t for entry in entries.values())
    until_t = max(entry.until_t for entry in entries.values())
    lasted_s = until_t - began_t
    took = f"{lasted_s:.1f} s" if any(entry.ended for entry in entries.values()) else f"more than {lasted_s:.1f} s"
    absent = [rank for rank in records.ranks if rank not in entries]
    late = [rank for rank, entry in entries.items() if entry.began_t - began_t > lasted_s / 2]
    held_s = {rank: _held_s(records, rank, began_t, until_t) for rank in records.ranks}
    held = [rank for rank in records.ranks if held_s[rank] > lasted_s / 2]
    if absent:
        blamed = absent
        why = "; ".join(_whereabouts(records, rank, tag) for rank in absent)
        description = f"{named(entries)} waited {took} for {named(absent)}: {why}"
    elif late:
        blamed = late
        after_s = max(entries[rank].began_t for rank in late) - began_t
        description = (
            f"{named({*entries} - {*late})} waited {took} for {named(late)}, which entered it {after_s:.1f} s late"
        )
    elif held:
        blamed = held
        description = f"all ranks were in it for {took}"
    else:
        blamed = sorted(entries)
        description = f"all ranks were in it for {took}: the data in flight between them did not arrive"
    if held:
        description += (
            f"; the process of {named(held)} did not run for {max(held_s[rank] for rank in held):.1f} s of it"
        )
    return Finding(*tag, tuple(sorted(blamed)), description)


def _held_s(records: Grouped, rank: int, began_t: float, until_t: float) -> float:
    """Return how long of that time the process of ``rank`` did not run."""
    pauses = records.held.get(rank, ())
    return sum(max(0.0, min(pause.t, until_t) - max(pause.since_t, began_t)) for pause in pauses)


def _whereabouts(records: Grouped, rank: int, tag: Tag) -> str:
    """Describe a rank that did not enter, from its last records."""
    attempt, step, _ = tag
    waits = [wait for wait in records.waits.get(rank, ()) if wait.attempt == attempt and wait.step <= step]
    if waits:
        last = waits[-1]
        where = "no collective" if last.sequence is None else f"collective {last.sequence}"
        return f"rank {rank} was in {where} of step {last.step} for at least {last.t - last.since_t:.1f} s"
    done = [number for (of, number), ranks in records.steps.items() if of == attempt and rank in ranks]
    return f"the last record of rank {rank} is the end of step {done[-1]}" if done else f"rank {rank} has no records"
