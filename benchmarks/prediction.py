"""Predictions: 100,000 accelerators against two, interleaved, and the 75 cells of a published table.

Sites that are alike are one process of the event model, so the number of accelerators should cost nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import testbed
from benchmarks.common import command, median, spread
from tests.unit.core.prediction import test_published_figures as published

SIZES = (2, 100_000)
MODEL: dict[str, Any] = {"step_s": 4.9, "parameters": 100e9, "layers": 108, "rate_bps": 10e9, "delay_s": 5e-3}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "diloco": {"every": 100},
    "streaming-diloco": {"every": 100, "fragments": 36, "overlap": 1},
}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(quick: bool) -> dict[str, Any]:
    repeats = 5 if quick else 50
    times: dict[str, dict[str, list[float]]] = {name: {str(size): [] for size in SIZES} for name in CASES}
    for _ in range(repeats):
        for name, own in CASES.items():
            for size in SIZES:
                one = {**MODEL, **own, "ranks_per_site": size // 2}
                times[name][str(size)].append(timed(lambda name=name, one=one: testbed.predict(name, **one)))
    table_s = []
    for _ in range(2 if quick else 5):
        published.table_4.cache_clear()
        table_s.append(timed(published.table_4))
    return {"times_s": times, "table_s": table_s}


def table(result: dict[str, Any]) -> str:
    small, large = map(str, SIZES)
    lines = ["| strategy | 2 accelerators, ms | 100,000, ms | ratio |", "|---|---|---|---|"]
    for name, times in result["times_s"].items():
        columns = (spread([1e3 * it for it in times[size]]) for size in (small, large))
        lines.append(f"| {name} | {' | '.join(columns)} | {median(times[large]) / median(times[small]):.2f} |")
    return "\n".join([*lines, "", f"The 75 cells of Table 4: {spread(result['table_s'])} s."])


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
