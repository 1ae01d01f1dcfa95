"""The steady-state hypothesis: when a condition counts, its grace, and that unmeasured conditions never hold."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from builders.inputs import by_input
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.experiment import expect, steady
from testbed.core.experiment.steady import Condition, Monitor, Verdict

QUIET, FAULT, OVER = (False, False), (True, False), (False, True)
"""Whether a fault stands, and whether all are over."""


def condition(when: str, text: str, grace_s: float = 1.0, within_s: float = 3.0) -> Condition:
    return Condition(when, expect.parse(text, steady.METRICS, of_before=True), grace_s, within_s)


def watch(one: Condition, samples: Iterable[tuple[tuple[bool, bool], float | None]]) -> tuple[Verdict, Monitor]:
    """A sample each half second, of tokens_per_s."""
    monitor = Monitor((one,))
    for number, (phase, value) in enumerate(samples):
        monitor.sample(number / 2, {"tokens_per_s": value}, *phase)
    return monitor.verdicts()[0], monitor


ALWAYS = condition("always", "tokens_per_s >= 100")


@pytest.mark.parametrize(
    "values, holds",
    [
        ([100, 200, 300], True),
        ([100, 50, 50, 100], True),  # 1 s: no longer than the grace
        ([100, 50, 50, 50, 50, 100], False),
        ([100, 50, 50, 50], False),  # and has not ended
        ([100, 50, 50, 100, 50, 50, 100], True),  # each time anew
        ([50], None),  # never seen to hold
        ([], None),
        ([None, None], None),
        ([100, None, None, 100], True),
        ([100, None, None, None, None, 100], None),  # nobody knows what was in between
        ([100, 50, 50, 50, 50, None, None, None, None], False),  # what was bad stays bad
    ],
)
def test_a_grace_is_allowed_and_what_is_missing_never_holds(values: list[float | None], holds: bool | None) -> None:
    verdict, _ = watch(ALWAYS, [(QUIET, value) for value in values])
    assert verdict.holds is holds
    assert bool(verdict.why) is (holds is not True)
    assert verdict.samples == len(values)


def test_a_violation_has_its_times_and_its_worst() -> None:
    told: list[tuple[float, bool]] = []
    monitor = Monitor((ALWAYS,), lambda t, condition, again, measured: told.append((t, again)))
    for number, value in enumerate([100, 90, 20, 80, 80, 120, 130]):
        monitor.sample(number / 2, {"tokens_per_s": value}, *QUIET)
    (violation,) = monitor.verdicts()[0].violations
    assert (violation.began_t, violation.ended_t, violation.measured) == (0.5, 2.5, 20)
    assert told == [(1.5, False), (2.5, True)]


@pytest.mark.parametrize(
    "when, phases, holds",
    [
        # Of the samples below those of 100 are of the phase that is asked for, all others would be violations.
        ("before", [(QUIET, 100)] * 4 + [(FAULT, 1)] * 6 + [(OVER, 1)] * 12, True),
        ("during", [(QUIET, 1)] * 4 + [(FAULT, 100)] * 6 + [(OVER, 1)] * 12, True),
        ("after", [(QUIET, 1)] * 4 + [(FAULT, 1)] * 6 + [(OVER, 1)] * 5 + [(OVER, 100)] * 8, True),
        ("after", [(QUIET, 1)] * 4 + [(FAULT, 1)] * 6 + [(OVER, 1)] * 11, False),  # it is never back
        ("during", [(QUIET, 100)] * 9, None),  # no fault ever came
        ("after", [(QUIET, 100)] * 4 + [(FAULT, 100)] * 6, None),  # it never ended
        ("after", [(FAULT, 1)] * 4 + [(OVER, 1)] * 3, None),  # the job ended before it had to be back
        ("after", [(FAULT, 1)] * 4 + [(OVER, 100)] * 3, True),  # the same, and it was back already
        ("always", [(QUIET, 100)] * 4 + [(FAULT, 1)] * 6 + [(OVER, 100)] * 6, False),
    ],
)
def test_each_condition_has_its_phase(
    when: str, phases: list[tuple[tuple[bool, bool], float]], holds: bool | None
) -> None:
    assert watch(condition(when, "tokens_per_s >= 100"), phases)[0].holds is holds


def test_two_faults_with_a_pause_in_between_are_two_stretches_of_during() -> None:
    """The bad end of one and the bad beginning of the next are no violation that lasts from one to the other."""
    phases = [
        (FAULT, 100.0),
        (FAULT, 1.0),
        (FAULT, 1.0),
        *[(QUIET, 1.0)] * 6,
        (FAULT, 1.0),
        (FAULT, 1.0),
        (FAULT, 100.0),
    ]
    assert watch(condition("during", "tokens_per_s >= 100"), phases)[0].holds is True


@by_input("during, holds", {30: True, 20: False})
def test_a_share_of_before_is_one_of_its_median(during: float, holds: bool) -> None:
    phases = [*[(QUIET, value) for value in (1.0, 100.0, 100.0, 100.0, 900.0)], *[(FAULT, during)] * 5]
    verdict, _ = watch(condition("during", "tokens_per_s >= 25% of before"), phases)
    assert verdict.bound == 25
    assert (verdict.holds is True) is holds


def test_a_share_of_nothing_is_unknown() -> None:
    verdict, _ = watch(condition("during", "tokens_per_s >= 25% of before"), [(FAULT, 100.0)] * 9)
    assert (verdict.holds, verdict.bound) == (None, None)


@pytest.mark.parametrize(
    "values, holds",
    [([], None), ([None], None), ([100], True), ([50], False), ([100, 50], True), ([100, 50, 50, 50], False)],
)
def test_whether_it_is_steady_is_known_before_the_first_fault(values: list[float | None], holds: bool | None) -> None:
    _, monitor = watch(condition("before", "tokens_per_s >= 100"), [(QUIET, value) for value in values])
    assert monitor.steady() is holds
    assert Monitor((ALWAYS,)).steady() is True, "nothing has to hold before"


@settings(max_examples=200)
@given(
    st.sampled_from(steady.WHEN),
    st.lists(st.tuples(st.sampled_from([QUIET, FAULT, OVER]), st.sampled_from([None, 1.0, 100.0])), max_size=30),
)
def test_whatever_comes_a_verdict_follows_from_what_was_seen(
    when: str, samples: list[tuple[tuple[bool, bool], float | None]]
) -> None:
    verdict, _ = watch(condition(when, "tokens_per_s >= 100"), samples)
    if verdict.holds:
        assert any(value == 100.0 for _, value in samples)
    if verdict.holds is False:
        assert any(value == 1.0 for _, value in samples)
    assert all(it.began_t <= it.ended_t for it in verdict.violations)
