"""Figures that others published, from ``published.yaml``: every cell, none left out."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders.predicted_jobs import plain

from testbed.core.prediction.as_published import Published, simulate_published
from testbed.core.prediction.failure_costs import (
    YEAR_S,
    daly_interval_s,
    failure_rate_hz,
    time_per_work,
    young_interval_s,
)
from testbed.core.prediction.required_rate import least_of
from testbed.lab import api

PUBLISHED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())
TABLE_4 = PUBLISHED["streaming_diloco_table_4"]
GRID_GBPS = [round(10 ** (-1 + 4 * i / 49), 2) for i in range(50)]
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "data-parallel": ("ddp", {}),
    "diloco": ("diloco", {"every": 100}),
    "streaming": ("streaming-diloco", {"every": 100, "overlap": 0}),
    "streaming-overlap": ("streaming-diloco", {"every": 100, "overlap": 1}),
    "streaming-overlap-fp4": ("streaming-diloco", {"every": 100, "overlap": 1, "bits": 4}),
}


def published_job(model: str, row: str, gbps: float) -> Published:
    of, (strategy, options) = TABLE_4["models"][model], ROWS[row]
    own: dict[str, Any] = {} if strategy != "streaming-diloco" else {"fragments": of["layers"] // 3}
    return Published(of["step_s"], of["parameters"], of["layers"], gbps * 1e9, **options, **own)


PAGE = Path(__file__).parents[4] / "docs" / "prediction.md"
BEGIN, END = "<!-- table 4: begin -->\n", "<!-- table 4: end -->\n"


@functools.cache
def utilization(model: str, row: str, gbps: float) -> float:
    return simulate_published(published_job(model, row, gbps)).utilization


def least_gbps(model: str, row: str, target: float) -> float | None:
    return least_of(GRID_GBPS, lambda gbps: utilization(model, row, gbps) >= target)


@functools.cache
def table_4() -> list[tuple[str, str, float, float, float]]:
    """Return model, row, utilization, the published and the predicted least rate of each cell, in Gbit/s."""
    cells = []
    for model, rows in TABLE_4["rows"].items():
        for row, published in rows.items():
            for target, cell in zip(TABLE_4["utilization"], published, strict=True):
                least = least_gbps(model, row, target)
                assert least is not None, (model, row, target)
                cells.append((model, row, target, cell, least))
    return cells


def test_every_cell_of_table_4_is_within_one_step_of_its_grid() -> None:
    cells = table_4()
    assert len(cells) == 75
    steps = []
    for model, row, target, published, predicted in cells:
        nearest = min(range(50), key=lambda i: abs(round(GRID_GBPS[i], 1) - published))
        steps.append(abs(GRID_GBPS.index(predicted) - nearest))
        assert steps[-1] <= 1, (model, row, target, published, predicted)
    assert sum(round(it[4], 1) == it[3] for it in cells) == 68


def test_the_page_shows_every_cell() -> None:
    """docs/prediction.md, published / predicted; UPDATE_GOLDEN=1 writes the table anew."""
    lines = ["", "| model | method | 50 % | 80 % | 90 % | 95 % | 99 % |", "|---|---|---|---|---|---|---|"]
    cells = table_4()
    for first in range(0, len(cells), 5):
        row = cells[first : first + 5]
        shown = (f"{it[3]} / {it[4]:.1f}" if round(it[4], 1) == it[3] else f"**{it[3]} / {it[4]:.1f}**" for it in row)
        lines.append(f"| {row[0][0]} | {row[0][1]} | {' | '.join(shown)} |")
    table = "\n".join(lines) + "\n\n"
    page = PAGE.read_text()
    before, found, after = page.partition(BEGIN)
    _, _, after = after.partition(END)
    assert found
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(before + BEGIN + table + END + after)
    assert BEGIN + table + END in PAGE.read_text()


@pytest.mark.parametrize("row", ROWS)
def test_a_prediction_as_published_is_of_the_words_of_a_strategy(row: str) -> None:
    of, (strategy, options) = TABLE_4["models"]["1B"], ROWS[row]
    own: dict[str, Any] = {"fragments": of["layers"] // 3} if strategy == "streaming-diloco" else {}
    found = api.predict(
        strategy, model="1B", compute="100ms", layers=of["layers"], rate_bps=5e9, delay_s=0, as_published=True,
        **options, **own,
    )  # fmt: skip
    assert found.utilization == pytest.approx(utilization("1B", row, 5.0), rel=1e-9)


def test_streaming_needs_less_traffic_and_a_lower_peak_than_the_paper_compares_with() -> None:
    """16 bits of data-parallel training against 4, whose blocks have scales; agents send DiLoCo's 32 bits."""
    other = PUBLISHED["streaming_diloco_other"]
    sizes: dict[str, Any] = {"model": "1B", "layers": 24, "compute": "100ms"}
    ddp = api.predict("ddp:bits=16", **sizes)
    diloco = api.predict("diloco:every=100", **sizes)
    streaming = api.predict("streaming-diloco:every=100,fragments=8", **sizes)
    fp4 = api.predict("streaming-diloco:every=100,fragments=8,bits=4", **sizes)
    assert ddp.bits_per_step / fp4.bits_per_step == pytest.approx(other["traffic_against_data_parallel"], rel=0.04)
    assert diloco.peak_bps / streaming.peak_bps == pytest.approx(other["peak_rate_against_diloco"])


