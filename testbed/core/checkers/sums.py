"""Was what came out of each operation what it must be? Sums are added again; what was received is what was sent.

- The result of an all_reduce, and a sum of messages, is the same on all ranks, by its CRC-32. That finds a wrong result
  on some ranks, at any element.
- Recorded elements of every reduction are the sums of the inputs, recomputed here without rounding (``math.fsum``); a
  sum of messages is the floating-point sum in the order of addition, bit for bit. That finds a wrong sum on all ranks
  alike, at the recorded elements.
- What a rank received in an all_gather, all_to_all, broadcast, gather, scatter or message is what the other sent, by
  the CRC-32 of each part: at any element, for each (group, source, sequence).

The n - 1 additions of n floating-point numbers, in any order and grouping, are off by at most gamma(n-1) times the sum
of their absolute values, gamma(k) = k u / (1 - k u), u = 2**-24 for float32 (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., (4.4)); where the processor flushes subnormal numbers to zero, by less than 2**-126 more
for each input and each addition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.checkers.codecs import Coded, codecs
from testbed.core.checkers.finding import Checker, CheckerFinding, conclude, named
from testbed.core.checkers.rounding import in_order, same
from testbed.core.checkers.weighed_means import weighed_means
from testbed.core.records.check_record import Grouped
from testbed.core.records.operation_record import Done, Tag
from testbed.core.training.twin import Twin

__all__ = ["odd_ones", "summation_bound", "sums"]


@dataclass(frozen=True)
class _Precision:
    """Unit roundoff, smallest normal and largest number of a type."""

    unit: float
    smallest: float
    largest: float


_FLOAT32 = _Precision(2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127)
_PRECISIONS = {
    "float32": _FLOAT32,
    "": _FLOAT32,
    "float64": _Precision(2.0**-53, 2.0**-1022, float.fromhex("0x1.fffffffffffffp+1023")),
    "bfloat16": _Precision(2.0**-8, 2.0**-126, (2 - 2.0**-7) * 2.0**127),
    "float16": _Precision(2.0**-11, 2.0**-14, 65504.0),
}
_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8, "uint8": 8}

_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
_BY_DESTINATION = ("all_to_all", "scatter")


def summation_bound(inputs: Sequence[float], precision: _Precision = _FLOAT32) -> float:
    """Return the largest error of a sum of ``inputs`` (each of that precision), in any order of additions."""
    additions = len(inputs) - 1
    if additions < 1:
        return 0.0
    gamma = additions * precision.unit / (1 - additions * precision.unit)
    return gamma * math.fsum(map(abs, inputs)) + (additions + len(inputs)) * precision.smallest


def sums(records: Grouped, twin: Twin | None = None) -> Checker:
    """Return the verdict of the checker ``sums`` on all operations, codecs and weighted means of a job."""
    unequal = _Found(records)
    for tag in sorted(records.operations, key=_order):
        unequal.judge(tag, records.operations[tag])
    coded = codecs(records)
    means = weighed_means(records, twin) if twin else Coded()
    findings = [*unequal.findings, *coded.findings, *means.findings]
    wrong = {(finding.attempt, finding.step, finding.group, finding.sequence, finding.fragment) for finding in findings}
    looked_at = "; ".join(subject for subject in (unequal.looked_at(), coded.looked_at, means.looked_at) if subject)
    undecided = unequal.undecided() or coded.undecided or means.undecided
    return conclude("sums", records, looked_at, findings, len(wrong), undecided)


def _order(tag: Tag) -> tuple[object, ...]:
    return (tag.attempt, tag.within, tag.group, tag.ranks, tag.kind, tag.channel or (), tag.sequence)


class _Found:
    def __init__(self, records: Grouped) -> None:
        self._records = records
        self.findings: list[CheckerFinding] = []
        self._compared = self._recomputed = self._elements = self._parts = 0
        self._unsampled = ""
        self._last = {attempt: records.last_step(attempt) for attempt in {tag.attempt for tag in records.operations}}

    def judge(self, tag: Tag, recorded: Mapping[int, Done]) -> None:
        ranks = {rank: done for rank, done in recorded.items() if done.ended}
        if not ranks:
            return
        first = next(iter(ranks.values()))
        if tag.kind == "message":
            self._moved(tag, ranks, (tag.channel or (0, 0, 0))[:2])
            return
        self._compared += 1
        absent = [rank for rank in self._records.members(tag) if rank not in recorded]
        if tag.within:
            absent = [rank for rank in absent if rank in self._records.steps[tag.attempt, tag.within]]
        if absent and (tag.within or all(self._went_on(tag.attempt, first.step, rank) for rank in absent)):
            text = f"{named(absent)} did not carry out operation {_name(tag, first)}, which {named(ranks)} did"
            if tag.within:
                text = f"the result on {named(absent)} differs from the result on {named(ranks)}"
            self._find(tag, first, absent, text)
            return
        if first.kind in ("all_reduce", "sum"):
            results = {rank: (done.byte_count, done.crc32) for rank, done in ranks.items()}
            if odd := odd_ones(results):
                text = f"the result on {named(odd)} differs from the result on {named({*results} - {*odd})}"
                self._find(tag, first, odd, text)
        if first.kind in _REDUCTIONS:
            self._added_again(tag, ranks)
        elif first.kind == "sum":
            self._added_in_order(tag, ranks)
        elif first.kind != "barrier":
            self._moved(tag, ranks, tag.ranks)

    def _went_on(self, attempt: int, step: int, rank: int) -> bool:
        """Whether ``rank`` recorded steps after which it must have taken part in an operation of ``step``."""
        after = step + self._records.longest_gap
        return any(of == attempt and at >= after and rank in ranks for (of, at), ranks in self._records.steps.items())

    def _find(self, tag: Tag, done: Done, ranks: Sequence[int], text: str) -> None:
        where = f"{done.kind} of {tag.group}: " if tag.group else ""
        self.findings.append(
            CheckerFinding(tag.attempt, done.step, tag.sequence, tuple(sorted(ranks)), where + text, tag.group)
        )

    def _miss(self, tag: Tag, done: Done, what: str) -> None:
        # A rank that dies may miss the records of an attempt's last steps.
        if not self._unsampled and done.step <= self._last[tag.attempt] - self._records.longest_gap:
            self._unsampled = f"{what} of step {done.step}, {_name(tag, done)}, in attempt {tag.attempt}"

    # Sums

    def _added_again(self, tag: Tag, ranks: Mapping[int, Done]) -> None:
        """Add the recorded elements of all ranks' inputs again."""
        first = next(iter(ranks.values()))
        if first.byte_count == 0 or not _recomputable(first):
            return
        samples = {rank: done.sample for rank, done in ranks.items() if done.sample and done.sample.inputs}
        common = set.intersection(*(set(sample.at) for sample in samples.values())) if samples else set()
        if len(samples) < len(self._records.members(tag)) or not common:
            self._miss(tag, first, "not all ranks recorded elements")
            return
        self._recomputed += 1
        inputs = {rank: dict(zip(sample.at, sample.inputs, strict=True)) for rank, sample in samples.items()}
        outputs = {rank: dict(zip(sample.outputs_at, sample.outputs, strict=True)) for rank, sample in samples.items()}
        wrong: list[tuple[int, tuple[float, ...], float]] = []
        blamed: set[int] = set()
        checked = 0
        for position in sorted(common):
            put = tuple(inputs[rank][position] for rank in sorted(inputs))
            got = {rank: of[position] for rank, of in outputs.items() if position in of}
            checked += 1
            if bad := [rank for rank, value in sorted(got.items()) if not _is_reduced(value, put, first)]:
                blamed.update(bad)
                wrong.append((position, put, got[bad[0]]))
        self._elements += checked
        if not wrong:
            return
        position, put, value = wrong[0]
        text = (
            f"the sum is wrong on {named(blamed)} in {len(wrong)} of {checked} elements checked: element {position},"
            f" expected {_reduced(put, first):.9g}, got {value:.9g}"
        )
        for index, rank in enumerate(sorted(inputs)):
            if all(_is_reduced(got, put[:index] + put[index + 1 :], first, put) for _, put, got in wrong):
                text += f", as if the input of rank {rank} were missing"
                break
        self._find(tag, first, sorted(blamed), text)

    def _added_in_order(self, tag: Tag, ranks: Mapping[int, Done]) -> None:
        """Add the recorded elements of messages again, in their order."""
        checked = self._elements
        for rank, done in sorted(ranks.items()):
            sample = done.sample
            if sample is None or not sample.parts or done.dtype != "float32":
                continue
            self._elements += len(sample.at)
            for index, got in enumerate(sample.outputs):
                expected = in_order([part[index] for part in sample.parts])
                if not same(expected, got):
                    text = (
                        f"the sum is wrong on rank {rank}: element {sample.at[index]}, expected {expected:.9g},"
                        f" got {got:.9g}"
                    )
                    self._find(tag, done, [rank], text)
                    break
        self._recomputed += self._elements > checked

    # What moves as it is

    def _moved(self, tag: Tag, ranks: Mapping[int, Done], members: Sequence[int]) -> None:
        """Compare each part that was received with the one that was sent."""
        wrong: dict[int, list[int]] = {}
        for rank, done in sorted(ranks.items()):
            sources = (members[0],) if tag.kind == "message" else members
            for source, received in zip(sources, done.received, strict=False):
                if not received:
                    continue
                sender = ranks.get(source)
                sent = sender.sent if sender else ()
                part = members.index(rank) if done.kind in _BY_DESTINATION else 0
                if part >= len(sent):
                    self._miss(tag, done, f"rank {source} did not record what it sent")
                    continue
                self._parts += 1
                if sent[part] != received:
                    wrong.setdefault(source, []).append(rank)
        first = next(iter(ranks.values()))
        for source, receivers in wrong.items():
            text = f"{named(receivers)} received something other than rank {source} sent"
            self._find(tag, first, receivers, text)

    def looked_at(self) -> str:
        text = (
            f"{self._compared} collective{'' if self._compared == 1 else 's'} compared over"
            f" {self._records.world_size} ranks; {self._elements} elements of {self._recomputed} of them recomputed"
        )
        return text + (f"; {self._parts} parts received compared with what was sent" if self._parts else "")

    def undecided(self) -> str:
        if self._unsampled:
            return self._unsampled
        return "" if self._recomputed or self._parts else "no elements to recompute were recorded"


