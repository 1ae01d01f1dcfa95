"""The report of a launched program: by the steps that it prints, and without any by its traffic."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from builders import program_factory
from builders.reports import answers, check, document_of, figures, html, markdown, pages_of, report_of
from builders.run_factory import edit

from testbed.cli import reports
from testbed.core.experiment import expect
from testbed.core.report import open_metrics
from testbed.core.report.comparison.comparison import compare
from testbed.core.report.comparison.run_side import side_of_run
from testbed.core.report.document import Report
from testbed.core.report.junit import junit
from testbed.core.report.measured import measured
from testbed.host.files.store import RunDirectory

STALLED = 120
DURATIONS = [0.13 + 0.001 * (step % 7) for step in range(300)]
DURATIONS[STALLED] += 9.0
ENDS = program_factory.ends_of(DURATIONS)
CUT = (ENDS[STALLED] + 0.05, ENDS[STALLED] + 8.05)
OUTPUT = [f"iter {step}: loss {4 - step / 1000:.4f}, time 130.00ms, mfu 1.00%" for step in range(300)]
SILENT: dict[str, Any] = {"printing": (), "progress": {"calls": True}}
"""No step is read."""


def made(path: Path, ends: Sequence[float] = ENDS, **options: Any) -> Report:
    return report_of(program_factory.make_program(path / "run", ends, cut=CUT, **options))


@pytest.fixture(scope="module")
def printing(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Every step is printed."""
    return made(tmp_path_factory.mktemp("printing"))


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """No step is read, though the output has them."""
    return made(tmp_path_factory.mktemp("silent"), **SILENT, output=OUTPUT)


@pytest.mark.parametrize("every", [1, 10])
def test_printed_steps_give_the_figures_of_an_own_job(tmp_path: Path, every: int) -> None:
    report = made(tmp_path, every=every)
    document = document_of(report)
    training = document["training"]
    last = 300 // every * every
    skew_s = 0.006
    assert (report.verdict, training["steps_committed"]) == ("pass", last + 1)
    assert training["median_step_s"] == pytest.approx(0.133, abs=0.001)
    assert training["recovery_s"] == pytest.approx(9.13, abs=0.02)
    assert training["wall_s"] == pytest.approx(sum(DURATIONS[:last]))
    assert training["tokens_per_s"] == pytest.approx(1024 * last / sum(DURATIONS[:last]), rel=1e-6)
    assert training["goodput"] == pytest.approx(0.133 * last / sum(DURATIONS[:last]), rel=0.01)
    assert (training["train_loss_first"], training["train_loss_last"]) == (
        pytest.approx(4.0, abs=0.06), pytest.approx(3.7, abs=0.06)
    )  # fmt: skip
    assert document["steps"]["covers"] == [every] * (last // every)
    assert document["steps"]["t_s"][0] == pytest.approx(ENDS[every] + skew_s - program_factory.BEGAN_T)
    assert document["program"]["starts_s"] == pytest.approx(program_factory.FIRST_STEP_S + skew_s)
    assert document["program"]["offer"] is None
    assert answers(report)["progressed"] == answers(report)["recovered"] == "yes"
    assert report.headline == "The program ran, and came through the cut of north and 1 more fault."
    assert {it.id for it in figures(report)} >= {"step-time", "tokens-per-second", "train-loss", "throughput"}
    check(report, shown=["by the preset nanogpt"])
    for page in pages_of(report):
        assert ("Usually 10 steps lie between two prints" in page) == (every == 10)
        assert "compute utilization" not in page.split("<script")[0]


def test_what_only_agents_record_is_absent_and_the_page_says_why(printing: Report) -> None:
    training = document_of(printing)["training"]
    assert [training[key] for key in ("compute_s", "peer_wait_s", "network_s")] == [None] * 3
    assert not {figure.id for figure in figures(printing)} & {"time-of-ranks", "rank-seconds"}
    assert "wire" not in answers(printing)
    for form in pages_of(printing):
        page = form.split("<script")[0]
        assert "come from records that only the testbed" in page
        assert "not told apart" in page
        assert not re.search(r"<td[^>]*>–</td>|\| – \|", page.split("Run and host")[0].split("Certified before")[0])


def test_without_steps_the_traffic_tells_of_the_recovery(silent: Report) -> None:
    document = document_of(silent)
    gap_s = DURATIONS[STALLED] - 0.1  # bytes cross in the last 100 ms of the stalled step
    tracks = {track["name"]: track for track in document["traffic"]}
    assert {track["kind"] for track in tracks.values()} == {"site", "fiber", "node"}
    assert "rank 2 on west-0, sent" in tracks
    for track in tracks.values():
        assert track["silences"] == 1
        assert track["longest"]["least_s"] <= gap_s <= track["longest"]["most_s"]
        assert track["longest_calm"] is None
    (back, *_) = tracks["toward west"]["back"]
    assert 0 < back["back_within_s"] - (gap_s - 0.05) <= 1.0, "the first reading after the traffic came back"
    assert document["idle"] == ["south:east", "south:west"]
    assert not {"progressed", "recovered"} & set(answers(silent))
    check(
        silent,
        "pass",
        traffic="yes",
        shown=["it was back at most", "no traffic toward east and toward west for 8 s to 10 s"],
        hidden=["No step"],
    )


def test_it_offers_the_preset_that_reads_the_output(silent: Report) -> None:
    assert silent.program.offer.yaml == "progress: nanogpt"
    assert silent.program.offer.ranks == (0, 1, 2, 3)
    check(silent, shown=["progress: nanogpt", "--progress nanogpt"])
    assert "progress: nanogpt" in reports.offer(silent)


def test_it_offers_an_example_where_no_line_looks_like_a_step(tmp_path: Path) -> None:
    report = made(tmp_path, **SILENT, output=["listening on port 4000", "done"])
    assert reports.offer(report) == ""
    assert "this is an example" in markdown(report)


def test_a_pattern_that_matched_nothing_leaves_the_verdict_open(tmp_path: Path) -> None:
    """It was asked for the steps, so that a run without any is no success."""
    report = made(tmp_path, printing=(), output=["[Step 1/3] training loss=4.0", "[Step 2/3] training loss=3.9"] * 4)
    check(report, "unknown", progressed="unknown")


def test_a_program_that_died_in_the_cut_did_not_come_through(tmp_path: Path) -> None:
    report, silent = (
        made(tmp_path / str(len(ranks)), ENDS[: STALLED + 1], statuses=(1, 137, None, None), printing=ranks)
        for ranks in (range(4), ())
    )
    check(report, "fail", recovered="no")
    assert report.training.recovery_open
    check(silent, "fail")


def test_a_restart_inside_the_program_is_an_attempt(tmp_path: Path) -> None:
    run = program_factory.make_program(tmp_path / "run", ENDS, cut=CUT)
    edit(
        run,
        "ranks/rank-*.jsonl",
        lambda lines: [{**line, "step": line["step"] - 50} if line.get("step", 0) > 120 else line for line in lines],
    )
    report = report_of(run)
    document = document_of(report)
    first, second = document["attempts"]
    assert (first["steps_lost"], second["resumed_from"], document["training"]["steps_lost"]) == (50, 70, 50)
    assert first["cause"] in ("cut north", "cut south")
    assert document["training"]["steps_committed"] == 251
    assert measured(report)["restarts"] == 1
    check(report, restarted="yes", shown=["the program went back to step 71 by itself"])


def test_metrics_of_expectations_are_those_of_an_own_job(printing: Report) -> None:
    values = measured(printing)
    names = {name for name, value in values.items() if value is not None}
    assert names >= {"goodput", "recovery", "train_loss_drop", "steps_lost", "attempts", "restarts"}
    assert not names & {"compute_utilization", "wire_ratio", "wrong_sums", "hangs"}
    assert values["train_loss_drop"] == pytest.approx(0.291, abs=0.01)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("recovery <= 2s", True),
        ("recovery <= 1s", None),
        ("recovery >= 2s", False),
        ("recovery >= 1s", None),
        ("recovery == 2s", False),
    ],
)
def test_an_upper_bound_meets_what_it_is_below_of_and_nothing_else(text: str, holds: bool | None) -> None:
    metric = open_metrics.OpenMetric(1.4, open_metrics.AT_MOST, False, resolved=True)
    assert open_metrics.judge(expect.parse(text), metric) is holds


