"""Was the training right? Four checkers, in the manner of Jepsen, on what the ranks recorded of themselves.

Each collective is tagged with attempt (from 1), step and sequence (the order in which a rank entered them). Each
checker has a verdict true, false or unknown (None), never true on missing data:

- **sums**: the result of a collective is the same on all ranks, by its CRC-32; and for the recorded elements it is the
  sum of the inputs, recomputed here without rounding (``math.fsum``). The first test finds a wrong sum on some ranks,
  at any element; the second one finds a wrong sum on all of them, at the recorded elements.
- **hangs**: no collective took longer than its bound, which the agents chose (half of the process group's timeout).
- **parameters**: all ranks train a step on the same parameters, and an attempt begins with those that the previous
  attempt had after that step.
- **updates**: each optimizer step counts one, and changes the parameters.

The n - 1 additions of n float32 numbers, in any order and grouping, are off by at most gamma(n-1) times the sum of
their absolute values, gamma(k) = k u / (1 - k u), u = 2**-24 (Higham, Accuracy and Stability of Numerical Algorithms,
2nd ed., (4.4)); where the processor flushes subnormal numbers to zero, by less than 2**-126 more for each input and
each addition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from testbed.core.checkers.finding import Checker, Finding, conclude, named
from testbed.core.checkers.hangs import hangs
from testbed.core.records.check_record import CheckLog, Grouped, Sample, Tag

__all__ = ["Checked", "check", "summation_bound"]

_U = 2.0**-24
"""Unit roundoff of float32."""

_SMALLEST = 2.0**-126
"""Smallest normal float32."""

_LARGEST = (2 - 2.0**-23) * 2.0**127
"""Largest float32."""


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


def summation_bound(inputs: Sequence[float]) -> float:
    """Return the largest error of a float32 sum of ``inputs`` (each a float32), in any order of additions."""
    additions = len(inputs) - 1
    if additions < 1:
        return 0.0
    gamma = additions * _U / (1 - additions * _U)
    return gamma * math.fsum(map(abs, inputs)) + (additions + len(inputs)) * _SMALLEST


def check(logs: Sequence[CheckLog]) -> Checked:
    """Run all four checkers on the records of all ranks of a job, over all its attempts."""
    if not any(log.began or log.steps for log in logs):
        return Checked()
    records = Grouped.of(logs)
    return Checked((_sums(records), hangs(records), _parameters(records), _updates(records)))


def _sums(records: Grouped) -> Checker:
    findings: list[Finding] = []
    compared: list[Tag] = []
    for (attempt, step), ranks in records.steps.items():
        for index in range(max(len(each.collectives) for each in ranks.values())):
            results = {
                rank: (each.collectives[index].elements, each.collectives[index].crc32)
                if index < len(each.collectives)
                else (0, "")
                for rank, each in ranks.items()
            }
            compared.append((attempt, step, index))
            if odd := _odd(results):
                description = f"the result on {named(odd)} differs from the result on {named({*results} - {*odd})}"
                findings.append(Finding(attempt, step, index, odd, description))
    whole = {
        tag: samples
        for tag, samples in records.samples.items()
        if len(samples) == records.world_size and len({each.at for each in samples.values()}) == 1
    }
    findings += [found for tag, samples in whole.items() if (found := _added_again(tag, samples))]
    elements = sum(len(next(iter(samples.values())).at) for samples in whole.values())
    looked_at = (
        f"{len(compared)} collective{'' if len(compared) == 1 else 's'} compared over {records.world_size} ranks;"
        f" {elements} elements of {len(whole)} of them recomputed"
    )
    wrong = {(it.attempt, it.step, it.sequence) for it in findings}
    return conclude("sums", records, looked_at, findings, len(wrong), _unsampled(compared, whole))


def _unsampled(compared: Sequence[Tag], whole: Container[Tag]) -> str:
    """Return which elements should have been recorded and were not; a rank that dies may miss those of an attempt's
    last step."""
    last = {attempt: step for attempt, step, _ in compared}
    for attempt, step, index in compared:
        if (attempt, step, index) not in whole and step < last[attempt]:
            return f"not all ranks recorded elements of step {step}, collective {index}, in attempt {attempt}"
    return "" if any(tag in whole for tag in compared) else "no elements to recompute were recorded"


def _added_again(tag: Tag, samples: Mapping[int, Sample]) -> Finding | None:
    """Return a finding unless the recorded elements are the sums of all ranks' inputs."""
    ranks = sorted(samples)
    wrong: list[tuple[int, tuple[float, ...], float]] = []
    blamed: set[int] = set()
    at = samples[ranks[0]].at
    for index in range(len(at)):
        inputs = tuple(samples[rank].inputs[index] for rank in ranks)
        bad = [rank for rank in ranks if not _is_sum(samples[rank].outputs[index], inputs)]
        if bad:
            blamed.update(bad)
            wrong.append((at[index], inputs, samples[bad[0]].outputs[index]))
    if not wrong:
        return None
    position, inputs, output = wrong[0]
    description = (
        f"the sum is wrong on {named(blamed)} in {len(wrong)} of {len(at)} elements checked: element {position},"
        f" expected {_exact(inputs):.9g}, got {output:.9g}"
    )
    for index, rank in enumerate(ranks):
        if all(_is_sum(got, put[:index] + put[index + 1 :], put) for _, put, got in wrong):
            description += f", as if the input of rank {rank} were missing"
            break
    return Finding(*tag, tuple(sorted(blamed)), description)


def _exact(inputs: Sequence[float]) -> float:
    try:
        return math.fsum(inputs)
    except (OverflowError, ValueError):  # infinities of both signs, or beyond float64: not a number
        return math.nan


def _is_sum(output: float, inputs: Sequence[float], bound_of: Sequence[float] = ()) -> bool:
    """Whether the output is within the bound of the additions of ``bound_of``, by default of ``inputs``."""
    exact = _exact(inputs)
    if not math.isfinite(exact):
        return not math.isfinite(output)
    bound = summation_bound(bound_of or inputs)
    if not math.isfinite(output):
        return math.fsum(map(abs, inputs)) + bound >= _LARGEST  # an intermediate sum may have overflowed
    return abs(output - exact) <= bound


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
            if odd := _odd(trained_on):
                description = f"{named(odd)} trained on other parameters than {named({*trained_on} - {*odd})}"
                ages = {known[trained_on[rank]] for rank in odd if trained_on[rank] in known}
                if len(ages) == 1:
                    description += f", namely those after step {min(ages)}"
                findings.append(Finding(attempt, step, None, odd, description))
            elif odd := _odd(became):
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
    looked_at = f"{counted} optimizer steps of {records.world_size} ranks counted"
    undecided = "" if counted else "no optimizer step was recorded"
    return conclude("updates", records, looked_at, findings, sum(map(len, lost.values())), undecided)


def _odd(values: Mapping[int, object]) -> tuple[int, ...]:
    """Return the ranks whose value is not the most frequent one (in a tie, the lowest rank's); empty if all agree."""
    counts = Counter(values[rank] for rank in sorted(values))
    if len(counts) < 2:
        return ()
    usual = counts.most_common(1)[0][0]  # of equally frequent ones, the first
    return tuple(sorted(rank for rank, value in values.items() if value != usual))
