"""The steady-state hypothesis: when a condition counts, its grace, and that unmeasured conditions never hold."""

from __future__ import annotations

from collections.abc import Iterable

from builders.inputs import by_input
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.experiment import expect, steady
from testbed.core.experiment.steady import Condition, Monitor, SteadyCheck

PHASES = {"quiet": (False, False), "fault": (True, False), "over": (False, True)}
"""Whether a fault stands, and whether all are over."""

Samples = Iterable[tuple[str, float | None]]


def condition(when: str, text: str = "tokens_per_s >= 100") -> Condition:
    return Condition(when, expect.parse(text, steady.METRICS, of_before=True), 1.0, 3.0)


ALWAYS = condition("always")


def samples(text: str) -> Samples:
    """Return phase and tokens/s of each sample: ``"quiet 100 2*50 fault - 100"``, ``-`` if nothing is measured."""
    phase = ""
    for word in text.split():
        count, _, value = word.rpartition("*")
        if word in PHASES:
            phase = word
        else:
            yield from [(phase, None if value == "-" else float(value))] * int(count or 1)


def watch(watched: Condition, measured: Samples) -> tuple[SteadyCheck, Monitor]:
    """Take a sample each half second."""
    monitor = Monitor((watched,))
    for number, (phase, value) in enumerate(measured):
        monitor.sample(number / 2, {"tokens_per_s": value}, *PHASES[phase])
    return monitor.verdicts()[0], monitor


@table(
    "values, holds",
    {
        "good": ("100 200 300", True),
        "bad for 1 s, no longer than the grace": ("100 2*50 100", True),
        "bad for longer": ("100 4*50 100", False),
        "bad without an end": ("100 3*50", False),
        "bad for less than the grace, each time anew": ("100 2*50 100 2*50 100", True),
        "never seen to hold": ("50", None),
        "no sample": ("", None),
        "nothing measured": ("2*-", None),
        "a gap within the grace": ("100 2*- 100", True),
        "a gap of which nobody knows": ("100 4*- 100", None),
        "what was bad stays bad": ("100 4*50 4*-", False),
    },
)
def test_grace_is_allowed_and_what_is_missing_never_holds(values: str, holds: bool | None) -> None:
    measured = [*samples(f"quiet {values}")]
    verdict, _ = watch(ALWAYS, measured)
    assert verdict.holds is holds
    assert bool(verdict.why) is (holds is not True)
    assert verdict.samples == len(measured)


def test_a_violation_has_its_times_and_its_worst() -> None:
    events: list[tuple[float, bool]] = []
    monitor = Monitor((ALWAYS,), lambda t, condition, again, measured: events.append((t, again)))
    for number, value in enumerate([100, 90, 20, 80, 80, 120, 130]):
        monitor.sample(number / 2, {"tokens_per_s": value}, *PHASES["quiet"])
    (violation,) = monitor.verdicts()[0].violations
    assert (violation.began_t, violation.ended_t, violation.measured) == (0.5, 2.5, 20)
    assert events == [(1.5, False), (2.5, True)]


@table(
    "when, measured, holds",
    {
        # Samples of 100 are of the phase that counts, all others would be violations.
        "before": ("before", "quiet 4*100 fault 6*1 over 12*1", True),
        "during": ("during", "quiet 4*1 fault 6*100 over 12*1", True),
        "after": ("after", "quiet 4*1 fault 6*1 over 5*1 8*100", True),
        "never back": ("after", "quiet 4*1 fault 6*1 over 11*1", False),
        "no fault ever came": ("during", "quiet 9*100", None),
        "the fault never ended": ("after", "quiet 4*100 fault 6*100", None),
        "the job ended before it had to be back": ("after", "fault 4*1 over 3*1", None),
        "the same, and it was back already": ("after", "fault 4*1 over 3*100", True),
        "always": ("always", "quiet 4*100 fault 6*1 over 6*100", False),
        # The bad end of one fault and the bad beginning of the next: no violation lasts from one to the other.
        "two faults with a pause": ("during", "fault 100 2*1 quiet 6*1 fault 2*1 100", True),
    },
)
def test_each_condition_has_its_phase(when: str, measured: str, holds: bool | None) -> None:
    assert watch(condition(when), samples(measured))[0].holds is holds


SHARE = condition("during", "tokens_per_s >= 25% of before")


@by_input("during, holds", {30: True, 20: False})
def test_a_share_of_before_is_one_of_its_median(during: float, holds: bool) -> None:
    verdict, _ = watch(SHARE, samples(f"quiet 1 3*100 900 fault 5*{during}"))
    assert verdict.bound == 25
    assert (verdict.holds is True) is holds


def test_a_share_of_nothing_is_unknown() -> None:
    verdict, _ = watch(SHARE, samples("fault 9*100"))
    assert (verdict.holds, verdict.bound) == (None, None)


@by_input("values, holds", {"": None, "-": None, "100": True, "50": False, "100 50": True, "100 3*50": False})
def test_whether_it_is_steady_is_known_before_the_first_fault(values: str, holds: bool | None) -> None:
    _, monitor = watch(condition("before"), samples(f"quiet {values}"))
    assert monitor.steady() is holds


def test_it_is_steady_if_nothing_has_to_hold_before() -> None:
    assert Monitor((ALWAYS,)).steady() is True


@settings(max_examples=200)
@given(
    st.sampled_from(steady.WHEN),
    st.lists(st.tuples(st.sampled_from(sorted(PHASES)), st.sampled_from([None, 1.0, 100.0])), max_size=30),
)
def test_whatever_comes_a_verdict_follows_from_what_was_seen(
    when: str, measured: list[tuple[str, float | None]]
) -> None:
    verdict, _ = watch(condition(when), measured)
    values = {value for _, value in measured}
    assert verdict.holds is None or (100.0 if verdict.holds else 1.0) in values
    assert all(violation.began_t <= violation.ended_t for violation in verdict.violations)