def test_a_short_gap_of_a_program_that_prints_seldom_is_told_as_a_bound(tmp_path: Path) -> None:
    durations = [0.13] * 300
    durations[STALLED] += 0.5
    ends = program_factory.ends_of(durations)
    cut = (ends[STALLED] + 0.05, ends[STALLED] + 0.45)
    report = report_of(program_factory.make_program(tmp_path / "run", ends, every=10, cut=cut))
    assert report.training.recovery_at_most
    assert report.open_metrics["recovery"].bound == "at most"
    assert document_of(report)["faults"][0]["gap_at_most"] is True
    assert "at most 1.8 s, less than two prints take" in html(report)
    assert "&lt;= 1.8 s" in markdown(report)


def test_two_programs_are_compared_by_their_steps_and_their_traffic(tmp_path: Path) -> None:
    sides = []
    for name, options in (("a", {}), ("b", SILENT)):
        run = program_factory.make_program(tmp_path / name, ENDS, cut=CUT, **options)
        sides.append(side_of_run(name, str(run), RunDirectory(run).read()))
    found = compare(*sides).sections
    assert {it.id: it.judgement for it in found["figures"]}["recovery_s"] == "only in A"
    assert {it.id for it in found["traffic"]} == {"toward east", "toward west", "north:east", "north:west"}
    both = compare(sides[0], sides[0]).sections["figures"]
    assert {it.id for it in both} >= {"median_step_s", "tokens_per_s_outside_faults", "goodput", "recovery_s"}
    without = {it.id for it in compare(sides[1], sides[1]).sections["figures"]}
    assert not without & {"median_step_s", "tokens_per_s", "goodput", "steps_committed", "recovery_s"}


def test_ci_gets_a_case_for_each_question(printing: Report) -> None:
    written = junit(printing)
    for question in ("Did it run?", "Did it make progress?", "Did it come through?"):
        assert f'name="{question}"' in written
    assert 'failures="0"' in written and 'errors="0"' in written
