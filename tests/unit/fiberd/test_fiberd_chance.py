"""What fiberd draws, against the standard library's distributions, and its heap against a sort. Needs a C compiler."""

from __future__ import annotations

import math
import random
import statistics
from pathlib import Path

import pytest
from builders.programs import FIBERD, compile_c, run

COUNT = 20_000
Z = 4.89  # two-sided, 1e-6


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [Path(__file__).with_name("fiberd_chance_harness.c"), FIBERD / "chance.c", FIBERD / "strays.c"]
    program = tmp_path_factory.mktemp("chance") / "harness"
    return compile_c(program, sources, "-g", sanitized=("-fsanitize=address,undefined",))


def ask(harness: Path, *arguments: object) -> str:
    return run(harness, *arguments, check=True).stdout


def reference(distribution: str, rng: random.Random) -> float:
    normal = max(-4.0, min(4.0, rng.gauss(0, 1)))
    pareto = min(4.0, (rng.paretovariate(3) - 1.5) / math.sqrt(0.75))
    return {
        "uniform": rng.uniform(-1, 1),
        "normal": normal,
        "pareto": pareto,
        "paretonormal": 0.25 * normal + 0.75 * pareto,
    }[distribution]


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto", "paretonormal"])
def test_distributions(harness: Path, distribution: str) -> None:
    drawn = sorted(float(line) for line in ask(harness, distribution, COUNT).split())
    rng = random.Random(1)
    expected = sorted(reference(distribution, rng) for _ in range(COUNT))
    spread = statistics.pstdev(expected)
    assert abs(statistics.fmean(drawn) - statistics.fmean(expected)) < Z * spread * math.sqrt(2 / COUNT)
    assert statistics.pstdev(drawn) == pytest.approx(spread, rel=0.05)
    # Sorted samples against each other: what a two-sample distance of Kolmogorov and Smirnov at 1e-6 allows.
    shift = math.ceil(2.69 * math.sqrt(2 / COUNT) * COUNT)
    assert all(expected[i - shift] <= drawn[i] <= expected[i + shift] for i in range(shift, COUNT - shift))


@pytest.mark.parametrize(("p", "r"), [(0.01, 0.25), (0.3, 0.9), (0.05, 1.0)])
def test_bursts(harness: Path, p: float, r: float) -> None:
    count = 200_000
    lost = ask(harness, "chain", p, r, 0, 1, count)
    mean, correlation = p / (p + r), 1 - p - r
    variance = count * mean * (1 - mean) * (1 + correlation) / (1 - correlation)
    assert abs(lost.count("1") - count * mean) < Z * math.sqrt(variance)
    runs = [len(run) for run in lost.split("0") if run]
    assert abs(statistics.fmean(runs) - 1 / r) <= Z * math.sqrt(1 - r) / r / math.sqrt(len(runs))


def test_a_chain_that_may_lose_or_pass_in_both_states(harness: Path) -> None:
    p, r, h, k, count = 0.5, 0.5, 0.9, 0.6, 100_000  # neighbours' states are independent
    lost = ask(harness, "chain", p, r, h, k, count).count("1")
    mean = 0.5 * (1 - h) + 0.5 * (1 - k)
    assert abs(lost - count * mean) < Z * math.sqrt(count * mean * (1 - mean))


def test_the_heap_sorts_by_due_then_by_arrival(harness: Path) -> None:
    pairs = [tuple(map(int, line.split())) for line in ask(harness, "heap", 3000).splitlines()]
    assert len(pairs) == 3000 and pairs == sorted(pairs)
