"""The report of a run on a host that stalls: verdicts become unknown at most, and only if the stalls matter."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.reports import answers, document_of, markdown, pages_of, report_of
from builders.run_factory import BEGAN_T, SHARES, STALL_S, STEP_S, cut_t, edit, make_run
from builders.run_kinds import stall
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.core.report.answers import EXIT_CODES


def late(path: Path, share: float = 0.03) -> Path:
    """Let a share of each second's packets be 2 to 5 ms late."""

    def delay(fiber: dict) -> None:
        counts = fiber["lateness"]["counts"]
        moved = int(counts[3] * share / SHARES[3])
        counts[3] -= moved
        counts[11] += moved

    return edit(path, "metrics.jsonl", delay, where={"kind": "fiber"})


EACH_SECOND = tuple((second + 0.5, 0.02) for second in range(-5, 60))


@pytest.mark.parametrize(
    ("noisy", "fidelity", "verdict"),
    [
        pytest.param(False, "no", "fail", id="an empty log explains nothing"),
        pytest.param(True, "noisy host", "pass", id="stalls in every second explain them"),
    ],
)
def test_late_packets_that_stalls_explain_prevent_no_pass(run, noisy, fidelity, verdict):
    assert answers(report_of(late(run)))["fidelity"] == "no"
    report = report_of(stall(run, *(EACH_SECOND if noisy else ())))
    assert (answers(report)["fidelity"], report.verdict) == (fidelity, verdict)
    assert all(("stalls explain the late packets" in page) is noisy for page in pages_of(report))
    document_of(report)


def test_netem_is_not_measurable_on_a_noisy_host_too(tmp_path):
    report = report_of(stall(make_run(tmp_path / "r", emulator="netem"), *EACH_SECOND))
    assert (answers(report)["fidelity"], report.verdict) == ("not measurable", "pass")


@pytest.mark.parametrize("uncertified", [False, True])
def test_fidelity_does_not_overrule_unknown(tmp_path, uncertified):
    """The process of the job was killed: the result is unknown, whatever the fibers did."""
    report = report_of(late(make_run(tmp_path / "r", status="interrupted", steps=120, uncertified=uncertified)))
    assert answers(report)["fidelity"] == "no"
    assert report.verdict == "unknown"
    assert EXIT_CODES[report.verdict] == 3
    assert "interrupted" in report.headline


def test_a_failure_stays_a_failure_with_noise(tmp_path):
    run = stall(late(make_run(tmp_path / "r", status="failed", steps=260)), *EACH_SECOND)
    assert report_of(run).verdict == "fail"


# ---- uncertainty


RECOVERY_S = STEP_S + STALL_S
CUT_S = cut_t() - BEGAN_T


def expect(path: Path, text: str, measured: float, holds: bool) -> Path:
    return edit(path, "run.json", expectations=[{"text": text, "holds": holds, "measured": measured}])


def test_a_log_without_stalls_changes_nothing(run):
    """An expectation exactly at its bound, and a fiber at its limit, are where the least uncertainty would show."""
    expect(run, f"recovery <= {RECOVERY_S * 1e3:.0f}ms", RECOVERY_S, True)
    plain = report_of(run)
    quiet = report_of(stall(run))
    assert quiet.noise is not None
    assert plain.noise is None
    documents = [document_of(report) for report in (plain, quiet)]
    for document in documents:
        del document["noise"], document["uncertainty"]
    assert documents[0] == documents[1]


@pytest.mark.parametrize(
    ("bound", "recorded", "stalled_s", "holds"),
    [
        ("recovery <= 500ms", True, 0.1, True),
        ("recovery <= 500ms", True, 0.15, None),
        ("recovery <= 350ms", False, 0.02, False),
        ("recovery <= 350ms", False, 0.05, None),
        ("recovery >= 350ms", True, 0.05, None),
        ("recovery != 380ms", False, 0.05, None),
        ("recovery == 700ms", False, 0.05, False),
    ],
)
def test_a_verdict_within_the_uncertainty_of_recovery_is_unknown(run, bound, recorded, stalled_s, holds):
    """The gap is 380 ms; a stall in it may have been a part of it."""
    report = report_of(stall(expect(run, bound, RECOVERY_S, recorded), (CUT_S + 0.1, stalled_s)))
    assert report.run.expectations[0].holds is holds
    assert answers(report)["expected-1"] == {True: "yes", False: "no", None: "unknown"}[holds]
    assert report.verdict == {True: "pass", False: "fail", None: "unknown"}[holds]
    assert report.faults[0].uncertainty_s == pytest.approx(stalled_s)
    assert report.uncertainty["recovery"] == pytest.approx((RECOVERY_S - stalled_s, RECOVERY_S + stalled_s))
    if holds is None:
        assert report.headline == "The host was too noisy for a verdict."
    document_of(report)


