"""Who is to blame for the ends of processes: the testbed, the program, or a sender unknown."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from builders.run_factory import cut_t, edit, make_run
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.analysis.blame import OWN_SIGNALS, blame
from testbed.core.records.process_end import ProcessEnd
from testbed.core.report.document import Report
from testbed.host.files.store import RunDirectory, build_report


def killed(rank: int = 2, t: float = 5.0, number: int = signal.SIGKILL, **more: Any) -> ProcessEnd:
    return ProcessEnd(rank, t, signal=number, **{"by_testbed": False, **more})


def exited(status: int, rank: int = 0, t: float = 5.0) -> ProcessEnd:
    return ProcessEnd(rank, t, by_testbed=False, status=status)


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ([], ""),
        ([exited(0)], ""),
        ([killed(by_testbed=True)], ""),
        ([killed()], "rank 2: SIGKILL, sender unknown"),
        ([killed(number=signal.SIGTERM)], "rank 2: SIGTERM, sender unknown"),
        ([killed(number=40)], "rank 2: signal 40, sender unknown"),
        ([killed(out_of_memory=True)], "rank 2: SIGKILL, out of memory (counted by its control group)"),
        ([killed(None)], "the fork server of the ranks: SIGKILL, sender unknown"),
        ([killed(), exited(1, t=5.1)], "rank 2: SIGKILL, sender unknown"),
        ([killed(t=5.1), exited(1, t=5.0)], "rank 2: SIGKILL, sender unknown"),  # noticed in the wrong order
    ],
)
def test_blame_of_a_signal_of_a_sender_unknown(ends: list[ProcessEnd], says: str) -> None:
    found = blame(ends)
    assert not found.own
    assert found.sentence == says


@pytest.mark.parametrize(
    ("ends", "says"),
    [
        ([killed(number=signal.SIGSEGV)], "rank 2: SIGSEGV, its own failure"),
        ([killed(number=signal.SIGABRT), exited(1)], "rank 2: SIGABRT, its own failure; rank 0: exit status 1"),
        ([exited(3)], "rank 0: exit status 3"),
        ([exited(3, t=1.0), killed(t=9.0)], "rank 0: exit status 3"),
        ([exited(1, rank, 1.0) for rank in range(6)], "; and 2 more"),
    ],
)
def test_blame_of_what_a_program_did_to_itself(ends: list[ProcessEnd], says: str) -> None:
    found = blame(ends)
    assert not found.unexplained
    assert found.sentence.endswith(says)


ENDS = st.builds(
    ProcessEnd,
    st.integers(0, 7),
    st.floats(0.0, 100.0),
    st.integers(0, 255),
    st.integers(0, 64),
    st.booleans(),
)


@given(st.lists(ENDS, max_size=6))
def test_blame_is_exact(ends: list[ProcessEnd]) -> None:
    """At most one of both; nothing that the testbed did, nothing that ended well, whatever else happened."""
    found = blame(ends)
    blamed = (*found.unexplained, *found.own)
    assert not (found.unexplained and found.own)
    assert not any(it.by_testbed or (it.signal == it.status == 0) for it in blamed)
    foreign = [it for it in ends if it.signal and not it.by_testbed and it.signal not in OWN_SIGNALS]
    assert bool(blamed) == any(not it.by_testbed and (it.signal or it.status) for it in ends)
    assert set(found.unexplained) in (set(), set(foreign))


# ---- in a report


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def judged(run: Path) -> Report:
    return build_report(RunDirectory.open(run))


def died(run: Path, **fields: Any) -> None:
    death = {"event": "rank-died", "rank": 2, "pid": 7, "t": cut_t() + 1, **fields}
    edit(run, "events.jsonl", lambda events: [*events, death])


OF_THE_TESTBED, FOREIGN = ({"by_testbed": ours, "out_of_memory": False} for ours in (True, False))


def test_report_of_a_foreign_signal_during_a_cut_leaves_the_verdict_open(run: Path) -> None:
    assert judged(run).verdict == "pass"
    died(run, signal=9, **FOREIGN)
    report = judged(run)
    assert report.verdict == "unknown"
    assert report.headline == "A process was ended by a signal whose sender is unknown."
    assert "rank 2: SIGKILL, sender unknown." in report.sentences


@table(
    "end, verdict",
    {
        "what the testbed killed changes nothing": ({"signal": 9, **OF_THE_TESTBED}, "pass"),
        "a run of an earlier release is judged as before": ({"signal": 9}, "pass"),
        "a SIGSEGV fails": ({"signal": 11, **FOREIGN}, "fail"),
        "a SIGABRT fails": ({"signal": 6, **FOREIGN}, "fail"),
        "an exit status fails": ({"code": 1, **FOREIGN}, "fail"),
    },
)
def test_report_of_a_job_that_recovered(run: Path, end: dict[str, Any], verdict: str) -> None:
    died(run, **end)
    assert judged(run).verdict == verdict


def test_report_after_a_foreign_signal_has_no_failure_of_the_job(run: Path) -> None:
    edit(run, "run.json", status="failed", reason="rank 2 gone")
    assert judged(run).verdict == "fail"
    died(run, signal=9, by_testbed=False, out_of_memory=True)
    assert judged(run).verdict == "unknown"


@table(
    "statuses, verdict",
    {
        "it ended well": ([0], "pass"),
        "it failed": ([3], "fail"),
        "it crashed": ([139], "fail"),
        "it was killed": ([137], "unknown"),
        "it failed after a peer was terminated": ([143, 1], "unknown"),
    },
)
def test_report_of_a_launched_program(run: Path, statuses: list[int], verdict: str) -> None:
    for name in ("events.jsonl", *(f"ranks/rank-{rank}.jsonl" for rank in range(4))):
        (run / name).unlink()
    ends = [
        {"rank": rank, "t": 1010.0, **FOREIGN, **({"signal": status - 128} if status > 128 else {"code": status})}
        for rank, status in enumerate(statuses)
    ]
    edit(run, "run.json", workload={"command": "./a.out", "statuses": statuses, "ends": ends}, expectations=[])
    report = judged(run)
    assert report.verdict == verdict, report.sentences
    assert report.answers[0].answer == {"pass": "yes", "fail": "no", "unknown": "unknown"}[verdict]
