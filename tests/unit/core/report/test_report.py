"""The report: what it concludes from a run directory, what it writes, and that nothing a crash leaves breaks it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from pathlib import Path

import jsonschema
import plotly.graph_objects as go
import pytest
from builders import run_factory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import report_schema

from testbed.core.report import fidelity_section
from testbed.core.report.document import build, to_json
from testbed.core.report.figures import figures
from testbed.core.report.markdown import markdown
from testbed.core.report.run_page import facts, html
from testbed.host.files.store import RunDirectory

SCHEMA = report_schema.validator("report.schema.json")


def report_of(path: Path):
    return build(RunDirectory(path).read())


def change(path: Path, file_name: str, /, **values: object) -> None:
    file = path / file_name
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return run_factory.make_run(tmp_path / "run")


def answers(report) -> dict[str, str]:
    return {answer.id: answer.answer for answer in report.answers}


def test_a_good_run(run):
    report = report_of(run)
    assert report.verdict == "pass"
    assert report.holds
    assert set(answers(report).values()) == {"yes"}
    assert report.headline == "It trained, and came through the cut of north."
    # From the factory's formulas, by hand: one step of 130 ms was stalled for 250 ms more.
    assert report.recovery_s == pytest.approx(run_factory.STEP_S + run_factory.STALL_S)
    wall = 0.02 + 400 * run_factory.STEP_S + run_factory.STALL_S + 0.05
    assert report.goodput == pytest.approx(400 * run_factory.STEP_S / wall, rel=1e-3)
    compute = 400 * (4 * (run_factory.COMPUTE_S + 0.005) + run_factory.SLOW_S)
    total = 4 * (400 * run_factory.STEP_S + run_factory.STALL_S)
    assert report.compute_utilization == pytest.approx(compute / total)
    assert report.train_loss_first > 5 > 2 > report.train_loss_last
    assert report.faults[0].carrier_s == pytest.approx(0.0013, abs=1e-6)


def test_throughput_moves_to_the_other_fiber_while_one_is_cut(run):
    report = report_of(run)
    fault = report.faults[0]
    for direction, carries in (("north:west", False), ("south:west", True)):
        (series,) = [each for each in report.fibers if each.direction == direction]
        during = [rate for t, rate in zip(series.t_s, series.bps, strict=True) if fault.began_s + 1 < t < fault.ended_s]
        assert during
        assert all((rate > 1e8) is carries for rate in during)


def test_an_interrupted_run_shows_what_was_measured(tmp_path):
    report = report_of(run_factory.make_run(tmp_path / "r", status="interrupted", steps=120))
    assert report.verdict == "unknown"
    assert "interrupted" in report.headline
    assert report.training.steps_committed == 120
    assert "did not reach its last step" in answers_text(report, "trained")
    assert "plotly" in html(report)


def test_a_failed_run_says_why(tmp_path):
    report = report_of(run_factory.make_run(tmp_path / "r", status="failed", steps=260))
    assert report.verdict == "fail"
    assert "rank 2 died of signal 9" in report.headline
    assert "ranks 0, 1, 3 failed at step 260" in answers_text(report, "trained")


def answers_text(report, id: str) -> str:
    return next(answer.text for answer in report.answers if answer.id == id)


def test_an_uncertified_run_is_marked_on_every_page_and_never_passes(tmp_path):
    report = report_of(run_factory.make_run(tmp_path / "r", uncertified=True))
    assert report.verdict == "fail"
    assert 'class="banner"' in html(report)
    assert "Uncertified" in html(report)
    assert "Uncertified" in markdown(report)
    assert "80 us too long" in html(report)
    assert "80 us too long" in markdown(report)
    assert to_json(report)["run"]["uncertified"] is True
    assert answers(report)["fidelity"] == "no"
    assert "Uncertified" not in html(report_of(run_factory.make_run(tmp_path / "good")))


def test_a_run_without_a_certificate_that_was_allowed_says_so(tmp_path):
    """``launch`` on a lab whose certificate is gone, or never was."""
    path = run_factory.make_run(tmp_path / "r", uncertified=True)
    (path / "certificate.json").unlink()
    report = report_of(path)
    assert answers(report)["fidelity"] == "no"
    for page in (html(report), markdown(report)):
        assert "Uncertified" in page
        assert "There is no certificate of the fibers" in page


def certified_as(path: Path, verdict: str) -> Path:
    """Change the certificate of a run to ``verdict``: a host that delayed 12 % of the packets, or a rate that was not
    measurable."""
    file = path / "certificate.json"
    certificate = json.loads(file.read_text())
    if "noisy" in verdict:
        certificate["noise"] = {"packets": 1000, "delayed": 120, "median_s": 3e-4, "p99_s": 4e-3, "stalls": None}
    else:
        rate = {"what": "rate", "target": 8e8, "measured": None, "low": None, "high": None, "verdict": "unmeasured"}
        certificate["links"][0]["directions"][0]["checks"][-1] = {
            **rate,
            "why": "rate: 2 pairs of packets were on time",
        }
        change(path, "run.json", uncertified=True)
    file.write_text(json.dumps(certificate))
    return path


def test_a_noisy_host_is_certified_and_says_so_first(run):
    report = report_of(certified_as(run, "certified, noisy host"))
    assert (report.verdict, answers(report)["fidelity"]) == ("pass", "yes")
    assert answers_text(report, "fidelity").startswith("Certified before the job within ")
    assert " at the median, on a noisy host; " in answers_text(report, "fidelity")
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    written = document["certificate"]
    assert (written["verdict"], written["certified"], written["noisy"]) == ("certified, noisy host", True, True)
    for page in (html(report), markdown(report)):
        assert "Uncertified" not in page
        assert page.index("noisy host: it delayed 12% of the small packets") < page.index("verdict")
        assert page.count("it delayed 12% of the small packets") == 2, "on the first lines, and with the certificate"


def test_fibers_that_were_not_measurable_leave_the_run_unknown(run):
    report = report_of(certified_as(run, "not measurable on this host now"))
    assert (report.verdict, answers(report)["fidelity"]) == ("unknown", "unknown")
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    assert document["certificate"]["verdict"] == "not measurable on this host now"
    assert document["certificate"]["certified"] is False
    for page in (html(report), markdown(report)):
        assert "Uncertified" in page
        assert "not measured" in page
        assert "1 of 2 links could not be measured on this host: north." in page


# ---- the certificate and what held under load


def test_the_certificate_is_shown_quantity_by_quantity(run):
    report = report_of(run)
    for page in (html(report), markdown(report)):
        for fact in (
            "north, round trip",
            "delay, median",
            "duplication",
            "150 us to 250 us",
            "segments super-packets itself",
        ):
            assert fact in page
        assert "CPU headroom: 89.0 % while it was certified" in page
    assert "CPU headroom" in answers_text(report, "fidelity")


def test_netem_says_what_cannot_be_measured_and_what_was_watched(tmp_path):
    report = report_of(run_factory.make_run(tmp_path / "r", emulator="netem"))
    assert answers(report)["fidelity"] == "not measurable"
    said = answers_text(report, "fidelity")
    for words in (
        "Certified before the job",
        "not measurable on netem",
        "dropped no packets itself",
        "0 kB",
        "CPU headroom",
    ):
        assert words in said
    assert {each.verdict for each in report.fidelity} == {"not measurable on netem"}
    assert report.verdict == "pass", "all that can be measured is good"
    for page in (html(report), markdown(report)):
        assert "not measurable on netem" in page
    SCHEMA.validate(json.loads(json.dumps(to_json(report), allow_nan=False)))


def test_netem_that_dropped_packets_of_its_own_did_not_hold(tmp_path):
    run = run_factory.make_run(tmp_path / "r", emulator="netem")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    half = len(lines) // 2
    for line in lines[half:]:
        if line["kind"] == "fiber" and line["direction"] == "north:west":
            line["drops"]["memory"] = 7
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = report_of(run)
    assert (report.verdict, answers(report)["fidelity"]) == ("fail", "no")
    assert "the emulator itself dropped 7 packets" in answers_text(report, "fidelity")


def loaded(name: str, *, p99_s: float = 4e-6, late: str = "") -> fidelity_section.Fidelity:
    return fidelity_section.Fidelity(name, 100, 1e-6, p99_s, 0, not late, late, (), ())


def test_a_reason_that_holds_of_several_directions_is_said_once():
    late = "99 % of packets are later than they may be"
    names = ("north:east", "north:west", "south:east", "south:west", "third:east", "third:west")
    found = [loaded(name, late="" if name == "third:east" else late) for name in names]
    held, said = fidelity_section.under_load(found, "fiberd", fidelity_section.Machine(0.4, 0.1, 0.6, 0.5))
    assert held is False
    assert said.count(late) == 1
    assert f"on north and south, both ways, and on third:west: {late}" in said
    assert "run it again" not in said, "the machine had more than half of its cores free"


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
    _, said = fidelity_section.under_load([loaded("north:east", late="late")], "fiberd", host)
    assert f"the machine was {words}, which makes packets late: run it again when it is quiet (testbed doctor" in said
    held, said = fidelity_section.under_load([loaded("north:east")], "fiberd", host)
    assert held
    assert "run it again" not in said, "what held needs no remedy"


def test_congestion_control_is_named_by_where_it_counts(run):
    used = {"congestion_control": "cubic", "sysctls": {"net.ipv4.tcp_congestion_control": "bbr"}}
    change(run, "run.json", host=used)
    told = dict(facts(report_of(run)))
    assert told["congestion control over the fibers"] == "cubic"
    overridden = told["sysctl of the nodes, net.ipv4.tcp_congestion_control"]
    assert overridden == "bbr (the fibers' routes override it)"
    change(run, "run.json", host={**used, "congestion_control": "bbr"})
    assert dict(facts(report_of(run)))["sysctl of the nodes, net.ipv4.tcp_congestion_control"] == "bbr"


def test_steps_lost_stand_once_on_each_page(run):
    report = report_of(run)
    assert [page.count("steps lost") for page in (html(report), markdown(report))] == [1, 1]


def test_netem_outside_tolerance_is_no(tmp_path):
    report = report_of(run_factory.make_run(tmp_path / "r", emulator="netem", uncertified=True))
    assert answers(report)["fidelity"] == "no"
    assert report.verdict == "fail"


def test_a_collective_around_the_fiber_fails_the_run(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "fiber":
            line["bytes"] //= 20
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = report_of(run)
    assert (report.verdict, answers(report)["wire"]) == ("fail", "no")
    assert report.headline == "It ran, but not over the fiber."


def with_algorithm(run):
    for file in (run / "ranks").glob("rank-*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [line | ({"algorithm": "gloo ring"} if line["kind"] == "job" else {}) for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_known_algorithm_is_compared_in_each_direction_and_the_report_has_the_ratios(run):
    assert report_of(run).wire.compared_with == "bound"
    with_algorithm(run)
    report = report_of(run)
    assert (report.wire.compared_with, report.wire.ok) == ("algorithm", True), report.wire.lines
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    ratios = {it["direction"]: it["ratio"] for it in document["wire"]["directions"]}
    assert ratios == {
        "north:west": pytest.approx(1.0, abs=0.05),
        "north:east": pytest.approx(1.0, abs=0.05),
        "south:west": None,
        "south:east": None,
    }


def test_bytes_beyond_those_of_the_job_fail_the_run(run):
    with_algorithm(run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "fiber" and line["direction"] == "north:east":
            line["bytes"], line["segments"] = 2 * line["bytes"], 2 * line["segments"]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = report_of(run)
    assert (report.verdict, answers(report)["wire"]) == ("fail", "no")
    assert report.headline == "It ran, but the fiber carried more than the job."
    assert "north:east" in report.wire.sentence


def test_train_loss_that_rises_is_no_training(run):
    for file in (run / "ranks").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line["kind"] == "step":
                line["train_loss"] = 1.0 + line["step"]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert answers(report_of(run))["trained"] == "no"


@pytest.mark.parametrize(("holds", "verdict"), [(True, "pass"), (False, "fail"), (None, "unknown")])
def test_expectations_count(run, holds, verdict):
    change(run, "run.json", expectations=[{"text": "it is fast", "holds": holds, "measured": None}])
    assert report_of(run).verdict == verdict


@pytest.mark.parametrize("status", ["finished", "interrupted", "failed"])
def test_report_json_is_as_its_schema_says(tmp_path, status):
    report = report_of(run_factory.make_run(tmp_path / "r", status=status, steps=240))
    document = json.loads(json.dumps(to_json(report), allow_nan=False))
    SCHEMA.validate(document)
    assert document["version"] == 1
    del document["verdict"]
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(document)


def test_figures_are_plotly_figures_with_units_on_their_axes(run):
    made = figures(report_of(run))
    assert [figure.id for figure in made] == [
        "step-time",
        "critical-path",
        "tokens-per-second",
        "throughput",
        "train-loss",
        "time-of-ranks",
        "rank-seconds",
        "lateness",
    ]
    for figure in made:
        checked = go.Figure(figure.spec)  # plotly refuses what is not of its schema
        assert checked.layout.xaxis.title.text
        assert checked.layout.yaxis.title.text
        assert figure.summary
    shaded = [shape for shape in made[0].spec["layout"]["shapes"] if shape["type"] == "rect"]
    assert shaded[0]["x1"] - shaded[0]["x0"] == pytest.approx(run_factory.CUT_FOR_S)


def with_faults(run: Path, count: int, every_s: float) -> None:
    """So many cuts more, of a fifth of a second each, from a second after the job began."""
    with (run / "events.jsonl").open("a") as stream:
        for index in range(count):
            t = run_factory.BEGAN_T + 1 + index * every_s
            fault = {"fault": f"x{index}", "type": "cut", "target": "south", "links": ["south"]}
            stream.write(json.dumps({"t": t, "event": "fault-began", **fault}) + "\n")
            stream.write(json.dumps({"t": t + 0.2, "event": "fault-ended", **fault}) + "\n")


def test_each_of_many_faults_has_a_line(run):
    with_faults(run, 11, 4.0)
    report = report_of(run)
    (answer,) = [it for it in report.answers if it.id == "recovered"]
    assert answer.text.startswith("It came through 12 of 12 faults; the longest gap between commits, 380 ms,")
    assert len(answer.lines) == 12
    assert sum(line.startswith("Cut south at ") for line in answer.lines) == 11
    assert html(report).count("<li>Cut south at") == 11
    assert markdown(report).count("| cut south |") == 11
    SCHEMA.validate(json.loads(json.dumps(to_json(report), allow_nan=False)))


@pytest.mark.parametrize(("count", "every_s"), [(1, 4.0), (11, 4.0), (60, 0.5)])
def test_no_name_of_a_fault_lies_over_another(run, count, every_s):
    with_faults(run, count, every_s)
    (figure,) = [it for it in figures(report_of(run)) if it.id == "throughput"]
    labels = sorted((it["x"], it["text"]) for it in figure.spec["layout"]["annotations"])
    width = report_of(run).fibers[0].t_s[-1]
    # A character is about a hundredth of a plot's width, on a wide screen.
    for (left, text), (after, _) in itertools.pairwise(labels):
        assert after - left >= 0.01 * len(text) * width * 0.7, labels
    if count == 1:
        assert [text for _, text in labels] == ["cut south", "cut north"]
    else:
        numbers = {int(number) for _, text in labels for number in re.findall(r"\d+", text)}
        assert {1, count + 1} <= numbers


def test_goodput_beyond_one_is_explained(run):
    change(run, "run.json", expectations=[{"text": "goodput >= 0.8", "holds": True, "measured": 1.03}])
    report = report_of(run)
    assert "1.03, over 100 %: nothing was lost" in answers_text(report, "expected-1")
    more = dataclasses.replace(report, training=dataclasses.replace(report.training, goodput=1.03))
    for page in (html, markdown):
        assert "nothing was lost, to within the noise" in page(more)
        assert page(more).count("nothing was lost") == page(report).count("nothing was lost") + 1


def test_a_fault_whose_end_is_not_in_the_record_is_said_so(run):
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["event"] != "fault-ended"]
    (run / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    assert "to the end of the record" in answers_text(report_of(run), "recovered")


def test_a_page_has_one_spelling_of_microseconds(run):
    for page in (html(report_of(run)), markdown(report_of(run))):
        assert "\u00b5s" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_is_alone(run):
    page = html(report_of(run))
    assert page.startswith("<!doctype html>")
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"""(src|href)\s*=|url\(|@import""", without_scripts)
    assert page.count("plotly.js (basic") == 1


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>|`*x*`"


def test_what_users_write_stays_text(run):
    topology = json.loads((run / "topology.json").read_text())
    topology["name"] = topology["links"][0]["name"] = HOSTILE
    (run / "topology.json").write_text(json.dumps(topology))
    change(run, "run.json", name=HOSTILE, reason=HOSTILE, status="failed", host={HOSTILE: HOSTILE})
    with (run / "events.jsonl").open("a") as stream:
        stream.write(
            json.dumps({"t": 1020.0, "event": "fault-began", "fault": "x", "type": HOSTILE, "target": HOSTILE}) + "\n"
        )
        stream.write(json.dumps({"t": 1020.0, "event": HOSTILE, "text": HOSTILE}) + "\n")
    with (run / "metrics.jsonl").open("a") as stream:
        for t in (1010.0, 1020.0):
            stream.write(json.dumps({"t": t, "kind": "fiber", "direction": HOSTILE, "bytes": 5}) + "\n")
    report = report_of(run)
    page = html(report)
    assert "<script>alert" not in page
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert "<script" not in markdown(report)
    assert "<img" not in markdown(report)


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
    assert html(report)
    assert markdown(report)
    SCHEMA.validate(json.loads(json.dumps(to_json(report))))
    if gone in ("run.json", "certificate.json", "metrics.jsonl"):
        assert report.verdict == "unknown"
    if not empty:
        assert gone in report.missing


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_topology_with_a_number_that_is_not_finite_is_left_out(run, value):
    topology = json.loads((run / "topology.json").read_text())
    topology["links"][0]["rate_bps"] = value
    (run / "topology.json").write_text(json.dumps(topology))
    report = report_of(run)
    assert report.topology is None
    assert report.malformed == {"topology.json": 1}
    SCHEMA.validate(json.loads(json.dumps(to_json(report), allow_nan=False)))


def test_an_empty_directory(tmp_path):
    report = report_of(tmp_path)
    assert report.verdict == "unknown"
    assert report.goodput is report.recovery_s is None
    SCHEMA.validate(json.loads(json.dumps(to_json(report))))
    assert html(report)
    assert markdown(report)


_ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**320), 10**320),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([None, "x", {"name": 3}]),
)


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

    run = run_factory.make_run(tmp_path_factory.mktemp("odd") / "run", status="interrupted", steps=12)
    for file in (*run.glob("*.json*"), *run.glob("ranks/*.jsonl")):
        if file.suffix == ".json":
            file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
        else:
            lines = [spoil(json.loads(line)) for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = report_of(run)
    SCHEMA.validate(json.loads(json.dumps(to_json(report), allow_nan=False)))
    assert html(report)
    assert markdown(report)


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
    for records in (run / "ranks").glob("*.jsonl"):
        records.unlink()
    change(run, "run.json", workload={"command": "python x.py", "statuses": statuses}, expectations=[])
    report = report_of(run)
    assert answers(report)["ran"] == ran
    assert not {"trained", "wire", "recovered"} & set(answers(report))
    assert (report.verdict, report.headline) == (verdict, headline)
    SCHEMA.validate(to_json(report))
    assert "python x.py" in html(report) and "python x.py" in markdown(report)


def test_what_the_scale_model_does_not_hold_is_said(run):
    finding = {
        **{"fiber": "north", "quantity": "packet time", "verdict": "biased", "direction": "too harsh"},
        **{"lab": 1.5e-5, "real": 1.5e-8, "unit": "s", "error": 0.08, "reason": "one packet takes long", "change": ""},
    }
    change(
        run,
        "run.json",
        validity=[finding, {**finding, "quantity": "loss", "verdict": "holds", "reason": "as it is"}, "damaged"],
    )
    report = report_of(run)
    for text in (html(report), markdown(report)):
        assert "1 of 2 quantities hold" in text
        assert "biased too harsh" in text and "one packet takes long" in text
        assert "as it is</td>" not in text
    SCHEMA.validate(to_json(report))


@pytest.mark.parametrize(
    ("steps", "planned", "said"),
    [(1, 1, "1 of 1 step"), (3, 500, "3 of 500 steps"), (12, 12, "12 of 12 steps, means of the first and last 6")],
)
def test_the_losses_of_a_short_job_are_not_said_to_be_means_of_ten_steps(tmp_path, steps, planned, said):
    report = report_of(run_factory.make_run(tmp_path / "run", steps=steps))
    training = dataclasses.replace(report.training, steps_planned=planned)
    assert f">{said}<" in html(dataclasses.replace(report, training=training))
