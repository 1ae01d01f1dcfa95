"""Predictions: 100,000 accelerators against two for each strategy, interleaved; the command; a published table.

Ranks of a site that do the same are represented by 16 of them, so the number of accelerators should cost nothing.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import testbed
from benchmarks.common import command, median, spread
from testbed.core.training.strategies_built import BUILT

SIZES: Final = (2, 100_000)
MODEL: Final[dict[str, Any]] = {"compute": "4.9s", "model": "87B", "layers": 108, "rate_bps": 10e9, "delay_s": 5e-3}
"""Of a GPT with 64 heads, which tensor parallelism divides among 16 ranks."""
WORDS: Final = ("-m", "testbed", "predict", "--strategy", "diloco:every=100", "--rate", "5G", "--delay", "5ms")
MODELS: Final = ((0.1, "1B", 24), (0.8, "10B", 48), (4.9, "100B", 108))
WAYS: Final = (
    "ddp",
    "diloco:every=100",
    "streaming-diloco:every=100,fragments=16,overlap=0",
    "streaming-diloco:every=100,fragments=16,overlap=1",
    "streaming-diloco:every=100,fragments=16,overlap=5",
)
TARGETS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
MOST_S: Final = {"prediction": 0.050, "command": 1.5, "table": 2.0}


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def published_table() -> None:
    """Look for the least rate of 75 cells: three models, five ways, five targets of compute utilization."""
    for seconds, model, layers in MODELS:
        for way in WAYS:
            for target in TARGETS:
                testbed.predict(
                    way, compute=f"{seconds}s", model=model, layers=layers, delay_s=0.0, target=target,
                    as_published=True,
                )  # fmt: skip


def measure(quick: bool) -> dict[str, Any]:
    repeats = 3 if quick else 20
    times: dict[str, dict[str, list[float]]] = {name: {str(size): [] for size in SIZES} for name in BUILT}
    for _ in range(repeats):
        for name in BUILT:
            for size in SIZES:
                job = {**MODEL, "ranks_per_site": size // 2}
                times[name][str(size)].append(timed(lambda name=name, job=job: testbed.predict(name, **job)))
    command_s = [
        timed(lambda: subprocess.run([sys.executable, *WORDS], check=True, capture_output=True))
        for _ in range(2 if quick else 5)
    ]
    table_s = [timed(published_table) for _ in range(1 if quick else 5)]
    return {"times_s": times, "command_s": command_s, "table_s": table_s}


def table(result: dict[str, Any]) -> str:
    small, large = map(str, SIZES)
    lines = ["| strategy | 2 accelerators, ms | 100,000, ms | ratio | at most 50 ms |", "|---|---|---|---|---|"]
    for name, times in result["times_s"].items():
        columns = (spread([1e3 * it for it in times[size]]) for size in (small, large))
        within = "yes" if median(times[large]) <= MOST_S["prediction"] else "**no**"
        ratio = median(times[large]) / median(times[small])
        lines.append(f"| {name} | {' | '.join(columns)} | {ratio:.2f} | {within} |")
    slow = [name for name in ("command", "table") if median(result[f"{name}_s"]) > MOST_S[name]]
    return "\n".join(
        [
            *lines,
            "",
            f"The command: {spread(result['command_s'])} s. The 75 cells of Table 4: {spread(result['table_s'])} s.",
            *(f"**The {name} takes more than {MOST_S[name]:g} s.**" for name in slow),
        ]
    )


if __name__ == "__main__":
    sys.exit(command(__doc__, measure, table))
