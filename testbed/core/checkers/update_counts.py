"""Does each step count what the strategy's twin says, in the inner optimizer and in the outer parameters?

The inner optimizer has updated the parameters as often as :meth:`~testbed.core.training.twin.Twin.updates` says, and an
update changes them. The outer parameters have as many exchanges as ``outer_updates`` says: one that was applied twice,
or not at all, on one rank or on all alike, is one too many or too few.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.core.checkers.codecs import outer_steps
from testbed.core.checkers.equality import fingerprints, fingerprints_before, trained_names
from testbed.core.checkers.finding import Checker, CheckerFinding, conclude, named
from testbed.core.records.check_record import CheckedStep, Grouped
from testbed.core.training.twin import Twin

__all__ = ["counts"]


def counts(records: Grouped, twin: Twin) -> Checker:
    """Judge the counts of all ranks, over all attempts."""
    judge = _Judge(twin)
    for attempt, starts in records.began.items():
        for rank, start in starts.items():
            judge.begin(attempt, rank, start.step, start.optimizer_steps, start.outer_version)
    for (attempt, _), ranks in records.steps.items():
        for rank, record in ranks.items():
            judge.step(attempt, rank, record)
    outer = outer_steps(records)
    looked_at = f"{judge.counted} optimizer steps of {records.world_size} ranks counted"
    looked_at += f", {judge.versions} of them with their exchanges" if judge.versions else ""
    looked_at += f"; {outer.looked_at}" if outer.looked_at else ""
    undecided = "" if judge.counted else "no optimizer step was recorded"
    wrong = sum(map(len, judge.lost.values())) + len(outer.findings)
    return conclude("updates", records, looked_at, [*judge.findings(), *outer.findings], wrong, undecided)


@dataclass
class _Judge:
    twin: Twin
    counted: int = 0
    versions: int = 0
    lost: dict[tuple[int, int, str], list[int]] = field(default_factory=dict)
    """(attempt, step, text) -> ranks."""
    before: dict[tuple[int, int], tuple[int, int, int | None]] = field(default_factory=dict)
    """(attempt, rank) -> the last step before, and the counts of updates and of exchanges then."""

    def begin(self, attempt: int, rank: int, step: int, optimizer_steps: int, version: int | None) -> None:
        self.before[attempt, rank] = step, optimizer_steps, version
        expected = self.twin.updates(step, rank)
        if optimizer_steps != expected:
            wanted = "" if expected == step else f", expected {expected}"
            self._lose(
                attempt, step, rank, f"attempt {attempt} began after this step with an optimizer count of"
                f" {optimizer_steps}{wanted}",
            )  # fmt: skip
        if version is not None and self._counts_exchanges and version != self.twin.outer_updates(step):
            text = f"attempt {attempt} began after this step with {version} exchanges in the outer parameters"
            self._lose(attempt, step, rank, f"{text}, expected {self.twin.outer_updates(step)}")

    def step(self, attempt: int, rank: int, record: CheckedStep) -> None:
        self.counted += 1
        step, count, twin = record.step, record.optimizer_steps, self.twin
        last, was, version = self.before.get((attempt, rank), (step - 1, None, None))
        self.before[attempt, rank] = step, count, record.outer_version
        expected = twin.updates(step, rank) - twin.updates(last, rank)
        if was is not None and count - was != expected:
            text = f"the optimizer counts {count} steps after it and {was} after step {last}"
            self._lose(attempt, step, rank, text if expected == step - last else f"{text}, expected {was + expected}")
        elif self._unchanged(record) and twin.updates(step, rank) > twin.updates(step - 1, rank):
            self._lose(attempt, step, rank, "the step did not change the parameters")
        if record.outer_version is None or version is None or not self._counts_exchanges:
            return
        self.versions += 1
        expected = twin.outer_updates(step) - twin.outer_updates(last)
        if record.outer_version - version != expected:
            what = "was" if record.outer_version - version == 1 else "were"
            text = f"{record.outer_version - version} exchange{'' if what == 'was' else 's'} {what} applied after it"
            self._lose(attempt, step, rank, f"{text}, expected {expected}")

    @property
    def _counts_exchanges(self) -> bool:
        """Whether all ranks apply the same exchanges after the same steps."""
        return self.twin.together and self.twin.outer_updates(max(1, self.twin.layout.steps)) > 0

    def _lose(self, attempt: int, step: int, rank: int, text: str) -> None:
        self.lost.setdefault((attempt, step, text), []).append(rank)

    def findings(self) -> list[CheckerFinding]:
        return [
            CheckerFinding(attempt, step, None, tuple(sorted(ranks)), f"{named(ranks)}: {text}")
            for (attempt, step, text), ranks in self.lost.items()
        ]

    @staticmethod
    def _unchanged(record: CheckedStep) -> bool:
        before, after = fingerprints_before(record), fingerprints(record)
        names = trained_names(before)
        return bool(names) and all(before[name] == after.get(name) for name in names)
