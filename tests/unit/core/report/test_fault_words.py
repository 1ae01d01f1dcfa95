"""Faults in words with their parameters, in every place of a report that names them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders.reports import answer, check, document_of, html, markdown, pages_of, report_of
from builders.run_factory import edit
from builders.run_kinds import launched

from testbed.core.faults.fault_registry import registry
from testbed.core.records.event import Event
from testbed.core.report import fault_words
from testbed.core.report.sections import events_section

FORMS = (fault_words.in_full, fault_words.named, fault_words.short, fault_words.at_link)


@pytest.mark.parametrize(
    ("fault", "target", "parameters", "full", "named", "short", "at_link"),
    [
        ("cut", "north", {}, "cut north", "the cut of north", "cut north", "cut"),
        ("cut", "north:west", {}, "cut north toward west", "the cut of north toward west", "cut north:west",
         "cut toward west"),
        ("cut", "north", {"carrier": "silent"}, "cut north (carrier silent)", "the cut of north (carrier silent)",
         "cut north (carrier silent)", "cut (carrier silent)"),
        ("impair", "north:west", {"loss": "0.5%"}, "loss 0.5 % on north toward west", "loss 0.5 % on north toward west",
         "loss 0.5 % north:west", "loss 0.5 % toward west"),
        ("impair", "north", {"delay": "5ms", "rate": "100M"}, "delay 5 ms, rate 100 Mb/s on north",
         "delay 5 ms, rate 100 Mb/s on north", "delay 5 ms, rate 100 Mb/s north", "delay 5 ms, rate 100 Mb/s"),
        ("rate-squeeze", "north", {"to": "10%"}, "rate-squeeze to 10 % on north", "the rate-squeeze to 10 % on north",
         "rate-squeeze to 10 % north", "rate-squeeze to 10 %"),
        ("brown-out", "south", {"loss": "2%", "over": "1s"}, "brown-out to a loss of 2 % on south (over 1 s)",
         "the brown-out to a loss of 2 % on south (over 1 s)", "brown-out to a loss of 2 % south (over 1 s)",
         "brown-out to a loss of 2 % (over 1 s)"),
        ("straggler", "3", {"slower": "3x"}, "straggler rank 3 (slower 3x)", "the straggler of rank 3 (slower 3x)",
         "straggler 3 (slower 3x)", "straggler (slower 3x)"),
        ("", "", {}, "", "the ", "", ""),
    ],
)  # fmt: skip
def test_a_fault_in_words(fault, target, parameters, full, named, short, at_link) -> None:
    assert [form(fault, target, parameters) for form in FORMS] == [full, named, short, at_link]


@pytest.mark.parametrize("name", sorted(registry()))
def test_no_parameter_of_any_kind_of_fault_is_left_out(name: str) -> None:
    written = {key: f"{number}7ms" for number, key in enumerate(registry()[name].parameters, 1)}
    for form in FORMS:
        words = form(name, "north:west", written)
        assert all(f"{number}7 ms" in words for number in range(1, len(written) + 1)), words


@pytest.fixture
def impaired(run: Path) -> Path:
    """A run whose only fault is loss toward west for 10 s, as the keeper records it."""
    planned = {"target": "north:west", "parameters": {"loss": "0.5%"}, "lasts_s": 10.0}
    edit(run, "events.jsonl", lambda events: [event for event in events if event["event"] != "carrier"])
    edit(run, "events.jsonl", where={"fault": "f1"}, type="impair", **planned)
    edit(run, "events.jsonl", where={"event": "fault-began"}, phase="impaired")
    schedule = [{"inject": "impair", **planned, "after_step": 200, "repeat": 1, "began": 1}]
    return edit(run, "run.json", schedule=schedule)


def test_every_place_of_a_report_has_the_parameters(impaired: Path) -> None:
    report = report_of(impaired)
    words = "loss 0.5 % on north toward west"
    assert report.headline == f"It trained, and came through {words}."
    assert answer(report, "recovered").text.startswith("Loss 0.5 % on north toward west at 26.1 s for 10 s: ")
    (began,) = [event.text for event in report.events if event.event == "fault-began"]
    assert began == f"{words}, 10 s (f1)"
    assert document_of(report)["faults"][0]["parameters"] == {"loss": "0.5%"}
    assert "loss 0.5 % toward west at 26.1 s for 10 s" in html(report), "the map"
    # What the experiment teaches, and the schedule.
    check(report, shown=["A cut is a pause, not an end.", "after step 200", "1 of 1"])
    assert all(page.count(words) >= 4 for page in pages_of(report)), "headline, schedule, table, events"


def test_runs_of_earlier_versions_show_the_values_that_a_fault_gave(impaired: Path) -> None:
    def without_parameters(event: dict) -> None:
        del event["parameters"], event["lasts_s"]

    values = [{"key": "loss", "text": "0.5%", "by": ["f1"]}, {"key": "jitter", "text": "2us", "by": ["f9"]}]
    in_force = {"north:west": {"direction": "north:west", "dark_by": [], "values": values}}
    edit(impaired, "events.jsonl", without_parameters, where={"fault": "f1"})
    edit(impaired, "events.jsonl", where={"event": "fault-began"}, in_force=in_force)
    edit(impaired, "run.json", schedule=[{"inject": "impair", "target": "north:west", "at_s": 3.0, "began": 1}])
    report = report_of(impaired)
    assert report.faults[0].words == "loss 0.5 % on north toward west"
    ended = [event.text for event in report.events if event.event == "fault-ended"]
    assert ended == ["loss 0.5 % on north toward west (f1)"]
    assert "| at 3 s | impair north toward west | 1 of 1 |" in markdown(report)


# ---- events are folded after twenty


def test_a_ramp_s_phases_are_folded_before_what_happened_after_them() -> None:
    ramp = [Event(float(t), "fault-phase", {"fault": "f1", "phase": f"loss {t}%"}) for t in range(40)]
    listed = events_section.lines([*ramp, Event(50.0, "fault-began", {"fault": "f2"})], 0.0)
    first, further = events_section.table(listed), events_section.folded(listed)
    assert first and further
    assert [row[0] for row in first.rows] == [*(f"{t}.000" for t in range(19)), "50.000"]
    assert further.label == "21 more events"


@pytest.mark.parametrize(("count", "shown", "folded"), [(0, 0, 0), (1, 1, 0), (20, 20, 0), (21, 20, 1), (300, 20, 280)])
def test_all_events_are_there_and_those_after_twenty_are_folded(count: int, shown: int, folded: int) -> None:
    listed = events_section.lines([Event(float(t), "note", {"text": f"note {t}"}) for t in range(count)], 0.0)
    tables = events_section.table(listed), events_section.folded(listed)
    rows = [table.rows if table else [] for table in tables]
    assert [row[2] for part in rows for row in part] == [f"note {t}" for t in range(count)]
    assert [len(part) for part in rows] == [shown, folded]
    assert tables[1] is None or tables[1].label == f"{folded} more event{'s' if folded > 1 else ''}"


def test_a_page_with_many_events_folds_them_and_markdown_too(impaired: Path) -> None:
    notes = [{"t": 1100.0 + number, "event": "note", "text": f"note number {number}"} for number in range(30)]
    edit(impaired, "events.jsonl", lambda events: events + notes)
    for form in pages_of(report_of(impaired)):
        before, after = form.split("more events</summary>")
        assert before.rstrip("0123456789 \u202f").endswith("<summary>")
        assert "note number 0" in before
        assert "note number 29" in after
        assert "note number 29" not in before.split("Events")[-1]


# ---- a launched program


def test_the_report_of_a_launched_program_has_no_empty_figures_or_tables(run: Path) -> None:
    workload = {"statuses": [0, 0], "began_t": [1007.5, 1007.6], "ended_t": [1050.0, 1051.0]}
    report = report_of(edit(launched(run, **workload), "run.json", experiment={}))
    page, text = html(report), markdown(report)
    # The pattern that is offered names what it would read.
    page = re.sub(r'<pre class="offer">.*?</pre>', "", page, flags=re.DOTALL)
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for form in (page, text):
        for empty in ("train_loss", "compute utilization", "tokens per second", "– → –", "steps lost", "came through"):
            assert empty not in form.split("<script")[0], empty
        assert "Experiment" not in form
    assert "43.5 s" in page, "how long the program ran"
    assert "goodput" not in text.lower()
    assert "Missing from the run directory" not in page
