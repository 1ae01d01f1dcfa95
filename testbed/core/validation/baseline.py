"""Compare two validations: what became worse, or better, beyond noise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from testbed.core.certification.link_certificate import RATE_TOLERANCE, tolerance_s
from testbed.core.validation.result import LibraryResult, Outcome, Speed, Validation, Verdict

__all__ = ["LEAST_CHANGE", "Change", "Comparison", "compare"]

LEAST_CHANGE: Final = 0.10
"""Smallest relative change of a median that is reported. A median moves by some per cent between runs on the same
machine, although the intervals within each run are narrow (other load, CPU frequency, rank placement)."""

_OUTCOMES: Final[dict[Outcome, int]] = {
    "right": 0,
    "right after healing": 1,
    "error within its bound": 2,
    "error late": 3,
    "hang": 4,
    "crash": 4,
    "wrong result": 5,
}
"""Severity; larger is worse. An outcome that is missing here was not observed and is not compared."""

_VERDICTS: Final[dict[Verdict, int]] = {"holds": 0, "does not hold": 1}


@dataclass(frozen=True)
class Change:
    """One difference from the baseline: ``what`` changed, with the values ``before`` and ``after`` as text."""

    library: str
    what: str
    before: str
    after: str
    kind: Literal["worse", "better"]


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison with a baseline. ``notes`` list what could not be compared, and why."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()
    against_unix_s: float | None = None
    """Start time of the baseline."""

    @property
    def regressions(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.kind == "worse")


def compare(old: Validation, new: Validation) -> Comparison:
    """Compare ``new`` with the baseline ``old``, library by library, by name.

    Answers and outcomes of faults are compared wherever both were observed. Times are compared only on the same machine
    and the same certified lab; they differ when the intervals of both medians are disjoint, also within their
    uncertainty by stalls of the host, and the medians differ by more than :data:`LEAST_CHANGE`. What the baseline has
    and the new validation lacks is a note, not a regression: it may not have been requested.
    """
    notes = []
    why = _times_incomparable(old, new)
    if why:
        notes.append(f"times not compared: {why}")
    if old.suite != new.suite:
        notes.append(f"suite was {old.suite}, is {new.suite}: cases in only one of them were not compared")
    before = {library.name: library for library in old.libraries if library.verdict != "skipped"}
    now = {library.name: library for library in new.libraries if library.verdict != "skipped"}
    notes += [f"{name} is in the baseline, but was not validated this time" for name in before if name not in now]
    notes += [f"{name} is not in the baseline" for name in now if name not in before]
    changes: list[Change] = []
    for name in (name_in_both for name_in_both in now if name_in_both in before):
        if before[name].version != now[name].version:
            notes.append(f"{name}: version was {before[name].version}, is {now[name].version}")
        changes += _verdict(before[name], now[name])
        changes += _cases(before[name], now[name])
        changes += _cells(before[name], now[name])
        if not why:
            changes += _speeds(before[name], now[name])
    changes.sort(key=lambda change: change.kind != "worse")
    return Comparison(tuple(changes), tuple(notes), old.started_unix_s)


def _times_incomparable(old: Validation, new: Validation) -> str:
    for what, then, now in (
        ("topology", old.topology, new.topology),
        ("machine", old.machine, new.machine),
        ("driver", old.driver, new.driver),
        ("emulator", old.emulator, new.emulator),
    ):
        if then != now:
            return f"the {what} was {then}, is {now}"
    if not (old.certified and new.certified):
        return "one of the two labs was not certified"
    for direction in sorted({*old.links, *new.links}):
        was, became = (dict(validation.links.get(direction, {})) for validation in (old, new))
        if was.keys() != became.keys():
            return f"{direction} is not in both validations"
        if any(_differ(key, was[key], became[key]) for key in was):
            return f"the certified values of {direction} changed"
    return ""


def _differ(what: str, then: float, now: float) -> bool:
    """Whether two values differ by more than certificates of the same fiber do; False for an unknown value."""
    allowed = 2 * tolerance_s(then) if what == "delay_s" else 2 * RATE_TOLERANCE * then
    return math.isfinite(then) and math.isfinite(now) and abs(now - then) > allowed


def _verdict(old: LibraryResult, new: LibraryResult) -> Iterator[Change]:
    if old.verdict in _VERDICTS and new.verdict in _VERDICTS and old.verdict != new.verdict:
        yield Change(new.name, "verdict", old.verdict, new.verdict, _kind(new.verdict != "holds"))


def _cases(old: LibraryResult, new: LibraryResult) -> Iterator[Change]:
    """Compare cases by state; ``not run`` in either validation is not compared."""
    before = {
        (old_case.operation, old_case.group, old_case.type, old_case.count, old_case.reduction): old_case.state
        for old_case in old.cases
    }
    for case in new.cases:
        then = before.get((case.operation, case.group, case.type, case.count, case.reduction))
        if then is None or "not run" in (then, case.state) or (then == "right") == (case.state == "right"):
            continue
        reduction = f" {case.reduction}" if case.reduction else ""
        what = f"{case.operation}{reduction}, {case.type}, {case.count} elements, {case.group}"
        yield Change(new.name, what, then, case.state, _kind(then == "right"))


def _cells(old: LibraryResult, new: LibraryResult) -> Iterator[Change]:
    before = {old_cell.fault: old_cell for old_cell in old.cells}
    for cell in new.cells:
        then = before.get(cell.fault)
        if then is None or then.outcome not in _OUTCOMES or cell.outcome not in _OUTCOMES:
            continue
        rank, was = _OUTCOMES[cell.outcome], _OUTCOMES[then.outcome]
        if rank != was:
            yield Change(new.name, cell.fault, then.outcome, cell.outcome, _kind(rank > was))
        elif then.rebuilt is not None and cell.rebuilt is not None and then.rebuilt != cell.rebuilt:
            label = {True: "rebuilt", False: "not rebuilt"}
            changed = _kind(not cell.rebuilt)
            yield Change(
                new.name, f"{cell.fault}, communicator afterwards", label[then.rebuilt], label[cell.rebuilt], changed
            )


def _speeds(old: LibraryResult, new: LibraryResult) -> Iterator[Change]:
    before = {(old_speed.operation, old_speed.size): old_speed for old_speed in old.speeds}
    for speed in new.speeds:
        then = before.get((speed.operation, speed.size))
        if then is None or not _apart(then, speed):
            continue
        change = speed.median_s / then.median_s - 1.0
        what = f"{speed.operation}, {speed.size} bytes"
        after = f"{speed.median_s * 1e3:.3g} ms ({change * 100:+.0f} %)"
        yield Change(new.name, what, f"{then.median_s * 1e3:.3g} ms", after, _kind(change > 0))


def _apart(old: Speed, new: Speed) -> bool:
    if not (old.median_s > 0 and new.median_s > 0):
        return False
    by_s = old.uncertainty_s + new.uncertainty_s
    disjoint = new.low_s > old.high_s + by_s or new.high_s < old.low_s - by_s
    slower, faster = max(old.median_s, new.median_s), min(old.median_s, new.median_s)
    return disjoint and slower / faster - 1.0 > LEAST_CHANGE


def _kind(worse: bool) -> Literal["worse", "better"]:
    return "worse" if worse else "better"
