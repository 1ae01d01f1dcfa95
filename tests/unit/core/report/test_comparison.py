"""Two runs side by side: inputs first, differences as arithmetic has them, and no more certainty than there is."""

from __future__ import annotations

import dataclasses
import json
import shutil
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from builders import run_factory, run_kinds, validation_factory
from builders.json_files import read_lines, write_lines
from builders.page_tree import tree_of
from builders.reports import figures, report_of
from builders.run_factory import edit
from builders.run_kinds import slower, stall

from testbed.core.report.comparison import comparison_words
from testbed.core.report.comparison.comparison import SideBySide, compare, to_json
from testbed.core.report.comparison.comparison_figures import pairs
from testbed.core.report.comparison.comparison_page import html
from testbed.core.report.comparison.run_side import side_of_run
from testbed.core.report.comparison.validation_side import side_of_validation
from testbed.host.files.store import RunDirectory

Runs = tuple[Path, Path]
"""Run directories to compare."""


def side(path: Path) -> Any:
    return side_of_run(path.name, str(path), RunDirectory.open(path).read())


def beside(a: Path, b: Path) -> SideBySide:
    return compare(side(a), side(b))


def plain(found: SideBySide) -> dict[str, Any]:
    """JSON as a reader of another language has it."""
    return json.loads(json.dumps(to_json(found), allow_nan=False))  # type: ignore[no-any-return]


def quantities(found: SideBySide) -> dict[tuple[str, str], dict[str, Any]]:
    return {(section, row["id"]): row for section, rows in plain(found)["quantities"].items() for row in rows}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_factory.make_run(tmp_path_factory.mktemp("made") / "base")


@pytest.fixture
def two(made: Path, tmp_path: Path) -> Runs:
    return tuple(shutil.copytree(made, tmp_path / name) for name in ("one", "other"))  # type: ignore[return-value]


@pytest.fixture
def brief(two: Runs) -> Runs:
    """Two runs of a few steps, where only the inputs count."""
    for path in two:
        for files in ("metrics.jsonl", "ranks/*"):
            edit(path, files, lambda lines: lines[:40])
    return two


# ---- inputs


SCHEDULE = [{"inject": "cut", "target": "north", "at_s": 3.0, "began": 1}]


@pytest.mark.parametrize(
    ("files", "place", "value", "named", "written"),
    [
        ("topology.json", "name", "metro-50km", "topology", "metro-50km"),
        ("topology.json", "scale", 100.0, "scale", "100"),
        ("topology.json", "links.0.length_m", 80e3, "link north, length", "80 km"),
        ("topology.json", "links.1.queue_bytes", 64_000, "link south, queue", "64 kB"),
        ("topology.json", "sites.0.nodes", 3, "sites", "east (3 nodes), west (2 nodes)"),
        ("topology.json", "seed", 7, "seed of losses", "7"),
        ("run.json", "workload.seed", 1, "seed", "1"),
        ("run.json", "workload.batch", 8, "batch", "8"),
        ("run.json", "testbed", "0.2.0", "version of testbed", "0.2.0"),
        ("ranks/rank-?.jsonl", "0.torch", "2.99.0+cpu", "version of torch", "2.99.0+cpu"),
        ("run.json", "host.kernel", "7.1", "kernel", "7.1"),
        ("run.json", "host.sysctls", {"net.core.rmem_max": "1"}, "net.core.rmem_max", "1"),
        ("run.json", "emulator", "netem", "emulator", "netem"),
        ("run.json", "schedule", SCHEDULE, "planned fault 1", "cut north, at s 3.0"),
    ],
)
def test_an_input_that_differs_is_the_first_thing_said(
    brief: Runs, files: str, place: str, value: object, named: str, written: str
) -> None:
    edit(brief[1], files, {place: value})
    found = beside(*brief)
    values = (*found.differing, *found.one_sided)
    changed = [value for value in values if value.b == written]
    assert [value.name for value in changed] == [named]
    others = {value.name for value in values} - {named}
    assert others <= {"link north, rate", "link south, rate"}, "a rate at full scale follows the scale"
    if changed[0] in found.differing:
        assert named in comparison_words.inputs_lead(found)
    page = html(found)
    assert page.index(written) < page.index("Key figures")


