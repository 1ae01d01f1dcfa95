"""The report of a validation: what it says, that nothing breaks it, and that it can be made again from its JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import plotly.graph_objects as go
import pytest
from builders import validation_factory as factory
from builders.page_tree import tree_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import report_schema

from testbed.core.report.markdown import markdown as markdown_of
from testbed.core.report.validation.validation_figures import figures
from testbed.core.report.validation.validation_junit import junit
from testbed.core.report.validation.validation_matrix import OUTCOMES, STATES, MatrixEntry, headline, matrix
from testbed.core.report.validation.validation_page import html, page
from testbed.core.report.validation.validation_tables import error_rows, grid, wire_rows
from testbed.core.validation.baseline import BaselineComparison, compare
from testbed.core.validation.result import CaseResult, Cell, LibraryResult, Outcome, Speed, Validation
from testbed.core.validation.result_json import from_json, json_schema, to_json
from testbed.errors import StorageError, UserError
from testbed.host.files.store import RunDirectory, list_runs, read_summary
from testbed.host.files.validations import read_validation, rebuild_validation, write_validation
from testbed.lab import api

VALIDATOR = report_schema.validator(json_schema)
SCHEMA = VALIDATOR.schema
WHOLE = factory.validation()
LIBRARY = factory.library()
SKIPPED = factory.skipped()


def markdown(validation: Validation, comparison: BaselineComparison | None = None) -> str:
    return markdown_of(page(validation, comparison))


def entry(validation: Validation, row: str, library: int = 0) -> MatrixEntry:
    return next(shown.entries[library] for shown in matrix(validation) if shown.title == row)


def outcomes_of(xml: str, suite: str) -> dict[str, str]:
    """Return {name of a test case: failure, error, skipped or passed}."""
    cases = ElementTree.fromstring(xml).findall(f"testsuite[@name='{suite}']/testcase")
    return {case.attrib["name"]: case[0].tag if len(case) else "passed" for case in cases}


def json_of(validation: Validation) -> dict[str, Any]:
    """Return validate.json as read by a program, after validation by its schema."""
    document: dict[str, Any] = json.loads(json.dumps(to_json(validation), allow_nan=False))
    VALIDATOR.validate(document)
    return document


def forms_of(*arguments: Any) -> list[str]:
    return [form(*arguments) for form in (html, markdown, junit)]


# ---- JSON


@pytest.mark.parametrize("kind", [Validation, LibraryResult, CaseResult, Speed, Cell])
def test_the_schema_knows_every_field(kind):
    library = SCHEMA["properties"]["libraries"]["items"]
    parts = {CaseResult: "cases", Speed: "speeds", Cell: "cells"}
    described = library["properties"][parts[kind]]["items"] if kind in parts else library
    described = SCHEMA if kind is Validation else described
    assert set(described["properties"]) == {field.name for field in dataclasses.fields(kind)}
    assert set(described["required"]) == set(described["properties"])


def test_json_is_as_its_schema_says_and_is_read_again():
    document = json_of(WHOLE)
    assert from_json(document) == WHOLE
    document["verdict"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(document)


def test_what_is_no_finite_number_is_null_in_json_and_nan_again():
    unknown: Any = {"efficiency": math.inf, "bound_s": math.nan, "one_way_delays": math.nan, "times_s": (0.1, math.nan)}
    odd = dataclasses.replace(factory.speed(), **unknown)
    document = json_of(factory.validation(factory.library(speeds=(odd,))))
    read = from_json(document).libraries[0].speeds[0]
    assert math.isnan(read.efficiency) and math.isnan(read.bound_s) and math.isnan(read.times_s[1])
    assert all(forms_of(from_json(document)))


def test_a_later_version_may_add_properties():
    document = to_json(WHOLE)
    document["weather"] = "fine"
    document["libraries"][0]["cells"][0]["mood"] = "good"
    assert from_json(document) == WHOLE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 2}, "expected schema_version 1, got 2"),
        ({"libraries": "none"}, "libraries"),
        ({"libraries": [None]}, "libraries.0"),
        ({"links": 3}, "links"),
        ({"verdict": "perhaps"}, "verdict"),
    ],
)
def test_what_is_no_validation_is_refused_with_the_place(changes, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        from_json(to_json(WHOLE) | changes)


def test_what_is_no_object_and_what_has_no_version_is_refused():
    with pytest.raises(ValueError, match="expected a JSON object"):
        from_json([])
    document = to_json(WHOLE)
    del document["schema_version"]
    with pytest.raises(ValueError, match="expected schema_version 1, got None"):
        from_json(document)


# ---- the matrix


def test_the_matrix_has_a_row_for_each_thing_asked_and_a_column_for_each_library():
    rows = matrix(WHOLE)
    assert [row.title for row in rows] == [
        "verdict", "correctness", "speed", "cut, short", "cut, long", "failover", "loss 1 %", "rank killed",
    ]  # fmt: skip
    assert all(len(row.entries) == 4 for row in rows)


@pytest.mark.parametrize(("version", "note"), [("1", "version 1"), ("", "")])
def test_a_librarys_version_is_called_so(version, note):
    made = factory.validation(libraries=(factory.library("ring", version=version),))
    assert matrix(made)[0].entries[0].note == note


def test_a_wrong_result_is_the_only_thing_that_looks_like_one():
    kinds = {outcome: mark.kind for outcome, mark in OUTCOMES.items()} | {s: mark.kind for s, mark in STATES.items()}
    assert [name for name, kind in kinds.items() if kind == "worst"] == ["wrong result", "wrong"]
    assert entry(WHOLE, "cut, long", library=1).mark.word == "WRONG RESULT"


def test_no_two_marks_differ_by_colour_alone():
    for marks in (OUTCOMES, STATES):
        assert len({mark.word for mark in marks.values()}) == len(marks)
        assert all(mark.sign for mark in marks.values())


@pytest.mark.parametrize(
    ("states", "word", "kind"),
    [
        (("right", "right"), "2 right", "good"),
        (("right", "unsupported"), "1 right", "good"),
        (("error", "wrong", "hang"), "1 WRONG", "worst"),
        (("error", "hang", "right"), "1 hang", "bad"),
        (("unsupported",), "unsupported", "absent"),
        (("not run",), "not run", "unknown"),
    ],
)
def test_the_worst_case_speaks_for_correctness(states, word, kind):
    library = factory.library(cases=tuple(factory.case(state=state, count=i) for i, state in enumerate(states)))
    mark = entry(factory.validation(library), "correctness").mark
    assert (mark.word, mark.kind) == (word, kind)


def test_faster_than_light_is_bad_however_fast_the_rest():
    assert entry(factory.validation(factory.too_fast()), "speed").mark.kind == "bad"
    assert entry(factory.validation(LIBRARY), "speed").mark.word == "60 % of the bound"


@pytest.mark.parametrize(
    ("libraries", "sentence"),
    [
        ([LIBRARY], "On metro-40km: holds: torch-gloo."),
        ([LIBRARY, factory.library("b", title="B")], "On metro-40km: holds: torch-gloo and b."),
        (
            [LIBRARY, factory.broken(), factory.too_fast()],
            "On metro-40km: wrong results without an error: lame-ring; does not hold: mpich; holds: torch-gloo.",
        ),
        ([factory.library(verdict="unknown")], "On metro-40km: unknown: torch-gloo."),
        ([LIBRARY, SKIPPED], "On metro-40km: holds: torch-gloo; skipped: jax."),
        ([SKIPPED], "Nothing was validated on metro-40km; skipped: jax."),
    ],
)
def test_the_headline_says_the_worst_first(libraries, sentence):
    assert headline(factory.validation(*libraries)) == sentence


# ---- tables


def test_the_grid_sums_each_operation_and_type():
    bad = factory.case(state="wrong", type="int32", count=7)
    found = grid((factory.case(type="int32"), bad, factory.case("barrier", reduction="", type="float64")))
    assert found.types == ("int32", "float64")
    assert [name for name, _ in found.rows] == ["all_reduce sum", "barrier"]
    (wrong, absent), (none, right) = (sums for _, sums in found.rows)
    assert (wrong.word, wrong.kind) == ("1 of 2 WRONG", "worst")
    assert (absent, none, right.word) == (None, None, "1")


def test_what_crossed_is_summed_over_the_links_toward_a_site():
    crossing = {"north:east": 700, "south:east": 300, "north:west": 800}
    (row,) = wire_rows([dataclasses.replace(factory.speed(), crossing=crossing, least=500)])
    assert row[4] == "2"


def test_ranks_that_say_the_same_are_named_together():
    errors = ("rank 0: timed out", "rank 3: timed out", "rank 1: closed", "gone")
    cell = dataclasses.replace(factory.CELLS[1], errors=errors)
    assert list(error_rows(cell)) == [("ranks 0, 3", "timed out"), ("rank 1", "closed"), ("1 rank", "gone")]


# ---- page, Markdown


def test_every_field_of_the_matrix_leads_to_a_place_on_the_page():
    elements = list(tree_of(html(WHOLE)).iter())
    places = [element.attrib["id"] for element in elements if "id" in element.attrib]
    links = {link for element in elements if (link := element.get("href", "")).startswith("#")}
    assert len(links) > 15 and links <= {f"#{place}" for place in places}
    assert len(places) == len(set(places))


def test_a_librarys_words_stay_text():
    evil = '<script>alert("x")</script> | `a` *b*'
    cell = dataclasses.replace(factory.CELLS[1], detail=evil, errors=(evil,), fault=evil)
    library = factory.library(
        evil, title=evil, version=evil, why=(evil,), cells=(cell,), cases=(factory.case(state="wrong", detail=evil),)
    )
    page, text, xml = forms_of(factory.validation(library, machine=evil, versions={evil: evil}))
    assert "<script>alert" not in page and "<script>alert" not in text
    columns = {line.count(" | ") for line in text.splitlines() if line.startswith("| ") and "expected" in line}
    assert len(columns) <= 1
    ElementTree.fromstring(xml)


def test_uncertified_and_interrupted_are_said_first():
    page = html(factory.validation(certified=False, interrupted=True))
    before = page.partition("<h1")[0]
    assert 'role="alert"' in before and "Uncertified" in before and "Interrupted" in before
    assert "**Uncertified" in markdown(factory.validation(certified=False))


def test_plots_are_plotlys_and_only_of_what_was_measured_at_two_sizes():
    drawn = figures(WHOLE)
    assert [figure.title for figure in drawn] == ["all_reduce", "all_gather", "broadcast", "all_to_all"]
    for figure in drawn:
        go.Figure(figure.spec)  # plotly refuses what is not of its schema
    assert figures(factory.validation(factory.library(speeds=(factory.speed(),)))) == ()


def test_nothing_at_all_has_a_report():
    empty = factory.validation(libraries=(), links={}, versions={}, verdict="unknown")
    assert all("Nothing was validated" in form for form in forms_of(empty)[:2])
    json_of(empty)


def test_markdown_has_the_matrix_and_every_library():
    text = markdown(WHOLE)
    assert text.startswith("# ✗ On metro-40km: wrong results without an error: lame-ring")
    assert "| cut, long | ! error within its bound" in text and "≠ WRONG RESULT" in text
    assert all(f"## {name}" in text for name in ("torch gloo", "lame ring", "MPICH", "jax gloo"))


# ---- JUnit


def test_junit_fails_what_does_not_hold_and_errs_where_it_cannot_be_told():
    xml = junit(WHOLE)
    expected = {
        "lame-ring": {
            "correctness: all_reduce sum, int32": "failure",
            "fault: cut, short": "failure",
            "fault: loss 1 %": "error",
            "verdict": "failure",
        },
        "torch-gloo": {
            "verdict": "passed",
            "fault: cut, long": "passed",
            "correctness: all_to_all, int32": "skipped",
        },
        "mpich": {"speed: all_reduce, 16.8 MB": "failure"},
    }
    for suite, outcomes in expected.items():
        assert outcomes.items() <= outcomes_of(xml, suite).items()
    assert list(outcomes_of(xml, "jax").values()) == ["skipped"]
    (wrong,) = ElementTree.fromstring(xml).findall("testsuite[@name='lame-ring']/testcase[@name='fault: cut, long']/*")
    assert wrong.attrib["type"] == "WrongResult"


def test_junit_of_what_holds_has_no_failure():
    whole = ElementTree.fromstring(junit(factory.validation(LIBRARY, SKIPPED)))
    assert whole.attrib["failures"] == whole.attrib["errors"] == "0"
    assert float(whole.attrib["time"]) == pytest.approx(148.2)


@pytest.mark.parametrize(
    "fields", [{"interrupted": True}, {"certified": False}, {"libraries": ()}, {"libraries": (SKIPPED,)}]
)
def test_junit_never_passes_what_was_not_all_told(fields):
    fields = {"libraries": (LIBRARY,), **fields}
    assert ElementTree.fromstring(junit(factory.validation(**fields))).attrib["errors"] == "1"


# ---- the baseline


def change_of(old: LibraryResult, new: LibraryResult, **fields: object) -> list[tuple[str, str]]:
    comparison = compare(factory.validation(old), factory.validation(new, **fields))
    return [(change.kind, change.what) for change in comparison.changes]


def with_outcome(outcome: Outcome, **fields: Any) -> LibraryResult:
    return factory.library(cells=(dataclasses.replace(factory.CELLS[0], outcome=outcome, **fields),))


def test_the_same_again_is_no_change():
    assert change_of(LIBRARY, LIBRARY) == []


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("right", "wrong result", ["worse"]),
        ("hang", "wrong result", ["worse"]),
        ("error late", "error within its bound", ["better"]),
        ("hang", "crash", []),
        ("right", "fault not exercised", []),
        ("unsupported", "right", []),
    ],
)
def test_outcomes_are_ranked_and_what_was_not_seen_is_not_compared(before, after, changes):
    assert [kind for kind, _ in change_of(with_outcome(before), with_outcome(after))] == changes


def test_a_communicator_that_can_no_longer_be_rebuilt_is_a_regression():
    before, after = (with_outcome("error within its bound", rebuilt=rebuilt) for rebuilt in (True, False))
    assert change_of(before, after) == [("worse", "cut, short, communicator afterwards")]


def test_a_case_that_was_right_and_is_not_is_named():
    bad = factory.library(cases=(factory.case(state="wrong"),))
    assert change_of(factory.library(cases=(factory.case(),)), bad) == [
        ("worse", "all_reduce sum, float32, 1000 elements, world")
    ]


@pytest.mark.parametrize(
    ("factor", "spread", "changes"),
    [(1.3, 0.02, ["worse"]), (0.7, 0.02, ["better"]), (1.05, 0.001, []), (1.3, 0.4, []), (1.0, 0.02, [])],
)
def test_times_differ_only_beyond_noise(factor, spread, changes):
    def sped(median_s: float) -> LibraryResult:
        bounds = {"low_s": median_s * (1 - spread), "high_s": median_s * (1 + spread)}
        return factory.library(speeds=(dataclasses.replace(factory.speed(), median_s=median_s, **bounds),))

    assert [kind for kind, _ in change_of(sped(0.1), sped(0.1 * factor))] == changes
    # Differences within the uncertainty by stalls of the host do not count.
    stalled = dataclasses.replace(sped(0.1 * factor).speeds[0], uncertainty_s=0.04)
    assert change_of(sped(0.1), factory.library(speeds=(stalled,))) == []


def test_another_suite_is_noted():
    old = factory.validation(LIBRARY, suite="quick")
    assert not compare(old, old).notes
    (note,) = compare(old, dataclasses.replace(old, suite="full")).notes
    assert "suite was quick, is full" in note


@pytest.mark.parametrize("fields", [{"machine": "another"}, {"certified": False}, {"topology": "regional-ring"}])
def test_times_of_another_lab_are_not_compared_but_answers_are(fields):
    slower = factory.library(speeds=factory.speeds(0.2), cells=(dataclasses.replace(factory.CELLS[2], outcome="hang"),))
    comparison = compare(factory.validation(LIBRARY), factory.validation(slower, **fields))
    assert [change.what for change in comparison.regressions] == ["failover"]
    assert any("times not compared" in note for note in comparison.notes)


def test_regressions_are_on_the_page_in_markdown_and_fail_in_junit():
    new = factory.validation(factory.library(speeds=factory.speeds(0.3)))
    comparison = compare(factory.validation(LIBRARY), new)
    count = len(comparison.regressions)
    assert count == 16
    page, text, xml = forms_of(new, comparison)
    assert f"{count} regressions" in page and f"{count} regressions" in text
    failed = [name for name, outcome in outcomes_of(xml, "torch-gloo").items() if outcome == "failure"]
    assert len(failed) == count and all(name.startswith("baseline: ") for name in failed)


# ---- on disk


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path, "validated")


def test_the_report_is_made_again_from_the_run_directory(run):
    new, old = WHOLE, factory.validation(factory.library(speeds=factory.speeds(0.9)))
    comparison = write_validation(run, new, old)
    assert comparison.regressions
    files = [run.path / name for name in ("index.html", "validate.md", "junit.xml")]
    first = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    assert rebuild_validation(run) == (new, comparison)
    assert [file.read_bytes() for file in files] == first


def test_a_validation_is_among_the_runs_and_has_its_verdict(run):
    assert write_validation(run, WHOLE) is None
    assert [it.path for it in list_runs(run.path.parent)] == [run.path]
    assert read_summary(run) == ((1_795_000_000.0, "metro-40km"), "does not hold")
    read, _, page = api.validation_report(run.path)
    assert (read, page) == (WHOLE, run.path / "index.html")
    with pytest.raises(UserError, match="is a validation run"):
        api.report(run.path)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema_version": 9}'])
def test_what_cannot_be_read_is_one_sentence_with_the_file(tmp_path, content):
    file = tmp_path / "validate.json"
    file.write_text(content)
    with pytest.raises(StorageError, match=re.escape(f"{file}: expected a result of testbed validate")):
        read_validation(tmp_path)
    with pytest.raises(StorageError, match="No such file"):
        read_validation(tmp_path / "nowhere.json")


# ---- whatever is found


NUMBERS = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, min_value=0, max_value=1e9))
CELL = st.builds(
    Cell,
    fault=st.text(max_size=12),
    outcome=st.sampled_from(list(OUTCOMES)),
    detail=st.text(max_size=20),
    share=st.one_of(st.none(), st.floats(0, 1)),
    rebuilt=st.one_of(st.none(), st.booleans()),
    errors=st.lists(st.text(max_size=12), max_size=3).map(tuple),
    **dict.fromkeys(("error_s", "done_s", "healed_s", "bound_s", "rebuild_s"), NUMBERS),
)
CASE = st.builds(
    CaseResult,
    operation=st.sampled_from(("all_reduce", "barrier", "new_thing")),
    group=st.text(max_size=8),
    type=st.sampled_from((*factory.TYPES, "float8")),
    count=st.integers(0, 2**40),
    reduction=st.sampled_from(("", "sum", "avg")),
    state=st.sampled_from(list(STATES)),
    detail=st.text(max_size=20),
)
ANY = st.floats(allow_nan=True, allow_infinity=True)
SPEED = st.builds(
    Speed,
    operation=st.sampled_from(("all_reduce", "barrier")),
    size=st.integers(0, 2**40),
    times_s=st.lists(ANY, max_size=3).map(tuple),
    crossing=st.dictionaries(st.text(max_size=8), st.integers(0, 2**40), max_size=3),
    least=st.integers(0, 2**40),
    pattern=st.text(max_size=8),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cases=st.lists(CASE, max_size=5).map(tuple),
    speeds=st.lists(SPEED, max_size=4).map(tuple),
    cells=st.lists(CELL, max_size=4).map(tuple),
)
def test_whatever_is_found_has_a_report(cases, speeds, cells):
    whole = factory.validation(factory.library(cases=cases, speeds=speeds, cells=cells), SKIPPED)
    page, text, xml = forms_of(whole)
    assert page and text
    ElementTree.fromstring(xml)
    assert to_json(from_json(json_of(whole))) == to_json(whole)
