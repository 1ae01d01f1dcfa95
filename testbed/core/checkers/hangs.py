"""Hangs: operations that took longer than their bound, and which rank waited for which.

The bound is half of the process group's timeout, and the longest legal gap: as long as the steps take that one rank may
legally be ahead of another (``Twin.longest_gap``), waiting for it. What failed or never ended has no such excuse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from testbed.core.checkers.finding import Checker, CheckerFinding, conclude, named
from testbed.core.records.check_record import Grouped
from testbed.core.records.operation_record import Done, Tag

__all__ = ["hangs"]


def hangs(records: Grouped) -> Checker:
    findings: dict[tuple[int, int], CheckerFinding] = {}
    entries = _entries(records)
    gaps = {attempt: (records.longest_gap - 1) * records.step_s(attempt) for attempt in records.began}
    for tag, ranks in sorted(
        entries.items(), key=lambda entry_of_group: min(entry.began_t for entry in entry_of_group[1].values())
    ):
        starts = records.began.get(tag.attempt, {})
        bound = min((start.hang_s for start in starts.values()), default=math.inf)
        gap_s = gaps.get(tag.attempt, 0.0)
        step = min(entry.step for entry in ranks.values())
        # The next operation of a step waits in the queue behind it: that is the same hang.
        if (tag.attempt, step) in findings:
            continue
        if any(entry.lasted_s > bound + (gap_s if entry.ended else 0.0) for entry in ranks.values()):
            findings[tag.attempt, step] = _hang(records, tag, step, ranks)
    bounds = {start.hang_s for starts in records.began.values() for start in starts.values()}
    looked_at = f"{len(entries)} collectives, bound {' and '.join(f'{bound_s:g} s' for bound_s in sorted(bounds))}"
    if gap_s := max(gaps.values(), default=0.0):
        looked_at += f", and {gap_s:.3g} s for {records.longest_gap} steps between exchanges"
    undecided = "" if entries else "no collective was entered"
    return conclude("hangs", records, looked_at, list(findings.values()), len(findings), undecided)


@dataclass(frozen=True)
class _Entry:
    """``until_t``: when it ended, or when the rank was last seen in it."""

    began_t: float
    until_t: float
    ended: bool
    step: int
    kind: str

    @property
    def lasted_s(self) -> float:
        return self.until_t - self.began_t


def _entries(records: Grouped) -> dict[Tag, dict[int, _Entry]]:
    """Return operation -> rank -> when it was in it.

    In a message a rank is while it waits for it: receipts are posted long before anything can arrive.
    """
    entries: dict[Tag, dict[int, _Entry]] = {}
    for rank, waits in records.waits.items():
        for wait in waits:
            if wait.tag is not None:
                entry = _Entry(wait.since_t, wait.t, ended=False, step=wait.step, kind=wait.kind)
                entries.setdefault(wait.tag, {})[rank] = entry
    for tag, ranks in records.operations.items():
        for rank, done in ranks.items():
            if done.ended_t is not None and done.kind != "sum":
                began_t = done.began_t
                if done.kind in ("send", "recv"):
                    began_t = done.ended_t - (done.waited_s or 0.0)
                entries.setdefault(tag, {})[rank] = _Entry(began_t, done.ended_t, done.ended, done.step, done.kind)
    return entries


def _hang(records: Grouped, tag: Tag, step: int, entries: Mapping[int, _Entry]) -> CheckerFinding:
    """Return the finding: which rank waited for which."""
    began_t = min(entry.began_t for entry in entries.values())
    until_t = max(entry.until_t for entry in entries.values())
    lasted_s = until_t - began_t
    duration = f"{lasted_s:.1f} s" if any(entry.ended for entry in entries.values()) else f"more than {lasted_s:.1f} s"
    members = tag.channel[:2] if tag.channel else records.members(tag)
    absent = [rank for rank in members if rank not in entries and not (tag.channel and _sent(records, tag, rank))]
    late = [rank for rank, entry in entries.items() if entry.began_t - began_t > lasted_s / 2]
    held_s = {rank: _held_s(records, rank, began_t, until_t) for rank in members}
    held = [rank for rank in members if held_s[rank] > lasted_s / 2]
    if absent:
        blamed = absent
        why = "; ".join(_whereabouts(records, rank, tag, step) for rank in absent)
        description = f"{named(entries)} waited {duration} for {named(absent)}: {why}"
    elif late:
        blamed = late
        after_s = max(entries[rank].began_t for rank in late) - began_t
        description = (
            f"{named({*entries} - {*late})} waited {duration} for {named(late)}, which entered it {after_s:.1f} s late"
        )
    elif held:
        blamed = held
        description = f"all ranks were in it for {duration}"
    else:
        blamed = sorted(entries)
        description = f"all ranks were in it for {duration}: the data in flight between them did not arrive"
    if held:
        description += (
            f"; the process of {named(held)} did not run for {max(held_s[rank] for rank in held):.1f} s of it"
        )
    where = f"{next(iter(entries.values())).kind} of {tag.group}: " if tag.group else ""
    return CheckerFinding(tag.attempt, step, tag.sequence, tuple(sorted(blamed)), where + description, tag.group)


def _sent(records: Grouped, tag: Tag, rank: int) -> Done | None:
    """Return the record of a rank that began to send or receive a message, whether it waited for it or not."""
    return records.operations.get(tag, {}).get(rank)


def _held_s(records: Grouped, rank: int, began_t: float, until_t: float) -> float:
    """Return how long of that time the process of ``rank`` did not run."""
    pauses = records.held.get(rank, ())
    return sum(max(0.0, min(pause.t, until_t) - max(pause.since_t, began_t)) for pause in pauses)


def _whereabouts(records: Grouped, rank: int, tag: Tag, step: int) -> str:
    """Describe a rank that did not enter, from its last records."""
    attempt = tag.attempt
    waits = [wait for wait in records.waits.get(rank, ()) if wait.attempt == attempt and wait.step <= step]
    if waits:
        last = waits[-1]
        where = "no collective" if last.tag is None else f"collective {last.tag.sequence}"
        where += f" of {last.tag.group}," if last.tag and last.tag.group else ""
        return f"rank {rank} was in {where} of step {last.step} for at least {last.t - last.since_t:.1f} s"
    done = [number for (of, number), ranks in records.steps.items() if of == attempt and rank in ranks]
    return f"the last record of rank {rank} is the end of step {done[-1]}" if done else f"rank {rank} has no records"