def test_a_fault_s_parameter_differs_though_its_line_of_the_schedule_is_the_same(brief: Runs) -> None:
    for path, loss in zip(brief, ("2%", "4%"), strict=True):
        text = f"# a comment of {loss}\nschedule:\n  - {{inject: brown-out, with: {{loss: {loss}}}}}\nsteps: 9\n"
        edit(path, "run.json", {"experiment.text": text})
    (only,) = beside(*brief).differing
    assert only.name == "experiment file"
    assert only.a == "  - {inject: brown-out, with: {loss: 2%}}"
    assert only.b == "  - {inject: brown-out, with: {loss: 4%}}"


def test_without_a_difference_the_page_says_that_the_rest_is_between_runs(brief: Runs) -> None:
    found = beside(*brief)
    assert not found.differing and not found.one_sided and len(found.same) > 30
    assert "how far two runs of the same thing are apart" in comparison_words.inputs_lead(found)
    assert comparison_words.inputs_lead(beside(brief[0], brief[0])) == "A and B are the same run."


def test_a_host_that_was_busier_is_told(brief: Runs) -> None:
    assert not list(comparison_words.conditions(beside(*brief)))
    edit(brief[1], "certificate.json", cpu_busy=0.6)
    (condition,) = comparison_words.conditions(beside(*brief))
    assert condition.startswith("The host was busier before B: 40.0 % of its CPU was free")


# ---- quantities


def test_differences_and_ratios_are_those_of_the_two_reports(two: Runs) -> None:
    slower(two[1], 1.5)
    found = quantities(beside(*two))
    reports = [report_of(path) for path in two]
    for key, get in {
        "median_step_s": attrgetter("training.median_step_s"),
        "goodput": attrgetter("goodput"),
        "train_loss_last": attrgetter("train_loss_last"),
        "wall_s": attrgetter("training.wall_s"),
    }.items():
        a, b = map(get, reports)
        row = found["figures", key]
        assert (row["a"], row["b"]) == (a, b)
        assert row["difference"] == pytest.approx(b - a, abs=1e-12)
        assert row["ratio"] == pytest.approx(b / a)
    assert found["figures", "median_step_s"]["ratio"] == pytest.approx(1.5, rel=1e-3)
    for key in "ab":
        shares = [row[key] for (section, _), row in found.items() if section == "rank_seconds"]
        assert sum(shares) == pytest.approx(1.0), "the classes of goodput are all there"


def test_no_number_has_an_exponent(two: Runs) -> None:
    found = beside(*two)
    (pair,) = [it for it in found.sections["rank_seconds"] if it.id == "productive_s"]
    for a, b in ((0.3, 1e-6), (1e-6, 0.3), (0.3, 0.3000001)):
        tiny = dataclasses.replace(pair, difference=b - a, ratio=b / a)
        for show in (comparison_words.against, comparison_words.ratio, comparison_words.difference):
            assert "e-" not in show(tiny) and "e+" not in show(tiny)


def test_wire_bytes_are_those_of_the_counters(two: Runs) -> None:
    north = [line["bytes"] for line in read_lines(two[0] / "metrics.jsonl") if line.get("direction") == "north:west"]
    found = quantities(beside(*two))
    assert found["wire", "north:west"]["a"] == north[-1] - north[0] > 0
    total = sum(it["a"] for (section, id), it in found.items() if section == "wire" and ":" in id)
    assert found["wire", "all"]["a"] == total
    assert found["wire", "all_per_step"]["a"] == pytest.approx(total / run_factory.STEPS)


@pytest.mark.parametrize(
    ("factor", "jitter", "judged"),
    [(1.5, 0.05, "beyond the noise"), (1.01, 0.3, "within the noise")],
)
def test_a_difference_is_judged_by_the_noise_inside_the_runs(
    two: Runs, factor: float, jitter: float, judged: str
) -> None:
    slower(two[0], 1.0, jitter, seed=1)
    slower(two[1], factor, jitter, seed=2)
    found = quantities(beside(*two))
    for key in ("median_step_s", "tokens_per_s_outside_faults"):
        row = found["figures", key]
        assert row["judgement"] == judged, row
        assert row["noise_a"][0] <= row["a"] <= row["noise_a"][1]
    goodput = found["figures", "goodput"]
    assert goodput["judgement"] in ("one value each", "equal")
    assert goodput["noise_a"] is None, "one value of a run has no noise that is known"