def exchanged(strategy: str, rate_bps: float, **sizes: Any) -> Any:
    """Return the prediction for a network without delay and a library without software."""
    return api.predict(strategy, rate_bps=rate_bps, delay_s=0, library=plain(0, 0), **sizes)


@pytest.mark.parametrize("where", ["usa", "usa_europe", "global"])
def test_intellect_1_within_three_tenths_of_a_percent(where: str) -> None:
    """The rate is what an exchange of all values took; agents send 32 bits of each, INTELLECT-1 8."""
    of = PUBLISHED["intellect_1"]
    found = exchanged(
        "diloco:every=100", 10e9 * 32 / of["exchange_s"][where], model="10B", layers=32,
        compute=f"{of['compute_per_exchange_s'] / 100}s",
    )  # fmt: skip
    assert found.utilization == pytest.approx(of["compute_utilization"][where], abs=0.003)


def test_opendiloco_within_three_tenths_of_a_percent() -> None:
    share = PUBLISHED["opendiloco"]["exchange_share_of_time"]
    exchange_s = 100.0 * share / (1 - share)  # after 100 s of compute
    found = exchanged("diloco:every=100", 32e9 / exchange_s, model="1B", compute="1s")
    assert found.utilization == pytest.approx(0.931, abs=0.003)


@pytest.mark.parametrize("measured", PUBLISHED["diloco_measured"]["seconds_of_a_warm_exchange"], ids=str)
def test_warm_exchanges_of_four_gpus_on_a_shaped_network(measured: dict[str, float]) -> None:
    of = PUBLISHED["diloco_measured"]
    found = exchanged(
        f"diloco:every={measured['H']}", measured["bps"], model="30846720", layers=12, sites=4,
        compute=f"{1e3 * of['compute_step_s']}ms",
    )  # fmt: skip
    exchange_s = found.exposed.total_s * measured["H"]
    assert exchange_s == pytest.approx(measured["s"], rel=0.02 if measured["bps"] < 2e9 else 0.10)


def test_interruptions_of_llama_3() -> None:
    of = PUBLISHED["llama_3_table_5"]
    assert sum(of["unexpected_interruptions"].values()) == of["total_as_printed"] == 419
    mtbf_s = 54 * 86_400 / 419
    assert mtbf_s / 3600 == pytest.approx(3.09, abs=0.005)
    rank_mtbf_s = mtbf_s * 16_384
    assert 1 / failure_rate_hz(ranks=16_384, mtbf_rank_s=rank_mtbf_s) == pytest.approx(mtbf_s)
    assert rank_mtbf_s / YEAR_S == pytest.approx(5.78, abs=0.01)
    best = young_interval_s(30.0, mtbf_s)
    assert 1 / time_per_work(30.0, best, 300.0, mtbf_s) > 0.9  # as they report, for half a minute and five minutes
    assert round(148 / 419, 3) == 0.353  # printed as 30.1 %


@pytest.mark.parametrize("checkpoint_s", [10, 30, 120, 600])
def test_the_page_shows_goodput_by_checkpoint_and_restart(checkpoint_s: int) -> None:
    mtbf_s = 54 * 86_400 / 419
    best_s = daly_interval_s(checkpoint_s, mtbf_s)
    cells = (f"{100 / time_per_work(checkpoint_s, best_s, 60 * it, mtbf_s):.1f} %" for it in (1, 5, 15, 30))
    assert f"| {checkpoint_s} s | {best_s / 60:.1f} min | {' | '.join(cells)} |" in PAGE.read_text()


@pytest.mark.parametrize("model", TABLE_4["models"])
def test_no_cell_below_the_information_bound(model: str) -> None:
    """arXiv:2502.12996, Table 5 has 0.1 to 0.4 Gbit/s for one outer step of overlap and H = 100: impossible."""
    of = TABLE_4["models"][model]
    for target in TABLE_4["utilization"]:
        bound_bps = target * of["parameters"] * 16 / (100 * of["step_s"])
        found = exchanged(
            "streaming-diloco:every=100,fragments=12,overlap=99", 2 * bound_bps * 0.999, model=str(of["parameters"]),
            layers=of["layers"], compute=f"{of['step_s']}s",
        )  # fmt: skip
        # Of 32 bits, at twice the rate. 99 steps of overlap hide a lane that hardly falls behind for many cycles.
        assert found.utilization < target + 1e-4 or not found.outcome.steady
        assert bound_bps / 1e9 > 0.4, (model, target)


def test_500_times_and_16_times_is_8000() -> None:
    """An exchange each 500 steps, of an eighth of the bits but for the scales of blocks; agents have no single bit."""
    sizes: dict[str, Any] = {"model": "1B", "layers": 24, "compute": "1s"}
    ddp, rare = api.predict("ddp", **sizes), api.predict("streaming-diloco:every=500,bits=4", **sizes)
    assert ddp.bits_per_step / rare.bits_per_step == pytest.approx(500 * 8, rel=0.04)
