"""Was the training right? Four checkers, in the manner of Jepsen, on what the ranks recorded of themselves.

Each operation is tagged with attempt (from 1), process group and sequence. Each checker has a verdict true, false or
unknown (None), never true on missing data:

- **sums**: what came out of each operation is what it must be (``sums.py``).
- **hangs**: no operation took longer than its bound, which the agents chose (half of the process group's timeout).
- **parameters**: all ranks train a step on the same parameters, and an attempt begins with those that the previous
  attempt had after that step.
- **updates**: each optimizer step counts one, and changes the parameters; steps of outer optimizers are right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from testbed.core.checkers.codecs import outer_steps
from testbed.core.checkers.finding import Checker, Finding, conclude, named
from testbed.core.checkers.hangs import hangs
from testbed.core.checkers.sums import odd_ones, sums
from testbed.core.records.check_record import CheckLog, Grouped

__all__ = ["Checked", "check"]


@dataclass(frozen=True)
class Checked:
    """``checkers``: sums, hangs, parameters, updates. Empty where no rank recorded anything."""

    checkers: tuple[Checker, ...] = ()

    @property
    def holds(self) -> bool | None:
        verdicts = [each.holds for each in self.checkers]
        return False if False in verdicts else None if None in verdicts or not verdicts else True

    def metrics(self) -> dict[str, float | None]:
        """Return the metrics by the names of ``core.experiment.expect.METRICS``."""
        names = {"sums": "wrong_sums", "hangs": "hangs", "parameters": "stale_parameters", "updates": "lost_updates"}
        found = {each.id: each.metric for each in self.checkers}
        return {metric: found.get(checker) for checker, metric in names.items()}


def check(logs: Sequence[CheckLog], longest_gap: int = 1) -> Checked:
    """Run all four checkers on the records of all ranks of a job, over all its attempts.

    ``longest_gap``: the most steps between two exchanges of a pair of ranks (``Twin.longest_gap``).
    """
    if not any(log.began or log.steps for log in logs):
        return Checked()
    records = Grouped.of(logs, longest_gap)
    return Checked((sums(records), hangs(records), _parameters(records), _updates(records)))


def _parameters(records: Grouped) -> Checker:
    findings: list[Finding] = []
    compared = 0
    after: dict[int, str] = {}
    """step -> the parameters that most ranks had after it, in the latest attempt so far."""
    known: dict[str, int] = {}
    for attempt in sorted({*records.began, *(of for of, _ in records.steps)}):
        starts = records.began.get(attempt, {})
        first = min((start.step for start in starts.values()), default=0)
        if first in after:
            compared += 1
            other = [rank for rank, start in starts.items() if start.parameters != after[first]]
            if other:
                description = (
                    f"attempt {attempt} began on {named(other)} with parameters other than those after this step"
                )
                findings.append(Finding(attempt, first, None, tuple(sorted(other)), description))
        for (of, step), ranks in records.steps.items():
            if of != attempt:
                continue
            trained_on = {rank: each.trained_on for rank, each in ranks.items() if each.trained_on}
            became = {rank: each.became for rank, each in ranks.items() if each.became}
            compared += len(trained_on) > 1 or records.world_size == 1
            if odd := odd_ones(trained_on):
                description = f"{named(odd)} trained on other parameters than {named({*trained_on} - {*odd})}"
                ages = {known[trained_on[rank]] for rank in odd if trained_on[rank] in known}
                if len(ages) == 1:
                    description += f", namely those after step {min(ages)}"
                findings.append(Finding(attempt, step, None, odd, description))
            elif odd := odd_ones(became):
                description = f"the optimizer of {named(odd)} computed other parameters from the same ones"
                findings.append(Finding(attempt, step, None, odd, description))
            for value in trained_on.values():
                known.setdefault(value, step - 1)
            for value in became.values():
                known.setdefault(value, step)
            if became:
                after[step] = Counter(became.values()).most_common(1)[0][0]
    looked_at = f"fingerprints of {records.world_size} ranks compared at {compared} steps"
    undecided = "" if compared else "no two ranks recorded fingerprints of the same step"
    return conclude("parameters", records, looked_at, findings, len(findings), undecided)


def _updates(records: Grouped) -> Checker:
    lost: dict[tuple[int, int, str], list[int]] = {}
    counted = 0
    before: dict[tuple[int, int], tuple[int, int]] = {}
    """(attempt, rank) -> the last step before, and the optimizer's count then."""
    for attempt, starts in records.began.items():
        for rank, start in starts.items():
            before[attempt, rank] = start.step, start.optimizer_steps
            if start.optimizer_steps != start.step:
                description = (
                    f"attempt {attempt} began after this step with an optimizer count of {start.optimizer_steps}"
                )
                lost.setdefault((attempt, start.step, description), []).append(rank)
    for (attempt, step), ranks in records.steps.items():
        for rank, each in ranks.items():
            counted += 1
            last, count = before.get((attempt, rank), (step - 1, each.optimizer_steps - 1))
            before[attempt, rank] = step, each.optimizer_steps
            if each.optimizer_steps - count != step - last:
                description = (
                    f"the optimizer counts {each.optimizer_steps} steps after it and {count} after step {last}"
                )
                lost.setdefault((attempt, step, description), []).append(rank)
            elif each.trained_on and each.trained_on == each.became:
                lost.setdefault((attempt, step, "the step did not change the parameters"), []).append(rank)
    findings = [
        Finding(attempt, step, None, tuple(sorted(ranks)), f"{named(ranks)}: {description}")
        for (attempt, step, description), ranks in lost.items()
    ]
    outer = outer_steps(records)
    findings += outer.findings
    looked_at = f"{counted} optimizer steps of {records.world_size} ranks counted"
    looked_at += f"; {outer.looked_at}" if outer.looked_at else ""
    undecided = "" if counted else "no optimizer step was recorded"
    return conclude(
        "updates", records, looked_at, findings, sum(map(len, lost.values())) + len(outer.findings), undecided
    )