def test_a_difference_is_never_ranked_within_the_uncertainty_by_stalls(two: Runs) -> None:
    slower(two[1], 1.1)
    quiet = quantities(beside(*two))
    assert quiet["figures", "tokens_per_s"]["judgement"] == "one value each"
    assert quiet["figures", "median_step_s"]["judgement"] == "beyond the noise"
    stall(two[1], *((second / 2, 0.001) for second in range(100)))
    few = quantities(beside(*two))["figures", "tokens_per_s"]
    assert few["judgement"] == "one value each"
    assert few["uncertainty_b"] is not None
    stall(two[1], *((index * 0.143, 0.03) for index in range(400)))
    comparison = beside(*two)
    noisy = quantities(comparison)
    for key in ("tokens_per_s", "median_step_s", "tokens_per_s_outside_faults", "wall_s"):
        row = noisy["figures", key]
        assert row["judgement"] == "within the noise", key
        low, high = row["uncertainty_b"]
        assert low < row["b"] < high
    (sentence,) = [line for line in comparison_words.conditions(comparison) if "Noisy host" in line]
    assert sentence.startswith("B: ")
    assert sentence in html(comparison)
    assert "by stalls of the host" in html(comparison)


def test_faults_pair_by_type_target_and_order(two: Runs) -> None:
    events = (two[1] / "events.jsonl").read_text()
    (two[1] / "events.jsonl").write_text(events.replace('"north"', '"south"'))
    found = quantities(beside(*two))
    for link, name, absent in (("north", "A", "b"), ("south", "B", "a")):
        row = found["faults", f"cut {link}"]
        assert (row["judgement"], row[absent]) == (f"only in {name}", None)
    both = quantities(beside(two[0], two[0]))["faults", "cut north"]
    assert (both["difference"], both["ratio"]) == (0, 1) and "for 10 s" in both["detail_a"]


def test_certificates_pair_by_direction(two: Runs) -> None:
    edit(two[1], "certificate.json", **run_factory.certificate(9e-6))
    row = quantities(beside(*two))["certificate", "north:west"]
    assert (row["a"], row["b"], row["difference"]) == pytest.approx((4e-6, 9e-6, 5e-6))
    assert "certified" in row["detail_a"]


# ---- other kinds, missing parts, old versions


def test_a_training_job_beside_a_validation(made: Path) -> None:
    validation = side_of_validation("v", "/runs/v", validation_factory.validation())
    for found in (compare(side(made), validation), compare(validation, side(made))):
        assert "of different kinds" in comparison_words.inputs_lead(found)
        assert not any(None in (it.a, it.b) for it in found.differing), "what one run does not tell may be the same"
        assert {"speed", "figures", "certificate"} <= set(found.sections)
        assert [(it.a is None, it.b is None) for it in found.answers if it.id == "fidelity"] == [(False, False)]
        assert plain(found)["a"]["kind"] != plain(found)["b"]["kind"]
        assert "training job" in html(found) and "validation of collective libraries" in html(found)


def test_two_validations_name_their_changes_with_the_first_as_baseline() -> None:
    def twice(speed: Any) -> Any:
        return dataclasses.replace(speed, **{key: 2 * getattr(speed, key) for key in ("median_s", "low_s", "high_s")})

    old = validation_factory.validation()
    first, *others = old.libraries
    library = dataclasses.replace(first, speeds=tuple(map(twice, first.speeds)), version="9.9")
    new = dataclasses.replace(old, libraries=(library, *others))
    found = compare(side_of_validation("a", "/a", old), side_of_validation("b", "/b", new))
    assert [(value.name, value.b) for value in found.differing] == [(f"library {library.name}", "9.9")]
    assert {change.kind for change in found.changes} == {"worse"}
    slow = [row for row in found.sections["speed"] if row.id.startswith(f"{library.name} ")]
    assert slow and all(row.ratio == pytest.approx(2) and row.judgement == "beyond the noise" for row in slow)


PARTS = ("topology.json", "certificate.json", "events.jsonl", "metrics.jsonl", "ranks", "run.json")


@pytest.mark.parametrize("missing", PARTS)
def test_a_run_with_a_missing_part_is_compared_either_way(brief: Runs, missing: str) -> None:
    gone = brief[1] / missing
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    for found in (beside(*brief), beside(brief[1], brief[0])):
        letter = "B" if found.b.name == "other" else "A"
        assert any(it.startswith(f"{letter}: Missing") for it in comparison_words.conditions(found))
        page = html(found)
        assert "NaN" not in page.split("<script")[0] and plain(found)["version"] == 1
        # What a run does not tell is not held to differ: a topology that is not there is no other topology.
        differing = {it.group for it in found.differing}
        assert differing <= {"workload", "experiment"}, differing