def test_a_stall_outside_the_gap_leaves_recovery_alone(run):
    expect(run, "recovery <= 381ms", RECOVERY_S, True)
    report = report_of(stall(run, (CUT_S - 5.0, 0.5), (CUT_S + 5.0, 0.5)))
    assert report.verdict == "pass"
    assert "recovery" not in report.uncertainty


def test_goodput_depends_on_where_the_stalls_were(run):
    """In quiet steps they slow the fault-free pace too; at the cut they cost goodput."""
    wall_s = 400 * STEP_S + STALL_S + 0.07
    in_quiet = report_of(stall(run, *((second, 0.1) for second in range(1, 20))))
    at_cut = report_of(stall(run, (CUT_S + 0.05, 0.3)))
    goodput = at_cut.goodput
    low, high = at_cut.uncertainty["goodput"]
    assert low == pytest.approx(goodput / (1 + 0.3 / wall_s), rel=1e-3)
    assert high == pytest.approx(goodput / (1 - 0.3 / wall_s), rel=1e-3)
    low, high = in_quiet.uncertainty["goodput"]
    assert high - low < 0.02, "1.9 s of 52 s were stalled, nearly all of them at the pace"
    assert low < goodput < high


def test_goodput_within_its_uncertainty_is_at_most_one(run):
    assert report_of(stall(run, (CUT_S + 2.0, 0.6))).uncertainty["goodput"].high == 1.0


def test_timeouts_that_began_in_a_stall_add_their_time(run):
    timeouts = {"kind": "tcp_timeouts", "t": cut_t() + 0.6, "since_t": cut_t() - 0.4, "node": "west-0", "count": 1}
    edit(stall(run, (CUT_S + 0.05, 0.02)), "metrics.jsonl", lambda lines: [*lines, timeouts])
    report = report_of(run)
    assert report.faults[0].uncertainty_s == pytest.approx(0.22)
    assert report.noise.timeouts == 1
    assert report.malformed == {}


def test_what_noise_cannot_cause_stays_a_failure(run):
    """Stalls do not affect lost steps and wrong sums."""
    expect(run, "steps_lost <= 3", 4.0, False)
    assert report_of(stall(run, *EACH_SECOND)).verdict == "fail"


EXPECTATIONS = ["goodput >= 0.99", "goodput >= 0.9", "recovery <= 400ms", "recovery <= 370ms"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.floats(0, 53), st.floats(2e-4, 0.6)), max_size=6),
    st.lists(st.tuples(st.floats(0, 53), st.floats(2e-4, 0.6)), max_size=6),
    st.sampled_from(EXPECTATIONS),
)
def test_more_stalls_only_make_verdicts_unknown(expected_runs, stalls, further, text):
    plain, run = expected_runs[text]
    noisy = report_of(stall(run, *stalls))
    noisier = report_of(stall(run, *stalls, *further))
    assert noisy.verdict in (plain, "unknown")
    assert noisier.verdict in (noisy.verdict, "unknown")
    for name, (low, high) in noisy.uncertainty.items():
        assert noisier.uncertainty[name].low <= low + 1e-9
        assert noisier.uncertainty[name].high >= high - 1e-9


@pytest.fixture(scope="module")
def expected_runs(tmp_path_factory):
    """Return the verdict without stalls and the run, by expectation."""
    runs = {}
    for index, text in enumerate(EXPECTATIONS):
        run = make_run(tmp_path_factory.mktemp("expected") / str(index))
        report = report_of(run)
        value = report.goodput if text.startswith("goodput") else report.recovery_s
        bound = float(text.split()[-1].removesuffix("ms")) / (1 if text.startswith("goodput") else 1e3)
        expect(run, text, value, value >= bound if ">=" in text else value <= bound)
        runs[text] = (report_of(run).verdict, run)
    assert {verdict for verdict, _ in runs.values()} == {"pass", "fail"}
    return runs


def test_a_steady_state_that_stalls_may_have_violated_is_unknown(run):
    began_t = BEGAN_T + 30.0
    check = {
        "when": "after",
        "text": "tokens_per_s >= 80% of before",
        "holds": False,
        "measured": 5000.0,
        "bound": 6000.0,
        "samples": 40,
        "violations": [{"began_t": began_t, "ended_t": began_t + 2.5, "measured": 5000.0}],
        "why": "failed for longer than its grace",
    }
    quiet = report_of(edit(run, "run.json", hypothesis=[check]))
    assert (answers(quiet)["steady-1"], quiet.verdict) == ("no", "fail")
    report = report_of(stall(run, *((28.0 + index, 0.3) for index in range(4))))
    assert (answers(report)["steady-1"], report.verdict) == ("unknown", "unknown")
    assert "stalls of the host may account for that" in markdown(report)
