"""Are tensors equal where the strategy's twin says so, and does each step begin with what the one before left?

After a step the tensors that :meth:`~testbed.core.training.twin.Twin.equal` names have the same CRC-32 on all of the
ranks that it names: of all ranks, of a site, of those that hold one slice, of a stage. Replicas that train alone differ
between exchanges, which is no finding. Besides, on each rank by itself,

- nothing changes between two steps, nor from a checkpoint to the attempt that begins with it (the lineage is a chain);
- no step goes back: a few elements of the tensors, of which every step records a CRC-32, do not return to the values
  that they had before an update.

Where no two ranks hold the same tensors (fsdp; a pipeline with one rank per stage), these two decide alone: each rank
must have recorded what a step began with and what the step before left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from testbed.core.checkers.finding import Checker, CheckerFinding, conclude, named
from testbed.core.checkers.sums import odd_ones
from testbed.core.records.check_record import CheckedStep, Grouped
from testbed.core.training.twin import Twin

__all__ = ["equality"]

PARAMETERS = "parameters"


def equality(records: Grouped, twin: Twin) -> Checker:
    """Judge the fingerprints of all ranks, over all attempts."""
    judge = _Judge(records, twin)
    for attempt in sorted({*records.began, *(of for of, _ in records.steps)}):
        judge.attempt(attempt)
    looked_at = f"fingerprints of {records.world_size} ranks compared at {len(judge.steps)} steps"
    if judge.alone:
        looked_at += f", no two of which hold the same; with those of the step before {judge.continued} times"
    undecided = "" if judge.steps and not judge.alone else judge.undecided()
    wrong = {(finding.attempt, finding.step) for finding in judge.findings}
    return conclude("parameters", records, looked_at, judge.findings, len(wrong), undecided)


def fingerprints(step: CheckedStep) -> Mapping[str, str]:
    """Return the fingerprints after a step; records of former versions have those of the parameters alone."""
    return step.fingerprints or ({PARAMETERS: step.became} if step.became else {})


def fingerprints_before(step: CheckedStep) -> Mapping[str, str]:
    return step.fingerprints_before or ({PARAMETERS: step.trained_on} if step.trained_on else {})


def trained_names(names: Iterable[str]) -> list[str]:
    """Return the names whose tensors every update changes: the parameters, or the parts of them that a rank holds."""
    listed = list(names)
    return [PARAMETERS] if PARAMETERS in listed else listed


@dataclass
class _Judge:
    records: Grouped
    twin: Twin
    findings: list[CheckerFinding] = field(default_factory=list)
    steps: set[tuple[int, int]] = field(default_factory=set)
    """(attempt, step) of what was compared between ranks, or between attempts."""
    first_steps: dict[tuple[str, str], int] = field(default_factory=dict)
    """(name, fingerprint) -> the first step after which some rank had it."""
    after: dict[tuple[int, str], tuple[int, str]] = field(default_factory=dict)
    """(rank, name) -> the newest step whose end has a fingerprint, and the fingerprint."""
    by_version: dict[tuple[str, tuple[int, ...], int], tuple[str, int]] = field(default_factory=dict)
    """(name, ranks, version) -> fingerprint, and the first rank that had it."""
    traces: dict[tuple[int, str], str] = field(default_factory=dict)
    """(rank, name) -> the trace of the step before."""
    left: dict[tuple[int, int, str], str] = field(default_factory=dict)
    """(rank, step, name) -> fingerprint after it, in the latest attempt so far."""
    followed: set[int] = field(default_factory=set)
    """Ranks of which a step was compared with the one before."""
    continued: int = 0
    """How many fingerprints were compared with those of the step before."""

    def attempt(self, number: int) -> None:
        starts = self.records.began.get(number, {})
        first = min((start.step for start in starts.values()), default=0)
        self.after.clear()
        began = {
            rank: start.fingerprints or ({PARAMETERS: start.parameters} if start.parameters else {})
            for rank, start in starts.items()
        }
        wrong = self._against_last_attempt(number, first, began)
        versions = {rank: start.outer_version for rank, start in starts.items()}
        self._compare(number, first, began, versions, "began with", but=wrong)
        for rank, values in began.items():
            self.after.update({(rank, name): (first, value) for name, value in values.items() if name not in wrong})
        traces: dict[tuple[int, str], dict[str, tuple[int, str]]] = {}
        for (of, step), ranks in self.records.steps.items():
            if of == number:
                self._step(number, step, ranks)
                self._traces(number, step, ranks, traces)

    def undecided(self) -> str:
        if not any(fingerprints(record) for ranks in self.records.steps.values() for record in ranks.values()):
            return "no two ranks recorded fingerprints of the same step"
        if not self.alone:
            return "no two ranks that must be equal recorded so"
        missing = [rank for rank in range(self.records.world_size) if rank not in self.followed]
        return f"{named(missing)} did not record what a step began with and the one before left" if missing else ""

    @property
    def alone(self) -> bool:
        """Whether no two ranks hold the same: there is nothing to compare but a rank with itself."""
        twin = self.twin
        return self.records.world_size > 1 and all(len(group.ranks) < 2 for group in twin.equal(twin.layout.steps))

    def _step(self, attempt: int, step: int, ranks: Mapping[int, CheckedStep]) -> None:
        before = {rank: fingerprints_before(record) for rank, record in ranks.items()}
        after = {rank: fingerprints(record) for rank, record in ranks.items()}
        changed = self._changed_between(step, before)
        wrong = self._compare(attempt, step - 1, before, {}, "trained on", at=step, suspects=changed)
        for name, moved in changed.items():
            if name not in wrong:
                ages = self._age(name, {rank: before[rank][name] for rank in moved}, moved)
                text = f"{named(moved)} began it with other {name} than step {step - 1} left{ages}"
                self.findings.append(CheckerFinding(attempt, step, None, moved, text))
        wrong |= set(changed)
        versions = {rank: record.outer_version for rank, record in ranks.items()}
        self._compare(attempt, step, after, versions, "has", but=wrong)
        for rank, values in after.items():
            for name, value in values.items():
                self.first_steps.setdefault((name, value), step)
                self.after[rank, name] = step, value
                self.left[rank, step, name] = value

    def _compare(
        self,
        attempt: int,
        after: int,
        values: Mapping[int, Mapping[str, str]],
        versions: Mapping[int, int | None],
        verb: str,
        at: int | None = None,
        but: Collection[str] = (),
        suspects: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    ) -> set[str]:
        """Compare what ranks have after a step, where the twin says that it is equal, but for some names.

        ``suspects``: by name, ranks that are known to have other tensors than they had, which are to blame where two
        ranks differ. Returns the names that differ.
        """
        step = after if at is None else at
        compared, different = False, set[str]()
        for equal in self.twin.equal(after):
            by_rank = {rank: values[rank][equal.name] for rank in equal.ranks if equal.name in values.get(rank, {})}
            if equal.by_version:
                self._versions(attempt, step, equal.name, equal.ranks, by_rank, versions)
                compared |= any(versions.get(rank) is not None for rank in by_rank)
                continue
            compared |= len(by_rank) > 1 or (self.records.world_size == 1 and bool(by_rank))
            odd = odd_ones(by_rank)
            if odd and (blamed := tuple(rank for rank in suspects.get(equal.name, ()) if rank in by_rank)):
                odd = blamed if len(blamed) < len(by_rank) else odd
            if odd and equal.name not in but:
                different.add(equal.name)
                others = named({*by_rank} - {*odd})
                whose = f"{named(odd)} {verb} other {equal.name} than {others}"
                if verb == "has":
                    whose = f"after it, {equal.name} of {named(odd)} differ from those of {others}"
                self.findings.append(
                    CheckerFinding(attempt, step, None, odd, whose + self._age(equal.name, by_rank, odd))
                )
        if compared and verb != "began with":
            self.steps.add((attempt, step))
        return different

    def _versions(
        self,
        attempt: int,
        step: int,
        name: str,
        ranks: tuple[int, ...],
        by_rank: Mapping[int, str],
        versions: Mapping[int, int | None],
    ) -> None:
        for rank, value in by_rank.items():
            version = versions.get(rank)
            if version is None:
                continue
            other, first = self.by_version.setdefault((name, ranks, version), (value, rank))
            if other != value:
                text = f"{name} of version {version} differ on rank {rank} from those that rank {first} had"
                self.findings.append(CheckerFinding(attempt, step, None, (rank,), text))

    def _age(self, name: str, by_rank: Mapping[int, str], odd: tuple[int, ...]) -> str:
        ages = {self.first_steps[name, by_rank[rank]] for rank in odd if (name, by_rank[rank]) in self.first_steps}
        return f", namely those after step {min(ages)}" if len(ages) == 1 else ""

    def _changed_between(self, step: int, before: Mapping[int, Mapping[str, str]]) -> dict[str, tuple[int, ...]]:
        """Return, by name, the ranks on which a step does not begin with what the one before left."""
        changed: dict[str, list[int]] = {}
        for rank, values in sorted(before.items()):
            for name, value in values.items():
                last, left = self.after.get((rank, name), (-1, ""))
                if last == step - 1:
                    self.followed.add(rank)
                    self.continued += 1
                if last == step - 1 and left != value:
                    changed.setdefault(name, []).append(rank)
        return {name: tuple(ranks) for name, ranks in changed.items()}

    def _against_last_attempt(self, attempt: int, first: int, began: Mapping[int, Mapping[str, str]]) -> set[str]:
        other: dict[str, list[int]] = {}
        for rank, values in began.items():
            for name, value in values.items():
                left = self.left.get((rank, first, name))
                if left is not None:
                    self.steps.add((attempt, first))
                if left is not None and left != value:
                    other.setdefault(name, []).append(rank)
        for name, ranks in other.items():
            text = f"attempt {attempt} began on {named(ranks)} with {name} other than those after this step"
            self.findings.append(CheckerFinding(attempt, first, None, tuple(sorted(ranks)), text))
        return set(other)

    def _traces(
        self,
        attempt: int,
        step: int,
        ranks: Mapping[int, CheckedStep],
        seen: dict[tuple[int, str], dict[str, tuple[int, str]]],
    ) -> None:
        """Report parameters that have values again that they had before an update.

        Where both steps have fingerprints, these decide: an exchange of the largest values only may leave the few
        elements of a trace as the exchange before did.
        """
        back: dict[int, list[int]] = {}
        for rank, record in ranks.items():
            for name in trained_names(record.trace):
                first_seen = seen.setdefault((rank, name), {})
                trace, last = record.trace[name], self.traces.get((rank, name))
                self.traces[rank, name] = trace
                whole = fingerprints(record).get(name, "")
                earlier, then = first_seen.setdefault(trace, (step, whole))
                if whole and then and whole != then:
                    continue
                # A step that changed nothing is a lost update (``update_counts.py``), if it is wrong at all.
                if (
                    earlier < step
                    and trace != last
                    and self.twin.updates(step, rank) > self.twin.updates(earlier, rank)
                ):
                    back.setdefault(earlier, []).append(rank)
        for earlier, recorded in back.items():
            text = f"{named(recorded)} went back to the parameters after step {earlier}"
            self.findings.append(CheckerFinding(attempt, step, None, tuple(sorted(recorded)), text))