def _name(tag: Tag, done: Done) -> str:
    return f"{done.kind} {tag.sequence} of {tag.group}" if tag.group else f"collective {tag.sequence}"


def _recomputable(done: Done) -> bool:
    if done.dtype in _BITS:
        return done.reduction in ("sum", "max", "min")
    return done.dtype in _PRECISIONS and done.reduction in ("sum", "avg", "max", "min")


def _exact(inputs: Sequence[float]) -> float:
    try:
        return math.fsum(inputs)
    except (OverflowError, ValueError):  # infinities of both signs, or beyond float64: not a number
        return math.nan


def _reduced(inputs: Sequence[float], done: Done) -> float:
    match done.reduction:
        case "max":
            return max(inputs, default=math.nan)
        case "min":
            return min(inputs, default=math.nan)
        case "avg":
            return _exact(inputs) / max(1, len(inputs))
    return sum(inputs) if done.dtype in _BITS else _exact(inputs)


def _is_reduced(output: float, inputs: Sequence[float], done: Done, bound_of: Sequence[float] = ()) -> bool:
    """Whether the output is within the bound of the additions of ``bound_of``, by default of ``inputs``."""
    expected = _reduced(inputs, done)
    if done.reduction in ("max", "min"):
        return same(expected, output)
    if bits := _BITS.get(done.dtype):
        return bool((int(output) - int(expected)) % (1 << bits) == 0)
    precision = _PRECISIONS[done.dtype]
    if not math.isfinite(expected):
        return not math.isfinite(output)
    bound = summation_bound(bound_of or inputs, precision)
    if not math.isfinite(output):
        # An intermediate sum may have overflowed.
        return math.fsum(map(abs, inputs)) + bound >= precision.largest
    if done.reduction == "avg":
        count = len(bound_of or inputs)
        expected = _exact(inputs) / count
        bound = bound / count * (1 + precision.unit) + precision.unit * abs(expected) + precision.smallest
    return abs(output - expected) <= bound


def odd_ones(values: Mapping[int, object]) -> tuple[int, ...]:
    """Return the ranks whose value is not the most frequent one (in a tie, the lowest rank's); empty if all agree."""
    counts = Counter(values[rank] for rank in sorted(values))
    if len(counts) < 2:
        return ()
    usual = counts.most_common(1)[0][0]  # of equally frequent ones, the first
    return tuple(sorted(rank for rank, value in values.items() if value != usual))
