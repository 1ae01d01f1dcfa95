"""Several ways of training: differences are paired by seed, a missing run is told, and every loss says "toy scale"."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.analysis.critical_path import Parts
from testbed.core.analysis.declared_steps import DeclaredSteps
from testbed.core.analysis.heldout import HeldOut
from testbed.core.analysis.inside_noise import Range
from testbed.core.report.comparison import ways_page, ways_tables
from testbed.core.report.comparison.side import Quantity, Side
from testbed.core.report.comparison.ways_compared import WayRun, WaysCompared, to_json
from testbed.core.report.comparison.ways_figures import TOY, ways_figures

WAYS = ("ddp", "diloco:every=50")


def run(way: str, seed: int, loss: float | None, verdict: str = "pass") -> WayRun:
    side = Side(f"{way}-{seed}", f"/runs/{way}-{seed}", "training job", verdict, "It trained.", 0.0, (), (), {})
    curve = HeldOut((10, 20), (1.0, 2.0), (1e6, 2e6), (5.0, loss or 4.0), (0, 1))
    quantities = {
        "heldout_loss": Quantity("heldout_loss", "held-out loss", "nats", loss),
        "compute_utilization": Quantity("compute_utilization", "compute utilization", "share", 0.5),
    }
    return WayRun(way, seed, side, curve, Parts(compute_s=0.1, propagation_s=0.02), quantities)


def compared(losses: Mapping[tuple[str, int], float | None], **more: str) -> WaysCompared:
    runs = tuple(run(way, seed, loss, **more) for (way, seed), loss in losses.items())
    return WaysCompared("metro-40km", WAYS, tuple(dict.fromkeys(seed for _, seed in losses)), runs)


FOUND = compared(
    {
        ("ddp", 0): 2.430, (WAYS[1], 0): 2.460,
        ("ddp", 1): 2.465, (WAYS[1], 1): 2.497,
        ("ddp", 2): 2.423, (WAYS[1], 2): 2.454,
    }
)  # fmt: skip


def test_differences_are_of_runs_with_the_same_seed() -> None:
    found = FOUND.paired(WAYS[1], "heldout_loss")
    assert found is not None
    assert found.differences == pytest.approx({0: 0.030, 1: 0.032, 2: 0.031})
    # The seeds alone differ by 0.042; the difference of two ways by 0.002.
    assert (found.mean, found.high - found.low) == pytest.approx((0.031, 0.002))
    assert FOUND.paired("ddp", "heldout_loss") is None
    table = ways_tables.paired_table(FOUND)
    assert table is not None
    assert table.rows[0] == ["held-out loss", "+0.0310 (+0.0300 to +0.0320)"]


def test_a_difference_that_stalls_may_have_made_is_within_noise() -> None:
    def with_share(run: WayRun, share: float, by: float) -> WayRun:
        quantity = replace(
            run.quantities["compute_utilization"], value=share, uncertainty=Range(share - by, share + by)
        )
        return replace(run, quantities={**run.quantities, "compute_utilization": quantity})

    for by, within in ((0.005, False), (0.02, True)):
        runs = tuple(with_share(run, 0.5 if run.way == "ddp" else 0.53, by) for run in FOUND.runs)
        noisy = replace(FOUND, runs=runs)
        paired = noisy.paired(WAYS[1], "compute_utilization")
        assert paired is not None
        assert paired.uncertainty == pytest.approx((0.03 - 2 * by, 0.03 + 2 * by))
        assert paired.within_noise is within
        assert ("within noise" in ways_tables.difference(noisy, paired)) is within
        (plain,) = [row for row in to_json(noisy)["differences"] if row["id"] == "compute_utilization"]  # type: ignore
        assert plain["within_noise"] is within
    assert FOUND.paired(WAYS[1], "heldout_loss").uncertainty is None  # type: ignore[union-attr]


def test_a_seed_that_one_way_lacks_is_in_no_difference() -> None:
    found = compared({("ddp", 0): 2.4, (WAYS[1], 0): 2.5, ("ddp", 1): 2.0})
    paired = found.paired(WAYS[1], "heldout_loss")
    assert paired is not None
    assert paired.differences == pytest.approx({0: 0.1})
    assert found.verdict == "unknown", "a run is missing"
    assert compared({("ddp", 0): 2.4, (WAYS[1], 0): None}).paired(WAYS[1], "heldout_loss") is None


def test_a_run_that_failed_decides_the_verdict() -> None:
    assert FOUND.verdict == "pass"
    assert compared({("ddp", 0): 2.4}, verdict="fail").verdict == "fail"


def test_page_and_json_have_the_same_facts() -> None:
    page, document = ways_page.html(FOUND), json.loads(json.dumps(to_json(FOUND), allow_nan=False))
    assert "+0.0310 (+0.0300 to +0.0320)" in page
    assert document["means"]["ddp"]["heldout_loss"] == pytest.approx((2.430 + 2.465 + 2.423) / 3)
    assert document["differences"][0]["by_seed"] == pytest.approx({"0": 0.030, "1": 0.032, "2": 0.031})
    assert [it["seed"] for it in document["runs"]] == [0, 0, 1, 1, 2, 2]
    assert document["path"]["ddp"]["propagation_s"] == pytest.approx(0.02)


def test_every_plot_of_a_loss_says_that_it_is_of_toy_scale() -> None:
    titles = [it.title for it in ways_figures(FOUND) if "loss" in it.title.lower()]
    assert len(titles) == 3
    assert all(TOY in title for title in titles)


def test_an_interrupted_comparison_says_what_is_missing() -> None:
    found = WaysCompared("metro-40km", WAYS, (0, 1), FOUND.runs[:1], ended="interrupted")
    assert ways_tables.headline(found) == "2 ways of training on metro-40km, 2 seeds each: 1 of 4 runs, interrupted"
    assert "interrupted" in ways_page.html(found)
    (missing,) = found.notes
    assert missing == (f"Missing: {WAYS[1]} of seed 0, ddp of seed 1, {WAYS[1]} of seed 1 (interrupted).")
    assert missing in ways_page.html(found)


def _trained(it: WayRun, steps: int, tokens: int) -> WayRun:
    training = SimpleNamespace(steps_planned=20, steps_committed=steps, tokens=tokens)
    report: Any = SimpleNamespace(declared=None, topology=None, training=training, noise=None)
    return replace(it, side=replace(it.side, report=report))


def test_a_run_that_was_interrupted_is_told_although_none_is_missing() -> None:
    runs = tuple(_trained(it, 7 if number == 5 else 20, 5120) for number, it in enumerate(FOUND.runs))
    found = replace(FOUND, runs=runs, ended="interrupted")
    assert ways_tables.headline(found).endswith("3 seeds each, interrupted")
    assert found.notes[0].startswith(f"Ended early: {WAYS[1]} of seed 2 after step 7 of 20;")


def test_a_way_that_cannot_begin_is_told_with_its_reason() -> None:
    found = WaysCompared("metro-40km", WAYS, (0,), FOUND.runs[:1], failed=((WAYS[1], 0, "rank 3 has no such library"),))
    (told,) = found.notes
    assert told == f"Failed before its first step: {WAYS[1]} of seed 0 (rank 3 has no such library)."
    assert found.verdict == "fail" and told in ways_page.html(found)
    assert to_json(found)["failed"] == [{"way": WAYS[1], "seed": 0, "reason": "rank 3 has no such library"}]


def test_ways_that_train_on_more_tokens_in_a_step_are_told() -> None:
    runs = tuple(_trained(it, 20, 5120 if it.way == "ddp" else 7680) for it in FOUND.runs)
    (told,) = replace(FOUND, runs=runs).notes
    assert told.startswith(f"Tokens differ: in a step, {WAYS[1]} 1.5 times as many as ddp.")
    same = tuple(_trained(it, 20, 5120) for it in FOUND.runs)
    assert replace(FOUND, runs=same).notes == ()


def test_every_page_says_that_compute_is_declared_and_where_the_cores_fell_short() -> None:
    assert FOUND.notes == ()

    def declared(measured_s: float) -> Any:
        steps = DeclaredSteps(
            "declared", 0.1, 0.0, 0.1, measured_s, 9, 0, 0.0, 0.0, None, ranks=4, cores=2, parameters=1_300_000
        )
        training = SimpleNamespace(steps_planned=20, steps_committed=20, tokens=5120)
        return SimpleNamespace(declared=steps, topology=None, training=training, noise=None)

    took = {"ddp": 0.1, WAYS[1]: 0.15}
    runs = tuple(replace(it, side=replace(it.side, report=declared(took[it.way]))) for it in FOUND.runs)
    found = replace(FOUND, runs=runs)
    first, bound = found.notes
    assert "Times of compute on this page are declared" in first
    assert bound.startswith(f"CPU-bound here: steps of {WAYS[1]} took longer")
    assert first in ways_page.html(found)
