"""The steady-state hypothesis: conditions that a job must meet before, during and after its faults.

::

    hypothesis:
      before: [ranks_up == 4]
      during: ["tokens_per_s >= 20% of before"]
      after:  [{check: "tokens_per_s >= 80% of before", within: 10s}]
      always: [{check: "train_loss < 6", for: 5s}]

Pure: the caller follows a job, feeds :class:`Monitor` samples, and reads the verdicts.

- *before*: from the time the job runs steadily until the first fault. It must hold when the first fault is due; else
  nothing is injected.
- *during*: while a fault is active. *after*: from ``within`` after the end of the last fault until the job ends; a
  condition that holds sooner counts from then on. *always*: as long as the job runs.
- A condition is violated when it fails continuously for longer than its grace (``for``). A condition that was not
  measured for longer than that, or never held, is unknown: never a pass.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple

from testbed.core.experiment.expect import Expectation, Metric
from testbed.core.fields import number
from testbed.core.json_record import JsonRecord, Or, Parsed
from testbed.core.units import parse_number

__all__ = [
    "GRACE_S",
    "METRICS",
    "WHEN",
    "WINDOW_S",
    "WITHIN_S",
    "Condition",
    "Monitor",
    "OnVerdict",
    "SampledCheck",
    "SteadyCheck",
    "Violation",
]

WHEN: Final = ("before", "during", "after", "always")
GRACE_S: Final = 2.0
"""Default grace: the longest continuous failure that is tolerated, so that one or two late steps are no violation."""
WINDOW_S: Final = 4.0
"""Window of rates: if shorter, one slow step looks like an outage; if longer, an outage is seen late."""
WITHIN_S: Final = 10.0
"""Default time after the last fault's end by which an ``after`` condition must hold."""


def _number(value: object) -> float:
    return parse_number(value, low=0.0, high=1e12)


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("tokens_per_s", "tokens/s", "of all ranks together, over the last 4 s", _number),
        Metric("steps_per_s", "steps/s", "committed, over the last 4 s", _number),
        Metric("step_seconds", "s", "median of the last 10 steps, or the current step if it takes longer", _number),
        Metric("train_loss", "nats", "of the latest step", _number),
        Metric("ranks_up", "ranks", "that train, or have finished successfully", _number),
        Metric("links_up", "links", "with carrier at both ends", _number),
    )
}
"""Metrics of the running job."""


@dataclass(frozen=True)
class Condition:
    """A ``check`` in the phase ``when``; ``grace_s`` and ``within_s`` are ``for`` and ``within`` in the file."""

    when: str
    check: Expectation
    grace_s: float = GRACE_S
    within_s: float = WITHIN_S


class Violation(NamedTuple):
    """A failure of a condition from ``began_t`` to ``ended_t``; ``measured`` is the worst value, or the last seen."""

    began_t: float
    ended_t: float
    measured: float | None


def _violations(value: object) -> tuple[Violation, ...]:
    lines = [line for line in value if isinstance(line, Mapping)] if isinstance(value, list) else []
    return tuple(
        Violation(began_t, ended_t, number(line, "measured"))
        for line in lines
        if (began_t := number(line, "began_t")) is not None and (ended_t := number(line, "ended_t")) is not None
    )


@dataclass(frozen=True)
class SteadyCheck(JsonRecord):
    """The result of a condition. ``measured``: the worst value if violated, else the latest.

    ``holds`` is None when the condition could not be evaluated. ``bound`` is the value that ``measured`` was compared
    with; None if its baseline was not measured.
    """

    when: Annotated[str, Or("")]
    text: Annotated[str, Or("")]
    holds: bool | None
    measured: float | None
    bound: float | None
    violations: Annotated[tuple[Violation, ...], Parsed(_violations)] = ()
    why: str = ""


@dataclass(frozen=True)
class SampledCheck(SteadyCheck):
    """The result of a condition, with the number of samples that it was evaluated on."""

    samples: int = 0


OnVerdict = Callable[[float, Condition, bool, float | None], None]
"""(t, condition, whether it holds again, measured): called at the start and at the end of a violation."""


