"""The report: what it concludes from a run directory, what it writes, and that nothing a crash leaves breaks it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import plotly.graph_objects as go
import pytest
from builders.json_files import read_lines, write_lines
from builders.reports import (
    SCHEMA,
    answer,
    answers,
    check,
    document_of,
    figure,
    figures,
    html,
    markdown,
    pages_of,
    report_of,
    without_scripts,
)
from builders.run_factory import (
    BEGAN_T,
    COMPUTE_S,
    CUT_FOR_S,
    SLOW_S,
    STALL_S,
    STEP_S,
    edit,
    make_run,
)
from builders.run_kinds import launched
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.core.report.run_page import facts
from testbed.core.report.sections import fidelity_section


def test_a_good_run(run):
    report = report_of(run)
    assert report.verdict == "pass"
    assert report.holds
    assert set(answers(report).values()) == {"yes"}
    assert report.headline == "It trained, and came through the cut of north."
    # From the factory's formulas, by hand: one step of 130 ms was stalled for 250 ms more.
    assert report.recovery_s == pytest.approx(STEP_S + STALL_S)
    wall = 0.02 + 400 * STEP_S + STALL_S + 0.05
    assert report.goodput == pytest.approx(400 * STEP_S / wall, rel=1e-3)
    compute = 400 * (4 * (COMPUTE_S + 0.005) + SLOW_S)
    assert report.compute_utilization == pytest.approx(compute / (4 * (400 * STEP_S + STALL_S)))
    assert report.train_loss_first > 5 > 2 > report.train_loss_last
    assert report.faults[0].carrier_s == pytest.approx(0.0013, abs=1e-6)


def test_throughput_moves_to_the_other_fiber_while_one_is_cut(run):
    report = report_of(run)
    (fault,) = report.faults
    fibers = {fiber.direction: zip(fiber.t_s, fiber.bps, strict=True) for fiber in report.fibers}
    for direction, carries in (("north:west", False), ("south:west", True)):
        during = [rate > 1e8 for t, rate in fibers[direction] if fault.began_s + 1 < t < fault.ended_s]
        assert during and set(during) == {carries}


def drop_some(lines: list[dict]) -> None:
    for line in lines[len(lines) // 2 :]:
        if line.get("direction") == "north:west":
            line["drops"]["memory"] = 7


RATE = {"what": "rate", "target": 8e8, "measured": None, "low": None, "high": None, "verdict": "unmeasured"}
NO_RATE = {"links.0.directions.0.checks.5": {**RATE, "why": "rate: 2 pairs of packets were on time"}}


def with_algorithm(run: Path) -> Path:
    return edit(run, "ranks/rank-*.jsonl", where={"kind": "job"}, algorithm="gloo ring")


def twice_the_bytes(fiber: dict) -> None:
    fiber.update({key: 2 * fiber[key] for key in ("bytes", "segments")})


FINDING = {
    **{"fiber": "north", "quantity": "packet time", "verdict": "biased", "direction": "too harsh"},
    **{"lab": 1.5e-5, "real": 1.5e-8, "unit": "s", "error": 0.08, "reason": "one packet takes long", "change": ""},
}
GOOD_FINDING = {**FINDING, "quantity": "loss", "verdict": "holds", "reason": "as it is"}


def case(id: str, change: Callable[[Path], object] = Path, options: Mapping[str, Any] = {}, **expected: Any) -> Any:
    """A run made with ``options`` and changed by ``change``, and what ``check`` finds in its report."""
    return pytest.param(change, options, expected, id=id)


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        case(
            "an interrupted run has what was measured",
            options={"status": "interrupted", "steps": 120},
            verdict="unknown",
            headline="interrupted",
            trained=("unknown", "did not reach its last step"),
            document={"training": {"steps_committed": 120}},
        ),
        case(
            "a failed run has its reason",
            options={"status": "failed", "steps": 260},
            verdict="fail",
            headline="rank 2 died of signal 9",
            trained=("no", "ranks 0, 1, 3 failed at step 260"),
        ),
        case(
            "an uncertified run is marked on every page and never passes",
            options={"uncertified": True},
            verdict="fail",
            fidelity="no",
            shown=["Uncertified", "80 us too long"],
            document={"run": {"uncertified": True}},
        ),
        case("a certified run is not marked", hidden=["Uncertified"]),
        case(
            "a run without a certificate that was allowed to is uncertified",
            lambda run: (edit(run, "run.json", uncertified=True) / "certificate.json").unlink(),
            fidelity="no",
            shown=["Uncertified", "There is no certificate of the fibers"],
        ),
        case(
            "fibers that were not measurable leave the run unknown",
            lambda run: edit(edit(run, "certificate.json", NO_RATE), "run.json", uncertified=True),
            verdict="unknown",
            fidelity="unknown",
            document={"certificate": {"verdict": "not measurable on this host now", "certified": False}},
            shown=["Uncertified", "not measured", "1 of 2 links could not be measured on this host: north."],
        ),
        case(
            "the certificate is shown quantity by quantity",
            fidelity=("yes", "CPU headroom"),
            shown=[
                *("north, round trip", "delay, median", "duplication", "150 us to 250 us"),
                *("segments super-packets itself", "CPU headroom: 89.0 % while it was certified"),
            ],
        ),
        case(
            "what netem does not measure fails nothing, and what was watched is listed",
            options={"emulator": "netem"},
            verdict="pass",
            fidelity=(
                *("not measurable", "Certified before the job", "not measurable on netem"),
                *("dropped no packets itself", "0 kB", "CPU headroom"),
            ),
            shown=["not measurable on netem"],
        ),
        case(
            "netem that dropped packets of its own did not hold",
            lambda run: edit(run, "metrics.jsonl", drop_some),
            {"emulator": "netem"},
            verdict="fail",
            fidelity=("no", "the emulator itself dropped 7 packets"),
        ),
        case(
            "netem outside tolerance is no",
            options={"emulator": "netem", "uncertified": True},
            verdict="fail",
            fidelity="no",
        ),
        case(
            "a collective around the fiber fails the run",
            lambda run: edit(
                run, "metrics.jsonl", lambda fiber: fiber.update(bytes=fiber["bytes"] // 20), where={"kind": "fiber"}
            ),
            verdict="fail",
            headline="It ran, but not over the fiber.",
            wire="no",
        ),
        case(
            "bytes beyond those of the job fail the run",
            lambda run: edit(with_algorithm(run), "metrics.jsonl", twice_the_bytes, where={"direction": "north:east"}),
            verdict="fail",
            headline="It ran, but the fiber carried more than the job.",
            wire=("no", "north:east"),
        ),
        case(
            "train loss that rises is no training",
            lambda run: edit(
                run, "ranks/*.jsonl", lambda step: step.update(train_loss=1.0 + step["step"]), where={"kind": "step"}
            ),
            trained="no",
        ),
        case(
            "a fault whose end is not in the record goes on to the end of the record",
            lambda run: edit(
                run, "events.jsonl", lambda events: [event for event in events if event["event"] != "fault-ended"]
            ),
            recovered=("yes", "to the end of the record"),
        ),
        case(
            "quantities that do not hold at full scale have their reasons",
            lambda run: edit(run, "run.json", validity=[FINDING, GOOD_FINDING, "damaged"]),
            shown=["1 of 2 quantities hold", "biased too harsh", "one packet takes long"],
            hidden=["as it is</td>"],
        ),
    ],
)
def test_report_of_a_run(tmp_path, change, options, expected):
    run = make_run(tmp_path / "run", **options)
    change(run)
    check(report_of(run), **expected)


@pytest.mark.parametrize(("holds", "verdict"), [(True, "pass"), (False, "fail"), (None, "unknown")])
def test_expectations_count(run, holds, verdict):
    edit(run, "run.json", expectations=[{"text": "it is fast", "holds": holds, "measured": None}])
    assert report_of(run).verdict == verdict


def test_only_an_uncertified_run_has_a_banner(tmp_path, run):
    reports = report_of(make_run(tmp_path / "r", uncertified=True)), report_of(run)
    assert ['class="banner"' in html(report) for report in reports] == [True, False]


def test_a_noisy_host_is_certified_and_says_so_first(run):
    """The host delayed 12 % of the packets."""
    noise = {"packets": 1000, "delayed": 120, "median_s": 3e-4, "p99_s": 4e-3, "stalls": None}
    report = report_of(edit(run, "certificate.json", noise=noise))
    check(
        report,
        "pass",
        fidelity=("yes", " at the median, on a noisy host; "),
        hidden=["Uncertified"],
        document={"certificate": {"verdict": "certified, noisy host", "certified": True, "noisy": True}},
    )
    assert answer(report, "fidelity").text.startswith("Certified before the job within ")
    for page in pages_of(report):
        assert page.index("noisy host: it delayed 12% of the small packets") < page.index("verdict")
        assert page.count("it delayed 12% of the small packets") == 2, "on the first lines, and with the certificate"


def test_every_fiber_is_not_measurable_on_netem(tmp_path):
    fibers = report_of(make_run(tmp_path / "r", emulator="netem")).fidelity
    assert {fiber.verdict for fiber in fibers} == {"not measurable on netem"}


def loaded(name: str, *, p99_s: float = 4e-6, late: str = "") -> fidelity_section.Fidelity:
    return fidelity_section.Fidelity(name, 100, 1e-6, p99_s, 0, not late, late, (), ())


def test_a_reason_that_holds_of_several_directions_is_said_once():
    late = "99 % of packets are later than they may be"
    names = ("north:east", "north:west", "south:east", "south:west", "third:east", "third:west")
    fibers = [loaded(name, late="" if name == "third:east" else late) for name in names]
    held, reason = fidelity_section.under_load(fibers, "fiberd", fidelity_section.Machine(0.4, 0.1, 0.6, 0.5))
    assert held is False
    assert reason.count(late) == 1
    assert f"on north and south, both ways, and on third:west: {late}" in reason
    assert "run it again" not in reason, "the machine had more than half of its cores free"


def test_reasons_that_differ_stand_apart():
    found = [loaded("north:east", late="one reason"), loaded("north:west", late="another")]
    _, said = fidelity_section.under_load(found, "fiberd", fidelity_section.Machine())
    assert "(on north:east: one reason; on north:west: another)" in said


@pytest.mark.parametrize(
    ("headroom", "least", "words"),
    [(0.0, 0.0, "100.0 % busy at the median"), (0.3, 0.01, "at least 99.0 % busy a twentieth of the time")],
)
def test_a_busy_machine_is_named_with_what_to_do(headroom, least, words):
    host = fidelity_section.Machine(1 - headroom, 0.1, headroom, least)
    _, reason = fidelity_section.under_load([loaded("north:east", late="late")], "fiberd", host)
    assert f"the machine was {words}, which makes packets late: run it again when it is quiet (testbed doctor" in reason
    held, reason = fidelity_section.under_load([loaded("north:east")], "fiberd", host)
    assert held
    assert "run it again" not in reason, "what held needs no remedy"


def test_congestion_control_is_named_by_where_it_counts(run):
    used = {"congestion_control": "cubic", "sysctls": {"net.ipv4.tcp_congestion_control": "bbr"}}
    rows = dict(facts(report_of(edit(run, "run.json", host=used))))
    assert rows["congestion control over the fibers"] == "cubic"
    sysctl = "sysctl of the nodes, net.ipv4.tcp_congestion_control"
    assert rows[sysctl] == "bbr (the fibers' routes override it)"
    edit(run, "run.json", host={**used, "congestion_control": "bbr"})
    assert dict(facts(report_of(run)))[sysctl] == "bbr"


def test_steps_lost_stand_once_on_each_page(run):
    report = report_of(run)
    assert [page.count("steps lost") for page in pages_of(report)] == [1, 1]


def test_a_known_algorithm_is_compared_in_each_direction_and_the_report_has_the_ratios(run):
    assert report_of(run).wire.compared_with == "bound"
    report = report_of(with_algorithm(run))
    assert (report.wire.compared_with, report.wire.ok) == ("algorithm", True), report.wire.lines
    assert {row["direction"]: row["ratio"] for row in document_of(report)["wire"]["directions"]} == {
        "north:west": pytest.approx(1.0, abs=0.05),
        "north:east": pytest.approx(1.0, abs=0.05),
        "south:west": None,
        "south:east": None,
    }


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_report_json_is_as_its_schema_says(tmp_path, status):
    report = report_of(make_run(tmp_path / "r", status=status, steps=240))
    document = document_of(report)
    assert "plotly" in html(report)
    assert document["version"] == 1
    del document["verdict"]
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(document)


def test_figures_are_plotly_figures_with_units_on_their_axes(run):
    made = figures(report_of(run))
    assert [drawn.id for drawn in made] == [
        "step-time", "critical-path", "tokens-per-second", "throughput", "train-loss", "time-of-ranks", "rank-seconds",
        "lateness",
    ]  # fmt: skip
    for drawn in made:
        checked = go.Figure(drawn.spec)  # plotly refuses what is not of its schema
        assert checked.layout.xaxis.title.text
        assert checked.layout.yaxis.title.text
        assert drawn.summary
    layout: Any = made[0].spec["layout"]
    shaded = [shape for shape in layout["shapes"] if shape["type"] == "rect"]
    assert shaded[0]["x1"] - shaded[0]["x0"] == pytest.approx(CUT_FOR_S)


def with_faults(run: Path, count: int, every_s: float) -> Path:
    """So many cuts more, of a fifth of a second each, from a second after the job began."""
    return edit(
        run,
        "events.jsonl",
        lambda events: events.extend(
            {"t": BEGAN_T + 1 + index * every_s + after_s, "event": event, "fault": f"x{index}", "type": "cut"}
            | {"target": "south", "links": ["south"]}
            for index in range(count)
            for after_s, event in ((0, "fault-began"), (0.2, "fault-ended"))
        ),
    )


def test_each_of_many_faults_has_a_line(run):
    report = report_of(with_faults(run, 11, 4.0))
    recovered = answer(report, "recovered")
    assert recovered.text.startswith("It came through 12 of 12 faults; the longest gap between commits, 380 ms,")
    assert len(recovered.lines) == 12
    assert sum(line.startswith("Cut south at ") for line in recovered.lines) == 11
    assert html(report).count("<li>Cut south at") == 11
    assert markdown(report).count("| cut south |") == 11
    document_of(report)


@pytest.mark.parametrize(("count", "every_s"), [(1, 4.0), (11, 4.0), (60, 0.5)])
def test_no_name_of_a_fault_lies_over_another(run, count, every_s):
    report = report_of(with_faults(run, count, every_s))
    layout: Any = figure(report, "throughput").spec["layout"]
    labels = sorted((label["x"], label["text"]) for label in layout["annotations"])
    width = report.fibers[0].t_s[-1]
    # A character is about a hundredth of a plot's width, on a wide screen.
    for (left, text), (after, _) in itertools.pairwise(labels):
        assert after - left >= 0.01 * len(text) * width * 0.7, labels
    if count == 1:
        assert [text for _, text in labels] == ["cut south", "cut north"]
    else:
        numbers = {int(number) for _, text in labels for number in re.findall(r"\d+", text)}
        assert {1, count + 1} <= numbers


def test_goodput_beyond_one_is_explained(run):
    edit(run, "run.json", expectations=[{"text": "goodput >= 0.8", "holds": True, "measured": 1.03}])
    report = report_of(run)
    assert "1.03, over 100 %: nothing was lost" in answer(report, "expected-1").text
    better = dataclasses.replace(report, training=dataclasses.replace(report.training, goodput=1.03))
    for page in (html, markdown):
        assert "nothing was lost, to within the noise" in page(better)
        assert page(better).count("nothing was lost") == page(report).count("nothing was lost") + 1


def test_a_page_has_one_spelling_of_microseconds(run):
    for page in pages_of(report_of(run)):
        assert "\u00b5s" not in without_scripts(page)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>|`*x*`"


def test_what_users_write_stays_text(run):
    edit(run, "topology.json", {"links.0.name": HOSTILE, "name": HOSTILE})
    edit(run, "run.json", name=HOSTILE, reason=HOSTILE, status="failed", host={HOSTILE: HOSTILE})
    fault = {"t": 1020.0, "event": "fault-began", "fault": "x", "type": HOSTILE, "target": HOSTILE}
    other = {"t": 1020.0, "event": HOSTILE, "text": HOSTILE}
    edit(run, "events.jsonl", lambda events: [*events, fault, other])
    fiber = {"kind": "fiber", "direction": HOSTILE, "bytes": 5}
    edit(run, "metrics.jsonl", lambda lines: [*lines, *({"t": t, **fiber} for t in (1010.0, 1020.0))])
    page, text = pages_of(report_of(run))
    assert "<script>alert" not in page
    assert "<img" not in without_scripts(page)
    assert "<script" not in text
    assert "<img" not in text


def test_markdown_has_the_facts(run):
    text = markdown(report_of(run))
    for fact in ("380 ms", "5.285 → 1.924", "north:west", "certified", "SCHED_FIFO 40", "cut north"):
        assert fact in text


@pytest.mark.parametrize("gone", ["run.json", "topology.json", "certificate.json", "events.jsonl", "metrics.jsonl"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_file_that_is_missing_or_empty_breaks_nothing(run, gone, empty):
    (run / gone).write_text("") if empty else (run / gone).unlink()
    report = report_of(run)
    assert report.verdict in ("unknown", "pass", "fail")
    assert all(pages_of(report))
    document_of(report)
    if gone in ("run.json", "certificate.json", "metrics.jsonl"):
        assert report.verdict == "unknown"
    if not empty:
        assert gone in report.missing


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_topology_with_a_number_that_is_not_finite_is_left_out(run, value):
    report = report_of(edit(run, "topology.json", {"links.0.rate_bps": value}))
    assert report.topology is None
    assert report.malformed == {"topology.json": 1}
    document_of(report)


def test_an_empty_directory(tmp_path):
    report = report_of(tmp_path)
    assert report.verdict == "unknown"
    assert report.goodput is report.recovery_s is None
    document_of(report)
    assert all(pages_of(report))


_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**320), 10**320), st.floats(), st.text(max_size=5), st.just([]),
    st.just({}), st.just([None, "x", {"name": 3}]),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(odd=_ODD, seed=st.integers(0, 2**32))
def test_any_value_anywhere_breaks_nothing(tmp_path_factory, odd, seed):
    """Replace a tenth of all values of a small run by something odd: there is still a report, as its schema says."""
    chance = random.Random(seed)

    def spoil(value):
        if chance.random() < 0.02:
            return odd
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoil(item) for item in value]
        return odd if chance.random() < 0.02 else value

    run = make_run(tmp_path_factory.mktemp("odd") / "run", status="interrupted", steps=12)
    for file in (*run.glob("*.json*"), *run.glob("ranks/*.jsonl")):
        if file.suffix == ".json":
            file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
        else:
            write_lines(file, [spoil(line) for line in read_lines(file)])
    report = report_of(run)
    document_of(report)
    assert all(pages_of(report))


@pytest.mark.parametrize(
    ("statuses", "ran", "verdict", "headline"),
    [
        ([0, 0, 0, 0], "yes", "pass", "The program ran across the fiber."),
        ([0, 0, 137, None], "no", "fail", "The program did not end well."),
        ([0, 0, 0, None], "unknown", "unknown", "Too little was measured for a verdict."),
        ([], "unknown", "unknown", "Too little was measured for a verdict."),
    ],
)
def test_a_launched_program_is_judged_by_how_its_ranks_ended(run, statuses, ran, verdict, headline):
    report = report_of(launched(run, statuses=statuses))
    check(report, verdict=verdict, ran=ran, shown=["python x.py"])
    assert report.headline == headline
    assert not {"trained", "wire", "recovered"} & set(answers(report))


@pytest.mark.parametrize(
    ("steps", "planned", "said"),
    [(1, 1, "1 of 1 step"), (3, 500, "3 of 500 steps"), (12, 12, "12 of 12 steps, means of the first and last 6")],
)
def test_the_losses_of_a_short_job_are_not_said_to_be_means_of_ten_steps(tmp_path, steps, planned, said):
    report = report_of(make_run(tmp_path / "run", steps=steps))
    training = dataclasses.replace(report.training, steps_planned=planned)
    assert f">{said}<" in html(dataclasses.replace(report, training=training))
