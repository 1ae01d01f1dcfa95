"""Measured audits: the cost of cuts, from step records with a known pace; mistakes; and the output."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.cli_fixtures import Call, Cli, cli
from builders.jobs import faults, ranks
from builders.tables import table

from testbed.core.analysis.cut_impact import CutImpact, impacts
from testbed.core.topology.model import Topology
from testbed.errors import UnknownName, UserError
from testbed.host.files import catalog
from testbed.lab.run import measured_audit as lab_audit
from testbed.lab.run.measured_audit import Measured

__all__ = ["cli"]  # a fixture


def test_impacts_are_pace_before_and_during_a_cut_and_the_longest_gap() -> None:
    """Ten steps a second for 10 s, five a second while the cut lasts, nothing for a second in it, then ten again."""
    (impact,) = impacts(ranks("100*.1 1 15*.2 59*.1"), faults("10..14"), 20.0)
    assert impact.duct == "north"
    assert impact.lasted_s == pytest.approx(4.0)
    assert impact.steps_per_s_before == pytest.approx(10.0)
    assert impact.steps_per_s_during == pytest.approx(16 / 4.0)
    assert impact.goodput == pytest.approx(0.4)
    assert impact.longest_gap_s == pytest.approx(1.0)
    assert impact.came_back


def test_impacts_of_the_next_cut_are_measured_by_the_time_after_the_first() -> None:
    """The time before the second cut begins after the first has ended, not a fixed time before."""
    first, second = impacts(ranks("50*.1 3.1 19*.1 79*.1"), faults("5..8 10..13"), 20.0)
    assert first.goodput == 0.0
    assert second.steps_per_s_before == pytest.approx(10.0)


def test_impacts_of_a_job_that_does_not_come_back() -> None:
    (impact,) = impacts(ranks("50*.1"), faults("5..9"), 60.0)
    assert (impact.steps_per_s_during, impact.came_back) == (0.0, False)


def test_impacts_leave_out_a_cut_that_was_not_ended() -> None:
    assert impacts(ranks(".1"), faults("5..")) == []


def test_impacts_without_records_are_unknown() -> None:
    (impact,) = impacts([], faults("5..9"))
    assert (impact.steps_per_s_before, impact.goodput, impact.came_back) == (None, None, False)


# ---- before anything is brought up


def test_measure_refuses_an_unknown_duct() -> None:
    with pytest.raises(UnknownName, match="did you mean river-bridge"):
        lab_audit.measure(catalog.load_topology("regional-ring"), only=["river-brige"])


def test_measure_refuses_a_topology_without_links() -> None:
    with pytest.raises(UserError, match="has no links to cut"):
        lab_audit.measure(Topology("alone", 1.0, (), ()))


@table(
    "words, message",
    {
        "--only without --measure": ("--only motorway", "--only needs --measure"),
        "--name without --measure": ("--name x", "--name needs --measure"),
        "a cut that is too long": ("--measure --hold 60s", "from 0.5 s to 20 s"),
        "a cut without a duration": ("--measure --hold soon", "--hold"),
    },
)
def test_audit_refuses_options(cli: Cli, words: str, message: str) -> None:
    Call(f"audit regional-ring {words}", 2, err=message).check(cli)


# ---- output


@table(
    "status, code, why, left",
    {
        "finished": ("finished", 0, "", ()),
        "interrupted": ("interrupted", 130, "it broke", ("valley",)),
        "failed": ("failed", 3, "it broke", ("valley",)),
    },
)
def test_audit_shows_what_was_measured_whatever_ended_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, status: str, code: int, why: str, left: tuple[str, ...]
) -> None:
    rows = (
        CutImpact("motorway", ("alba-brava",), 4.0, 10.0, 4.0, 0.4, 1.25, 0.5, True),
        CutImpact("coast", ("costa-alba",), 4.0, None, 0.0, None, None, None, False),
    )
    result = Measured(rows, left, status, why, Path("/runs/x"))
    monkeypatch.setattr(lab_audit, "measure", lambda *given, **more: result)
    monkeypatch.setenv("COLUMNS", "150")
    shown = Call("audit regional-ring --measure", code, out=("motorway", "40%", "1.25 s", "500 ms", "never")).check(cli)
    assert ("not cut: valley" in shown.out) == bool(left)
