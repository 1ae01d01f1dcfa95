"""What the cuts of a measured audit cost, from made-up step records whose pace is known; and the words about it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from builders.cli_fixtures import Cli, cli

from testbed.core.analysis.cut_impact import CutImpact, impacts
from testbed.core.analysis.timeline import FaultWindow
from testbed.core.records.rank_log import JobRecord, RankLog, StepRecord
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName, UserError
from testbed.host.files import catalog
from testbed.lab import measured_audit as lab_audit
from testbed.lab.measured_audit import Measured

__all__ = ["cli"]  # a fixture


def log_of(rank: int, ends: list[float]) -> RankLog:
    """A rank's records of steps that end at these times, each beginning where the one before ended."""
    job = JobRecord(0.0, rank, 2, f"n-{rank}", "east", "ddp", 1, 4, 10_000)
    spans = enumerate(itertools.pairwise([0.0, *ends]), 1)
    return RankLog(
        rank, (job,), tuple(StepRecord(step, begin, begin, end, end, 10, 1.0) for step, (begin, end) in spans)
    )


def window(duct: str, began_t: float, ended_t: float | None) -> FaultWindow:
    return FaultWindow("f1", "cut", duct, ("north",), began_t, ended_t)


def test_pace_before_and_during_and_the_gap() -> None:
    """Ten steps a second for 10 s, five a second while the cut lasts, nothing for a second in it, then ten again."""
    ends = [round(0.1 * n, 3) for n in range(1, 101)]
    ends += [round(11.0 + 0.2 * n, 3) for n in range(0, 16)]  # 11.0 … 14.0
    ends += [round(14.0 + 0.1 * n, 3) for n in range(1, 60)]
    (found,) = impacts([log_of(0, ends), log_of(1, ends)], [window("motorway", 10.0, 14.0)], 20.0)
    assert found.duct == "motorway"
    assert found.lasted_s == pytest.approx(4.0)
    assert found.steps_per_s_before == pytest.approx(10.0)
    assert found.steps_per_s_during == pytest.approx(16 / 4.0)
    assert found.goodput == pytest.approx(0.4)
    assert found.longest_gap_s == pytest.approx(1.0)
    assert found.came_back


def test_what_was_slow_after_one_cut_is_no_measure_for_the_next() -> None:
    """The time before the second cut begins after the first has ended, not a fixed time before."""
    ends = [round(0.1 * n, 3) for n in range(1, 51)]  # to 5.0
    ends += [round(8.0 + 0.1 * n, 3) for n in range(1, 21)]  # nothing from 5 to 8
    ends += [round(10.0 + 0.1 * n, 3) for n in range(1, 80)]
    windows = [window("one", 5.0, 8.0), window("two", 10.0, 13.0)]
    first, second = impacts([log_of(0, ends), log_of(1, ends)], windows, 20.0)
    assert first.goodput == 0.0
    assert second.steps_per_s_before == pytest.approx(10.0)


def test_a_job_that_does_not_come_back() -> None:
    ends = [round(0.1 * n, 3) for n in range(1, 51)]
    (found,) = impacts([log_of(0, ends), log_of(1, ends)], [window("bridge", 5.0, 9.0)], 60.0)
    assert (found.steps_per_s_during, found.came_back) == (0.0, False)


def test_a_cut_that_was_not_ended_is_left_out() -> None:
    assert impacts([log_of(0, [0.1]), log_of(1, [0.1])], [window("bridge", 5.0, None)]) == []


def test_without_records_nothing_is_made_up() -> None:
    (found,) = impacts([], [window("bridge", 5.0, 9.0)])
    assert (found.steps_per_s_before, found.goodput, found.came_back) == (None, None, False)


# ---- before anything is brought up


def test_a_duct_that_is_not_there() -> None:
    with pytest.raises(UnknownName, match="did you mean river-bridge"):
        lab_audit.measure(catalog.load_topology("regional-ring"), only=["river-brige"])


def test_a_topology_without_links() -> None:
    with pytest.raises(UserError, match="has no links to cut"):
        lab_audit.measure(Topology("alone", 1.0, (), ()))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--only", "motorway"), "--only needs --measure"),
        (("--name", "x"), "--name needs --measure"),
        (("--measure", "--hold", "60s"), "from 0.5 s to 20 s"),
        (("--measure", "--hold", "soon"), "--hold"),
    ],
)
def test_words_that_do_not_fit(cli: Cli, words: tuple[str, ...], why: str) -> None:
    said = cli("audit", "regional-ring", *words)
    assert said.status == 2
    assert why in said.err


# ---- what is shown


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("interrupted", 130), ("failed", 3)])
def test_what_was_measured_is_shown_whatever_ended_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    rows = (
        CutImpact("motorway", ("alba-brava",), 4.0, 10.0, 4.0, 0.4, 1.25, 0.5, True),
        CutImpact("coast", ("costa-alba",), 4.0, None, 0.0, None, None, None, False),
    )
    why = "" if status == "finished" else "it broke"
    result = Measured(rows, () if status == "finished" else ("valley",), status, why, Path("/runs/x"))
    monkeypatch.setattr(lab_audit, "measure", lambda *given, **more: result)
    monkeypatch.setenv("COLUMNS", "150")
    said = cli("audit", "regional-ring", "--measure")
    assert said.status == code
    for words in ("motorway", "40%", "1.25 s", "500 ms", "never"):
        assert words in said.out
    assert ("not cut: valley" in said.out) == (status != "finished")