@dataclass
class _Watch:
    """The state of one condition."""

    condition: Condition
    samples: int = 0
    held: int = 0
    last: float | None = None
    last_holds: bool | None = None
    failing_since: float | None = None
    """Start of the current failure; ``reported`` is set once it exceeds the grace."""
    missing_since: float | None = None
    last_t: float = 0.0
    reported: bool = False
    missed: bool = False
    worst: float | None = None
    violations: list[Violation] = field(default_factory=list)

    def see(self, t: float, value: float | None, holds: bool | None, tell: OnVerdict) -> None:
        condition = self.condition
        self.samples, self.last_t, self.last_holds = self.samples + 1, t, holds
        if holds is None:
            self.missing_since = t if self.missing_since is None else self.missing_since
            self.missed |= t - self.missing_since > condition.grace_s
            return
        self.missing_since, self.last = None, value
        if holds:
            self.held += 1
            self._over(t, tell)
            return
        if self.failing_since is None:
            self.failing_since, self.worst = t, value
        self.worst = self._worse(self.worst, value)
        if not self.reported and t - self.failing_since >= condition.grace_s:
            self.reported = True
            tell(t, condition, False, value)

    def leave(self, t: float, tell: OnVerdict) -> None:
        """End the phase: a failure does not extend into the next one."""
        self._over(t, tell, again=False)
        self.missing_since = None

    def _over(self, t: float, tell: OnVerdict, again: bool = True) -> None:
        if self.failing_since is not None and self.reported:
            self.violations.append(Violation(self.failing_since, t, self.worst))
            if again:
                tell(t, self.condition, True, self.last)
        self.failing_since, self.reported = None, False

    def _worse(self, one: float | None, other: float | None) -> float | None:
        if one is None or other is None:
            return other if one is None else one
        return min(one, other) if self.condition.check.op in (">=", ">") else max(one, other)

    def holds_by_now(self) -> bool | None:
        if self.reported or (self.last_holds is False and not self.held):
            return False
        return True if self.held and self.missing_since is None else None

    def standing(self) -> tuple[Violation, ...]:
        """Return the violations, including the current one."""
        if self.failing_since is not None and self.reported:
            return (*self.violations, Violation(self.failing_since, self.last_t, self.worst))
        return tuple(self.violations)


class Monitor:
    """Check all conditions of an experiment. Times are of one monotonic clock, values keyed by METRICS."""

    def __init__(self, conditions: tuple[Condition, ...], tell: OnVerdict | None = None) -> None:
        self._tell: OnVerdict = tell or (lambda t, condition, again, value: None)
        self._watches = [_Watch(condition) for condition in conditions]
        self._before: dict[str, list[float]] = {}
        self._faults_began = False
        self._standing = False
        self._after_t: float | None = None

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return tuple(watch.condition for watch in self._watches)

    def sample(self, t: float, values: Mapping[str, float | None], standing: bool, all_over: bool) -> None:
        """Take a sample. ``standing``: a fault is active; ``all_over``: all faults of the run have ended."""
        self._faults_began |= standing or all_over
        if not self._faults_began:
            for name, value in values.items():
                if value is not None and value == value:
                    self._before.setdefault(name, []).append(value)
        if self._standing and not standing:
            self._leave("during", t)
        self._standing = standing
        self._after_t = (self._after_t or t) if all_over else None
        for watch in self._watches:
            if self._is_due(watch, t):
                value = values.get(watch.condition.check.metric)
                watch.see(t, value, self._holds(watch, value), self._tell)
            elif watch.condition.when == "after" and all_over:
                # Before ``within`` a condition that holds already counts; one that fails is no violation yet.
                value = values.get(watch.condition.check.metric)
                if self._holds(watch, value):
                    watch.see(t, value, True, self._tell)

    def steady(self) -> bool | None:
        """Return whether all *before* conditions hold, allowing for their grace; None if one was not measured.

        True without any such condition.
        """
        answers = [watch.holds_by_now() for watch in self._watches if watch.condition.when == "before"]
        return False if False in answers else None if None in answers else True

    def verdicts(self) -> tuple[SampledCheck, ...]:
        """Return the verdicts in the order of the file. Conditions of a phase that never began are unknown."""
        return tuple(self._verdict(watch) for watch in self._watches)

    # ----

    def _is_due(self, watch: _Watch, t: float) -> bool:
        when = watch.condition.when
        if when == "after":
            return self._after_t is not None and t - self._after_t >= watch.condition.within_s
        return {"before": not self._faults_began, "during": self._standing, "always": True}[when]

    def _leave(self, when: str, t: float) -> None:
        for watch in self._watches:
            if watch.condition.when == when:
                watch.leave(t, self._tell)

    def _baseline(self, metric: str) -> float | None:
        seen = self._before.get(metric)
        return statistics.median(seen) if seen else None

    def _bound(self, check: Expectation) -> float | None:
        baseline = self._baseline(check.metric)
        return check.bound if not check.of_before else None if baseline is None else check.bound * baseline

    def _holds(self, watch: _Watch, value: float | None) -> bool | None:
        check = watch.condition.check
        return check.holds(value, self._baseline(check.metric))

    def _verdict(self, watch: _Watch) -> SampledCheck:
        condition, violations = watch.condition, watch.standing()
        holds: bool | None = True
        why, measured = "", watch.last
        if violations:
            holds, measured = False, violations[-1].measured
            why = "failed for longer than its grace"
        elif condition.when == "before" and watch.holds_by_now() is False:
            holds, why = False, "did not hold when the first fault was due"
        elif not watch.samples:
            holds, why = None, f"no sample in phase '{condition.when}'"
        elif watch.missed or not watch.held:
            holds, why = (
                None,
                "was not measured for longer than its grace" if watch.missed else "never held",
            )
        return SampledCheck(
            condition.when,
            condition.check.text,
            holds,
            measured,
            self._bound(condition.check),
            violations,
            why,
            watch.samples,
        )
