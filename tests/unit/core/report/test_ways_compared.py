"""Several ways of training: differences are paired by seed, a missing run is told, and every loss says "toy scale"."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.analysis.costs.critical_path import StepParts
from testbed.core.analysis.declared_steps import DeclaredSteps
from testbed.core.analysis.heldout import HeldOut
from testbed.core.analysis.noise.inside_noise import Range
from testbed.core.report.comparison import ways_page, ways_tables
from testbed.core.report.comparison.side import Quantity, Side
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared, to_json
from testbed.core.report.comparison.ways_figures import TOY, ways_figures

OTHER = "diloco:every=50"
WAYS = ("ddp", OTHER)


def run(way: str, seed: int, loss: float | None, verdict: str = "pass") -> WayRun:
    side = Side(f"{way}-{seed}", f"/runs/{way}-{seed}", "training job", verdict, "It trained.", 0.0, (), (), {})
    curve = HeldOut((10, 20), (1.0, 2.0), (1e6, 2e6), (5.0, loss or 4.0), (0, 1))
    quantities = {
        "heldout_loss": Quantity("heldout_loss", "held-out loss", "nats", loss),
        "compute_utilization": Quantity("compute_utilization", "compute utilization", "share", 0.5),
    }
    return WayRun(way, seed, side, curve, StepParts(compute_s=0.1, propagation_s=0.02), quantities)


def compared(losses: Mapping[tuple[str, int], float | None], **more: str) -> WaysCompared:
    runs = tuple(run(way, seed, loss, **more) for (way, seed), loss in losses.items())
    return WaysCompared("metro-40km", WAYS, tuple(dict.fromkeys(seed for _, seed in losses)), runs)


FOUND = compared(
    {
        ("ddp", 0): 2.430, (OTHER, 0): 2.460,
        ("ddp", 1): 2.465, (OTHER, 1): 2.497,
        ("ddp", 2): 2.423, (OTHER, 2): 2.454,
    }
)  # fmt: skip


def test_differences_are_of_runs_with_the_same_seed() -> None:
    comparison: Any = FOUND.paired(OTHER, "heldout_loss")
    assert comparison.differences == pytest.approx({0: 0.030, 1: 0.032, 2: 0.031})
    # The seeds alone differ by 0.042; the difference of two ways by 0.002.
    assert (comparison.mean, comparison.high - comparison.low) == pytest.approx((0.031, 0.002))
    assert FOUND.paired("ddp", "heldout_loss") is None
    table: Any = ways_tables.paired_table(FOUND)
    assert table.rows[0] == ["held-out loss", "+0.0310 (+0.0285 to +0.0335)"], "4.302653 * 0.001 / sqrt(3) on each side"


@pytest.mark.parametrize(("by", "within"), [(0.005, False), (0.02, True)])
def test_a_difference_that_stalls_may_have_made_is_within_noise(by: float, within: bool) -> None:
    def with_share(run: WayRun) -> WayRun:
        share = 0.5 if run.way == "ddp" else 0.53
        quantity = run.quantities["compute_utilization"]
        quantity = replace(quantity, value=share, uncertainty=Range(share - by, share + by))
        return replace(run, quantities={**run.quantities, "compute_utilization": quantity})

    noisy = replace(FOUND, runs=tuple(with_share(run) for run in FOUND.runs))
    paired: Any = noisy.paired(OTHER, "compute_utilization")
    assert paired.uncertainty == pytest.approx((0.03 - 2 * by, 0.03 + 2 * by))
    assert paired.within_noise is within
    assert ("within noise" in ways_tables.difference(noisy, paired)) is within
    differences: Any = to_json(noisy)["differences"]
    (row,) = [row for row in differences if row["id"] == "compute_utilization"]
    assert row["within_noise"] is within
    assert FOUND.paired(OTHER, "heldout_loss").uncertainty is None  # type: ignore[union-attr]


def test_a_seed_that_one_way_lacks_is_in_no_difference() -> None:
    comparison = compared({("ddp", 0): 2.4, (OTHER, 0): 2.5, ("ddp", 1): 2.0})
    assert comparison.paired(OTHER, "heldout_loss").differences == pytest.approx({0: 0.1})  # type: ignore[union-attr]
    assert comparison.verdict == "unknown", "a run is missing"
    assert compared({("ddp", 0): 2.4, (OTHER, 0): None}).paired(OTHER, "heldout_loss") is None


def test_a_run_that_failed_decides_the_verdict() -> None:
    assert FOUND.verdict == "pass"
    assert compared({("ddp", 0): 2.4}, verdict="fail").verdict == "fail"


def test_page_and_json_have_the_same_facts() -> None:
    page, document = ways_page.html(FOUND), json.loads(json.dumps(to_json(FOUND), allow_nan=False))
    assert "+0.0310 (+0.0285 to +0.0335)" in page
    assert document["means"]["ddp"]["heldout_loss"] == pytest.approx((2.430 + 2.465 + 2.423) / 3)
    assert document["differences"][0]["by_seed"] == pytest.approx({"0": 0.030, "1": 0.032, "2": 0.031})
    assert [it["seed"] for it in document["runs"]] == [0, 0, 1, 1, 2, 2]
    assert document["path"]["ddp"]["propagation_s"] == pytest.approx(0.02)


def test_every_plot_of_a_loss_says_that_it_is_of_toy_scale() -> None:
    titles = [figure.title for figure in ways_figures(FOUND) if "loss" in figure.title.lower()]
    assert [TOY in title for title in titles] == [True] * 3


def test_an_interrupted_comparison_says_what_is_missing() -> None:
    comparison = WaysCompared("metro-40km", WAYS, (0, 1), FOUND.runs[:1], ended="interrupted")
    assert (
        ways_tables.headline(comparison) == "2 ways of training on metro-40km, 2 seeds each: 1 of 4 runs, interrupted"
    )
    assert "interrupted" in ways_page.html(comparison)
    (missing,) = comparison.notes
    assert missing == (f"Missing: {OTHER} of seed 0, ddp of seed 1, {OTHER} of seed 1 (interrupted).")
    assert missing in ways_page.html(comparison)


def with_reports(fields: Callable[[int, WayRun], Mapping[str, Any]]) -> WaysCompared:
    """Every run has a report: of 20 steps with 5120 tokens, except for ``fields``."""

    def reported(number: int, run: WayRun) -> WayRun:
        values = {"steps_committed": 20, "tokens": 5120, "declared": None, **fields(number, run)}
        training = SimpleNamespace(steps_planned=20, **values)
        report: Any = SimpleNamespace(declared=values["declared"], topology=None, training=training, noise=None)
        return replace(run, side=replace(run.side, report=report))

    return replace(FOUND, runs=tuple(reported(*numbered) for numbered in enumerate(FOUND.runs)))


def test_a_run_that_was_interrupted_is_told_although_none_is_missing() -> None:
    comparison = with_reports(lambda number, _: {"steps_committed": 7 if number == 5 else 20})
    comparison = replace(comparison, ended="interrupted")
    assert ways_tables.headline(comparison).endswith("3 seeds each, interrupted")
    assert comparison.notes[0].startswith(f"Ended early: {OTHER} of seed 2 after step 7 of 20;")


def test_a_way_that_cannot_begin_is_told_with_its_reason() -> None:
    comparison = WaysCompared(
        "metro-40km", WAYS, (0,), FOUND.runs[:1], failed=((OTHER, 0, "rank 3 has no such library"),)
    )
    assert comparison.notes == (f"Failed before its first step: {OTHER} of seed 0 (rank 3 has no such library).",)
    assert comparison.verdict == "fail" and comparison.notes[0] in ways_page.html(comparison)
    assert to_json(comparison)["failed"] == [{"way": OTHER, "seed": 0, "reason": "rank 3 has no such library"}]


def test_ways_that_train_on_more_tokens_in_a_step_are_told() -> None:
    (note,) = with_reports(lambda _, run: {"tokens": 5120 if run.way == "ddp" else 7680}).notes
    assert note.startswith(f"Tokens differ: in a step, {OTHER} 1.5 times as many as ddp.")
    assert with_reports(lambda *_: {}).notes == ()


def test_every_page_says_that_compute_is_declared_and_where_the_cores_fell_short() -> None:
    assert FOUND.notes == ()

    steps = DeclaredSteps("declared", 0.1, 0.0, 0.1, 0.1, 9, 0, 0.0, 0.0, None, ranks=4, cores=2, parameters=1_300_000)
    longer = replace(steps, measured_s=0.15)
    comparison = with_reports(lambda _, run: {"declared": steps if run.way == "ddp" else longer})
    first, bound = comparison.notes
    assert "Times of compute on this page are declared" in first
    assert bound.startswith(f"CPU-bound here: steps of {OTHER} took longer")
    assert first in ways_page.html(comparison)