def test_runs_of_old_versions_are_compared(tmp_path: Path) -> None:
    """run.json without kinds, host or schedule; metrics with every series by name; no attempts, no checks."""
    for name, step_s in (("old", 0.1), ("older", 0.2)):
        path = tmp_path / name
        (path / "ranks").mkdir(parents=True)
        (path / "run.json").write_text(json.dumps({"version": 1, "name": name, "status": "finished"}))
        steps = [
            {"kind": "step", "step": n, "t_begin": n * step_s, "t_ready": (n + 0.5) * step_s}
            | {"t_sync": (n + 0.9) * step_s, "t_end": (n + 1) * step_s, "tokens": 4, "train_loss": 5.0 - n / 100}
            for n in range(1, 61)
        ]
        job = {"kind": "job", "t": 0.0, "rank": 0, "world_size": 1, "node": "east-0", "site": "east", "scheme": "ddp"}
        write_lines(path / "ranks" / "rank-0.jsonl", [job, *steps])
        scrape = {"t": 1.0, "kind": "rank", "rank": 0, "values": {'testbed_steps_total{rank="0"}': 3.0}}
        write_lines(path / "metrics.jsonl", [scrape])
    found = beside(tmp_path / "old", tmp_path / "older")
    assert quantities(found)["figures", "median_step_s"]["ratio"] == pytest.approx(2)
    assert html(found)


# ---- the page


def test_plots_stand_beside_each_other_with_the_same_axes(two: Runs) -> None:
    slower(two[1], 1.5)
    found = beside(*two)
    drawn: Any = pairs(found.a, found.b)
    assert [(a.id, b.id) for a, b in drawn if a and b] == [
        ("a-step-time", "b-step-time"),
        ("a-throughput", "b-throughput"),
    ]
    own: list[dict[str, Any]] = [{figure.id: figure for figure in figures(side.report)} for side in (found.a, found.b)]
    for a, b in drawn:
        for axis in ("xaxis", "yaxis"):
            low, high = a.spec["layout"][axis]["range"]
            assert [low, high] == [*b.spec["layout"][axis]["range"]], "heights must compare"
            for report in own:
                for trace in report[a.id.removeprefix("a-")].spec["data"]:
                    values = [value for value in trace[axis[0]] if value is not None]
                    assert low <= min(values) and max(values) <= high, axis
    ids = [element.attrib["id"] for element in tree_of(html(found)).iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids)) and {"a-step-time", "b-throughput"} <= set(ids)


def test_a_hostile_name_is_text(two: Runs) -> None:
    hostile = "</title><script>alert(1)</script>"
    edit(two[1], "topology.json", name=hostile)
    hostile_side = dataclasses.replace(side(two[1]), name=hostile, folder=hostile, headline=hostile)
    assert "<script>alert" not in html(compare(side(two[0]), hostile_side))


def test_what_a_dead_job_leaves_open_is_a_bound_and_has_no_difference(tmp_path: Path) -> None:
    found = beside(run_kinds.make(tmp_path / "stall", "stall"), run_kinds.make(tmp_path / "death", "death"))
    written = quantities(found)
    rows = {(section, row.id): row for section, listed in found.sections.items() for row in listed}
    for key, bound, sign in (
        (("figures", "recovery_s"), "at least", ">= "),
        (("figures", "goodput"), "at most", "<= "),
        (("faults", "cut north"), "at least", ">= "),
    ):
        row = written[key]
        assert (row["bound_a"], row["bound_b"]) == ("", bound)
        assert (row["difference"], row["ratio"], row["judgement"]) == (None, None, "only a bound")
        assert comparison_words.value(rows[key].b).startswith(sign)
        assert not comparison_words.value(rows[key].a).startswith(sign)
    assert not written["figures", "wall_s"]["bound_b"]


def test_a_planned_fault_is_told_in_words(run: Path) -> None:
    cut = {"inject": "cut", "target": "north", "after_step": 75, "repeat": 1, "every_s": 0.0, "lasts_s": 20.0}
    edit(run, "run.json", schedule=[cut, {**cut, "repeat": 3, "every_s": 1.5, "lasts_s": None}])
    planned = [value.value for value in side(run).inputs if value.name.startswith("planned fault")]
    assert planned == ["cut north, after step 75, for 20 s", "cut north, after step 75, repeat 3, every 1.5 s"]
