"""The steps of a launched program, merged from what its ranks print: when was a step done by all?

A *print* is a line in which a rank reports its step; it may come every step, or every tenth. Whoever prints step s has
done all steps up to s.

- A step *counts* when every rank that prints steps has printed it or a later one. A rank that printed one step alone,
  where others printed two or more, does not print steps. A rank whose process has ended holds nothing back any more.
- *Restart inside the program* (torchrun's elastic agent, torchft): a rank goes back by more than one print. From then
  on each rank counts again with its next print, so ranks may go back one after the other. What was counted at that
  step or later is undone. A step that is printed again, or one print late, as where several processes share an output,
  says nothing new.
- A second line about the same step may tell its train_loss; the step's time is that of the first.

Pure, and the same for a run that goes on (:meth:`ProgressMerge.take`, record by record) and one that has ended.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from testbed.core.records.progress_record import ProgressRecord
from testbed.core.records.rank_log import RankLog

__all__ = ["CountedStep", "ProgressMerge", "merged", "printing_ranks"]


@dataclass(frozen=True)
class CountedStep:
    """Every printing rank had done ``step`` at ``t``.

    Attributes:
        attempt: 1, and one more after each restart inside the program.
        steps: how many steps since the one counted before in this attempt; 1 for the first one.
        first: whether it is the first one of its attempt, so that nothing tells when its steps began.
        tokens_per_step: of the whole job, between the two latest prints; None: not told.
        train_loss: mean of what the ranks printed last; None: not told.
    """

    step: int
    t: float
    attempt: int
    steps: int
    first: bool
    tokens_per_step: float | None = None
    train_loss: float | None = None


@dataclass
class _Rank:
    """What one rank has printed: ``step`` is None until it has printed since the last restart."""

    step: int | None = None
    late: int | None = None
    """The step that it had printed before: a line that goes back to it or behind it, but not further, is a late one."""
    distinct: int = 0
    tokens_per_step: float | None = None
    train_loss: float | None = None


@dataclass
class ProgressMerge:
    """Merges the records of all ranks, given in the order of time.

    ``printers``: the ranks that print steps, where that is known; else it follows from what was printed so far.
    """

    printers: Collection[int] | None = None
    attempt: int = 1
    step: int | None = None
    """The latest step that counts in this attempt; None before the first."""
    first_printed: dict[int, int] = field(default_factory=dict)
    """By attempt, the least step that a rank began to print with."""
    furthest: dict[int, int] = field(default_factory=dict)
    """By attempt, the greatest step that any rank printed."""
    _ranks: dict[int, _Rank] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)

    def take(self, rank: int, record: ProgressRecord) -> CountedStep | None:
        """Take one record; return the step that counts now, if that is a later one than before."""
        if self.printers is not None and rank not in self.printers:
            return None
        own = self._ranks.setdefault(rank, _Rank())
        step, before = record.step, own.step
        if before is not None and step <= before:
            if own.late is not None and step >= own.late:
                if step == before and record.train_loss is not None:
                    own.train_loss = record.train_loss
                return None
            self._restart()
            own, before = self._ranks[rank], None
        # Since when the tokens of a rank's first line count is not known.
        timed = before is not None and record.tokens is not None
        own.tokens_per_step = (record.tokens or 0.0) / (step - (before or 0)) if timed else None
        own.train_loss = record.train_loss if record.train_loss is not None else own.train_loss
        own.late, own.step = step if before is None else before, step
        own.distinct += 1
        if before is None:
            self.first_printed[self.attempt] = min(step, self.first_printed.get(self.attempt, step))
        self.furthest[self.attempt] = max(step, self.furthest.get(self.attempt, step))
        if self.printers is not None and before is not None and self.step is not None and before > self.step:
            return None  # it was ahead already, and others hold it back
        return self._counted(record.t)

    def gone(self, rank: int, t: float) -> CountedStep | None:
        """Note that a rank's process ended at ``t``; return the step that counts now that it holds nothing back."""
        self._gone.add(rank)
        return self._counted(t)

    def _restart(self) -> None:
        self.attempt += 1
        self.step = None
        for own in self._ranks.values():
            own.step = own.late = None

    def _counted(self, t: float) -> CountedStep | None:
        present = [record for rank, record in self._ranks.items() if self._counts(rank) and rank not in self._gone]
        steps = [printer.step for printer in present if printer.step is not None]
        missing = self.printers is not None and any(
            rank not in self._ranks for rank in self.printers if rank not in self._gone
        )
        if missing or not steps or len(steps) < len(present):
            return None
        step = min(steps)
        if self.step is not None and step <= self.step:
            return None
        before, self.step = self.step, step
        rates = [printer.tokens_per_step for printer in present if printer.tokens_per_step is not None]
        losses = [printer.train_loss for printer in present if printer.train_loss is not None]
        return CountedStep(
            step=step,
            t=t,
            attempt=self.attempt,
            steps=1 if before is None else step - before,
            first=before is None,
            tokens_per_step=rates[0] if rates else None,
            train_loss=statistics.fmean(losses) if losses else None,
        )

    def _counts(self, rank: int) -> bool:
        if self.printers is not None:
            return rank in self.printers
        most = max((record.distinct for record in self._ranks.values()), default=0)
        return self._ranks[rank].distinct >= min(2, most)


def printing_ranks(logs: Iterable[RankLog]) -> frozenset[int]:
    """Return the ranks that print steps: with two different ones, or with one if no rank printed more."""
    distinct = {log.rank: len({record.step for record in log.progress}) for log in logs}
    least = min(2, max(distinct.values(), default=0))
    return frozenset(rank for rank, count in distinct.items() if 0 < least <= count)


def merged(logs: Sequence[RankLog], ended_t: Mapping[int, float]) -> tuple[ProgressMerge, tuple[CountedStep, ...]]:
    """Merge all records of a run; ``ended_t`` is when the process of each rank ended, where that is known."""
    merge = ProgressMerge(printing_ranks(logs))
    lines: list[tuple[float, int, ProgressRecord | None]] = [
        (record.t, log.rank, record) for log in logs for record in _with_losses(log.progress)
    ]
    last_t = max((t for t, _, _ in lines), default=-math.inf)
    # A rank that ended while others went on printing.
    lines += [(t, rank, None) for rank, t in ended_t.items() if rank in (merge.printers or ()) and t < last_t]
    lines.sort(key=lambda line: line[0])
    counted = (merge.gone(rank, t) if record is None else merge.take(rank, record) for t, rank, record in lines)
    return merge, tuple(record for record in counted if record is not None)


def _with_losses(records: Sequence[ProgressRecord]) -> Iterator[ProgressRecord]:
    """Yield the first of several records about one step, with the last train_loss that they tell."""
    for _, same_step in itertools.groupby(records, key=lambda record: record.step):
        first, *again = same_step
        losses = [record.train_loss for record in again if record.train_loss is not None]
        yield replace(first, train_loss=losses[-1]) if losses else first
