"""A comparison is fair: equal tokens, time and bytes; an interval from three seeds; compute on busy cores is named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders.jobs import rank, step

from testbed.cli import reports, verb
from testbed.core.analysis.heldout import HeldOut
from testbed.core.records.rank_log import StepRecord
from testbed.core.records.run_record import RunData
from testbed.core.report.comparison import ways_page, ways_tables
from testbed.core.report.comparison.side import Side
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared, to_json, way_of_run

OTHER = "diloco:every=50"
WAYS = ("ddp", OTHER)

CURVES = {
    # Both train on the same tokens. ddp needs twice the time and ten times the bytes.
    "ddp": HeldOut((10, 20), (20.0, 40.0), (10e6, 20e6), (4.0, 3.0), (1, 2), (1000, 2000)),
    OTHER: HeldOut((10, 20), (10.0, 20.0), (1e6, 12e6), (4.5, 3.5), (0, 1), (1000, 2000)),
}


def run(way: str, seed: int, curve: HeldOut | None = None) -> WayRun:
    side = Side(f"{way}-{seed}", f"/runs/{way}-{seed}", "training job", "pass", "It trained.", 0.0, (), (), {})
    return WayRun(way, seed, side, CURVES[way] if curve is None else curve, None, {})


def compared(*runs: WayRun) -> WaysCompared:
    return WaysCompared("metro-40km", WAYS, tuple(dict.fromkeys(run.seed for run in runs)), runs)


def of_seeds(count: int) -> WaysCompared:
    """The seeds differ by 0.1 in both ways, and the difference of the ways by 0.01 to either side."""
    runs = []
    for seed in range(count):
        for way in WAYS:
            off = 0.1 * seed + (0.01 * (seed - 1) if way == OTHER else 0.0)
            runs.append(run(way, seed, replace(CURVES[way], loss=tuple(loss + off for loss in CURVES[way].loss))))
    return compared(*runs)


def losses(found: WaysCompared, way: str) -> list[float | None]:
    return [found.mean(way, f"loss_at_equal_{budget}") for budget in ("tokens", "time", "bytes")]


def test_each_budget_is_that_of_the_shortest_run() -> None:
    found = compared(run("ddp", 0), run(OTHER, 0))
    assert found.budgets == {"tokens": 2000, "t_s": 20.0, "fiber_bytes": 12e6}
    # After 20 s ddp has its first evaluation; after 12 MB it is a fifth of the way to its second one.
    assert losses(found, "ddp") == pytest.approx([3.0, 4.0, 3.8])
    assert losses(found, OTHER) == pytest.approx([3.5, 3.5, 3.5])
    document: Any = to_json(found)
    assert document["budgets"] == {"tokens": 2000, "time": 20.0, "bytes": 12e6}
    assert document["means"]["ddp"]["loss_at_equal_bytes"] == pytest.approx(3.8)
    assert document["runs"][0]["heldout"]["tokens"] == [1000, 2000]


def test_a_budget_before_the_first_evaluation_has_no_loss_and_a_sentence() -> None:
    sparing = replace(CURVES[OTHER], fiber_bytes=(0.5e6, 2e6))
    found = compared(run("ddp", 0), run(OTHER, 0, sparing))
    assert losses(found, "ddp") == [3.0, 4.0, None]
    (sentence,) = found.notes
    assert sentence == (
        "No loss at equal bytes (2 MB) where the first evaluation came later: ddp after 10 MB. Nothing is extrapolated;"
        " raise --evaluations."
    )
    table: Any = ways_tables.budgets_table(found)
    assert [row[2:] for row in table.rows[-2:]] == [["–", "–"], ["3.500", "–"]]


def test_a_loss_that_only_some_seeds_have_is_marked() -> None:
    found = of_seeds(3)
    late = replace(found.runs[-2].heldout, fiber_bytes=(15e6, 20e6))  # ddp's first evaluation is beyond the budget
    found = replace(found, runs=(*found.runs[:-2], replace(found.runs[-2], heldout=late), found.runs[-1]))
    table: Any = ways_tables.budgets_table(found)
    assert [row[2] for row in table.rows[-2:]] == ["3.850 (2 of 3 seeds)", "3.600"]
    assert "ddp (1 of 3 seeds) after 15 MB" in " ".join(found.notes)


def test_equal_differences_have_no_bracket() -> None:
    found = of_seeds(3)
    equal = {f"{OTHER}-{seed}": replace(CURVES[OTHER], loss=(4.5, 3.5)) for seed in range(3)}
    equal |= {f"ddp-{seed}": CURVES["ddp"] for seed in range(3)}
    found = replace(found, runs=tuple(replace(run, heldout=equal[run.side.name]) for run in found.runs))
    assert ways_tables.difference(found, found.paired(OTHER, "loss_at_equal_tokens")) == "+0.5000"


def test_a_run_that_ended_early_sets_no_budget() -> None:
    early = run(OTHER, 0, HeldOut((10,), (10.0,), (1e6,), (4.5,), (0,), (1000,)))
    training = SimpleNamespace(steps_planned=20, steps_committed=13, tokens=1300)
    report: Any = SimpleNamespace(declared=None, topology=None, training=training, noise=None)
    early = replace(early, side=replace(early.side, report=report))
    found = compared(run("ddp", 0), early)
    assert found.budgets == {"tokens": 2000, "t_s": 40.0, "fiber_bytes": 20e6}
    assert losses(found, OTHER) == [None, None, None]
    assert any(sentence.startswith("Ended early") for sentence in found.notes)


def test_runs_grow_into_a_comparison_and_the_budget_shrinks_with_them() -> None:
    found = compared(run("ddp", 0))
    assert found.budgets["t_s"] == 40.0
    found = replace(found, runs=(*found.runs, run(OTHER, 0)))
    assert found.budgets["t_s"] == 20.0
    assert losses(found, "ddp") == pytest.approx([3.0, 4.0, 3.8])


@pytest.mark.parametrize(
    ("seeds", "shown", "interval"),
    [
        pytest.param(1, "+0.4900", None, id="one seed"),
        pytest.param(2, "+0.4950", None, id="two seeds"),
        # 4.302653 x 0.01 / sqrt(3)
        pytest.param(3, "+0.5000 (+0.4752 to +0.5248)", (0.475159, 0.524841), id="three seeds"),
    ],
)
def test_differences_have_an_interval_from_three_seeds(
    seeds: int, shown: str, interval: tuple[float, float] | None
) -> None:
    found = of_seeds(seeds)
    table: Any = ways_tables.budgets_table(found)
    assert table.rows[1] == [
        "2\u202f000 tokens",
        OTHER,
        f"{3.5 + (0.05 * (seeds - 1) + 0.005 * (seeds - 3)):.3f}",
        shown,
    ]
    label = "mean (95 % interval)" if interval else "too few seeds for an interval"
    assert table.head[-1] == f"less ddp, same seed; {label}"
    document: Any = to_json(found)
    (row,) = [row for row in document["differences"] if row["id"] == "loss_at_equal_tokens"]
    assert row["interval"] == (None if interval is None else pytest.approx(interval, abs=1e-6))
    assert label in ways_page.html(found)


def test_a_pair_that_lacks_a_seed_has_no_interval_and_shows_why() -> None:
    found = of_seeds(3)
    found = replace(found, runs=found.runs[:-1])
    assert ways_tables.difference(found, found.paired(OTHER, "loss_at_equal_tokens")) == (
        "+0.4950, too few seeds for an interval"
    )


@pytest.mark.parametrize(
    ("seeds", "label"), [(2, "too few seeds for an interval"), (3, "mean (95 % interval)")], ids=["two", "three"]
)
def test_the_terminal_labels_what_is_in_brackets(seeds: int, label: str, capsys: pytest.CaptureFixture[str]) -> None:
    verb.show(reports.of_comparison(of_seeds(seeds), Path("index.html"), 0), as_json=False)
    shown = " ".join(re.sub("[─\n]", " ", capsys.readouterr().out).split())
    assert "Held-out loss at equal budgets (toy scale)" in shown
    for word in label.split():  # the head of a column wraps
        assert word in shown
    assert ("(+0.4752 to +0.5248)" in shown) is (seeds == 3)


def test_every_value_can_be_read_without_javascript() -> None:
    found = of_seeds(1)
    page = re.sub(r"<script.*?</script>", "", ways_page.html(found), flags=re.DOTALL)
    for text in ("12 MB", "20 s", "2\u202f000", "3.8", "+0.4900", "Held-out loss by evaluation", "4.4900"):
        assert text in page
    assert "the tables below have their values" in page


# ---- compute on busy cores


def of_compute(times: Sequence[float], cpu_s: float | None, declared_s: float | None = None) -> RunData:
    """A run of one rank whose steps compute as long as ``times`` and use ``cpu_s`` of CPU each."""
    steps: list[StepRecord] = []
    for number, time_s in enumerate(times, 1):
        done = step(number, float(number), number + 0.9, ready=number + time_s, sync=number + 0.9)
        steps.append(replace(done, cpu_s=cpu_s, declared_s=declared_s))
    return RunData(ranks=(rank(0, steps, world=1),))


def on_cores(runs: Mapping[str, RunData]) -> WaysCompared:
    return compared(*(way_of_run(way, 0, way, f"/runs/{way}", data) for way, data in runs.items()))


def bound(found: WaysCompared) -> list[str]:
    return [sentence for sentence in found.notes if sentence.startswith("CPU-bound here")]


def test_real_compute_that_waits_for_cores_is_cpu_bound() -> None:
    found = on_cores({"ddp": of_compute([0.346] * 3, 0.14), OTHER: of_compute([0.146] * 3, 0.14)})
    assert bound(found) == [
        "CPU-bound here: compute is real, and ranks waited for a core. Compute of a step: ddp 346 ms (waiting: 59.5 %),"
        f" {OTHER} 146 ms (waiting: 4.1 %). Times, utilization and goodput depend on what else the cores do. Declare"
        " compute to compare strategies: --compute real:350ms or more."
    ]
    assert found.mean("ddp", "compute_s") == pytest.approx(0.346)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(of_compute([0.146] * 3, 0.14), id="a core for each rank"),
        pytest.param(of_compute([0.146] * 3, 0.2), id="threads beside compute"),
        pytest.param(of_compute([0.146, 0.8, 0.146], 0.14), id="a slow rank for a while"),
        pytest.param(of_compute([0.346] * 3, 0.02, declared_s=0.346), id="declared compute"),
        pytest.param(of_compute([0.346] * 3, None), id="records of former versions"),
    ],
)
def test_other_compute_is_not_cpu_bound(data: RunData) -> None:
    assert bound(on_cores({"ddp": data, OTHER: data})) == []
