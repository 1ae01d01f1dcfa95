"""The verdict on a library: holds, does not hold, or unknown.

A library **holds** when every case that it offers was right, nothing was faster than physics allows, no bytes bypassed
the fibers, and every fault ended as ``fault_matrix.FAULTS`` accepts. One failure and it **does not hold**, however much
else is missing. Without a failure, but with a case or a fault that could not be tried, it is **unknown**.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from testbed.core.certification.link_certificate import RATE_TOLERANCE
from testbed.core.validation.fault_matrix import FAULTS, REPORTS_ERROR, SURVIVES
from testbed.core.validation.result import CaseResult, CaseState, Cell, LibraryResult, Outcome, Speed, Verdict
from testbed.core.validation.traffic import BYPASS

__all__ = ["EXIT_CODES", "TOO_FAST", "exit_code", "of_library", "of_validation", "too_fast"]

TOO_FAST: Final = 1.0 + RATE_TOLERANCE
"""An efficiency above this is not explained by the tolerance of the certified rate."""

EXIT_CODES: Final[Mapping[Verdict, int]] = {"holds": 0, "does not hold": 1, "unknown": 3, "skipped": 3}

_WORST_STATES: Final[tuple[CaseState, ...]] = ("wrong", "hang", "crash", "error")
_WORST_OUTCOMES: Final[tuple[Outcome, ...]] = (
    "wrong result",
    "hang",
    "crash",
    "error late",
    "error within its bound",
    "right after healing",
    "right",
)
_NOT_TRIED: Final[frozenset[Outcome]] = frozenset({"not run", "fault not exercised"})


def too_fast(speed: Speed) -> bool:
    """Whether the time is below the physical bound: something bypassed the fiber, or the certificate is wrong.

    Judged by the upper end of the median's interval: one lucky repeat is no bypass.
    """
    return _is_below_bound(speed, speed.high_s + speed.uncertainty_s)


def maybe_too_fast(speed: Speed) -> bool:
    """Whether only stalls of the host keep a time from being :func:`too_fast`."""
    return _is_below_bound(speed, speed.high_s) and not too_fast(speed)


def _is_below_bound(speed: Speed, high_s: float) -> bool:
    return math.isfinite(speed.bound_s) and high_s > 0 and speed.bound_s / high_s > TOO_FAST


def of_library(
    cases: Sequence[CaseResult],
    speeds: Sequence[Speed],
    cells: Sequence[Cell],
    *,
    troubles: Sequence[str] = (),
    not_tried: Sequence[str] = (),
) -> tuple[Verdict, tuple[str, ...]]:
    """Return the verdict on one library and the reasons, the worst first; no reasons where it holds.

    ``troubles`` are failures of the library that belong to no case, such as a communicator that cannot be made;
    ``not_tried`` is what the lab or the machine kept from being tried.
    """
    against = [*_wrong(cases, cells), *troubles, *_around(speeds), *_failed(cases), *_faults(cells)]
    if against:
        return "does not hold", tuple(dict.fromkeys(against))
    missing = [*not_tried, *_missing(cases, cells), *_uncertain(speeds)]
    if not missing and not any(case.state == "right" for case in cases) and not speeds and not cells:
        missing = ["nothing that it offers was tried"]
    return ("unknown", tuple(dict.fromkeys(missing))) if missing else ("holds", ())


def of_validation(libraries: Iterable[LibraryResult], *, certified: bool, interrupted: bool = False) -> Verdict:
    """Return the verdict on all libraries. A failure that was observed counts however the run ended.

    Otherwise the verdict is unknown if the lab is not certified, the run was interrupted, or every library was skipped.
    """
    verdicts = [library.verdict for library in libraries if library.verdict != "skipped"]
    if "does not hold" in verdicts:
        return "does not hold"
    return "unknown" if interrupted or not certified or not verdicts or "unknown" in verdicts else "holds"


def exit_code(verdict: Verdict, regressions: int = 0) -> int:
    """0: holds; 1: does not hold, or worse than the baseline; 3: unknown."""
    return 1 if regressions else EXIT_CODES[verdict]


def _wrong(cases: Sequence[CaseResult], cells: Sequence[Cell]) -> Iterator[str]:
    """Wrong answers without an error: the worst."""
    wrong = [case for case in cases if case.state == "wrong"]
    if wrong:
        yield f"{_count(len(wrong), 'case')} with a wrong answer, first {_name(wrong[0])}: {wrong[0].detail}"
    for cell in cells:
        if cell.outcome == "wrong result":
            yield f"{cell.fault}: a wrong answer and no error: {cell.detail}"


def _around(speeds: Sequence[Speed]) -> Iterator[str]:
    for speed in speeds:
        what = f"{speed.operation} of {speed.size} bytes"
        if speed.pattern == BYPASS:
            crossed = sum(speed.crossing.values())
            yield (
                f"{what} bypassed the fibers: {crossed} bytes crossed them in total, expected at least {speed.least}"
                " toward one site alone"
            )
        elif too_fast(speed):
            yield (
                f"{what} took {speed.median_s * 1e3:.3g} ms, below the physical bound of {speed.bound_s * 1e3:.3g} ms:"
                " something bypassed the fibers, or the certificate is wrong"
            )


def _uncertain(speeds: Sequence[Speed]) -> Iterator[str]:
    for speed in filter(maybe_too_fast, speeds):
        yield (
            f"{speed.operation} of {speed.size} bytes took {speed.median_s * 1e3:.3g} ms, below the physical bound of"
            f" {speed.bound_s * 1e3:.3g} ms by less than stalls of the host may account for"
            f" ({speed.uncertainty_s * 1e3:.3g} ms)"
        )


def _failed(cases: Sequence[CaseResult]) -> Iterator[str]:
    for state in _WORST_STATES[1:]:
        affected = [case for case in cases if case.state == state]
        if affected:
            how = {"hang": "hung", "crash": "in which a rank died", "error": "failed"}[state]
            first = affected[0]
            yield f"{_count(len(affected), 'case')} {how} on healthy fibers, first {_name(first)}: {first.detail}"


def _faults(cells: Sequence[Cell]) -> Iterator[str]:
    for outcome in _WORST_OUTCOMES[1:]:
        for cell in cells:
            accepted = FAULTS[cell.fault].holds if cell.fault in FAULTS else SURVIVES | REPORTS_ERROR
            if cell.outcome == outcome and outcome not in accepted:
                wanted = " or ".join(worst for worst in reversed(_WORST_OUTCOMES) if worst in accepted)
                yield f"{cell.fault}: {outcome}, accepted: {wanted}" + (f"; {cell.detail}" if cell.detail else "")


def _missing(cases: Sequence[CaseResult], cells: Sequence[Cell]) -> Iterator[str]:
    untried = [case for case in cases if case.state == "not run"]
    if untried:
        yield f"{_count(len(untried), 'case')} not run, first {_name(untried[0])}: {untried[0].detail}"
    for cell in cells:
        if cell.outcome in _NOT_TRIED:
            yield f"{cell.fault}: {cell.outcome}" + (f": {cell.detail}" if cell.detail else "")


def _name(case: CaseResult) -> str:
    """Return a name such as ``all_reduce sum of 1000 float32, at east``."""
    what = f"{case.operation} {case.reduction}".strip()
    return (
        f"{what} of {case.count} {case.type}, {case.group}" if case.operation != "barrier" else f"barrier, {case.group}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
