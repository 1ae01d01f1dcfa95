"""Laws that hold for every strategy: where time goes, monotony, bytes, and what may be simulated as one."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import pytest
from builders.predicted_jobs import job, plain
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction import predicted_job
from testbed.core.prediction.library_costs import GLOO
from testbed.core.prediction.network import Network
from testbed.core.prediction.predicted_job import Job
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.layout import gpt_tensors
from testbed.core.training.strategies_built import BUILT
from testbed.lab import api

GPT: dict[str, Any] = {"tensors": gpt_tensors(4), "tokens": 256}
STRATEGIES = {
    "ddp": "ddp:buckets=3,accumulate=2",
    "hierarchical": "hierarchical:buckets=3",
    "fsdp": "fsdp",
    "hsdp": "hsdp",
    "local-sgd": "local-sgd:every=7",
    "diloco": "diloco:every=9",
    "diloco at a site": "diloco:every=4,aggregate_at=s1",
    "diloco of ranks": "diloco:every=2,replica=rank",
    "streaming-diloco": "streaming-diloco:every=6,fragments=4,overlap=2",
    "streaming-diloco of few bits": "streaming-diloco:every=6,fragments=3,overlap=1,bits=4",
    "sparse-loco": "sparse-loco:every=3",
    "multi-tier": "multi-tier:every=2,every_regions=6",
    "torchft-diloco": "torchft-diloco:every=3",
    "async-diloco": "async-diloco:every=3",
    "decoupled": "decoupled:every=4,fragments=2,grace=1h",
    "tensor": "tensor",
    "tensor across": "tensor:across=true",
    "moe": "moe",
    "moe of a site": "moe:experts=site",
    "pipeline": "pipeline:stages=2",
}
every_strategy = table("words", STRATEGIES)


def fields(words: str) -> dict[str, Any]:
    return GPT if words.partition(":")[0] in ("tensor", "moe", "pipeline") else {"elements": 3 * 2**18}


def test_every_strategy_is_here() -> None:
    assert {it.partition(":")[0] for it in STRATEGIES.values()} == set(BUILT)


LIMITS = st.fixed_dictionaries(
    {
        "step_s": st.floats(0.01, 10), "rate_bps": st.floats(1e6, 1e12), "delay_s": st.floats(0, 0.5),
        "ranks": st.integers(1, 2),
    }
)  # fmt: skip
LIBRARIES = st.builds(plain, st.integers(1, 12), st.sampled_from([0.0, 1e-3]), st.sampled_from([None, 1]))


@every_strategy
@settings(max_examples=15)
@given(limits=LIMITS, library=LIBRARIES | st.just(GLOO), slow=st.sampled_from([1.0, 1.5]))
def test_a_step_is_compute_and_exposed_parts(words: str, limits: Any, library: Any, slow: float) -> None:
    found = job(words, library=library, slowdowns={1: slow}, **limits, **fields(words)).simulate()
    parts = asdict(found.parts)
    assert min(parts.values()) >= -1e-9 * found.step_s
    if not words.startswith("pipeline"):  # whose last stage ends its steps when it may, and the first one later
        assert found.compute_s + sum(parts.values()) == pytest.approx(found.step_s, rel=1e-6)


@table("words", {name: words for name, words in STRATEGIES.items() if name != "decoupled"})
@settings(max_examples=15)
@given(limits=LIMITS, library=LIBRARIES, longer=st.floats(1, 10), faster=st.floats(1, 10))
def test_distance_never_helps_and_rate_never_hurts(
    words: str, limits: Any, library: Any, longer: float, faster: float
) -> None:
    """With a library that does the same at any distance and rate, at sites that wait for updates."""

    def step_s(**changes: float) -> float:
        return job(words, library=library, **{**limits, **changes}, **fields(words)).simulate().step_s

    usual_s = step_s()
    assert step_s(delay_s=limits["delay_s"] * longer) >= usual_s * (1 - 1e-6)
    assert step_s(rate_bps=limits["rate_bps"] * faster) <= usual_s * (1 + 1e-6)


@every_strategy
@settings(max_examples=10)
@given(rate_bps=st.floats(1e7, 1e12), delay_s=st.floats(0, 0.01), ranks=st.integers(1, 2))
def test_lanes_carry_the_bytes_of_the_operations(words: str, rate_bps: float, delay_s: float, ranks: int) -> None:
    """What the twin counts for its operations in a steady cycle, in each direction of each fiber."""
    limits: dict[str, Any] = {"rate_bps": rate_bps, "delay_s": delay_s, "ranks": ranks, "step_s": 1e3}
    # A ring of three sites has directions that carry nothing.
    of = job(words, sites=2 if "pipeline" in words else 3, library=plain(), **limits, **fields(words))
    cycle = of.twin.cycle
    expected: dict[str, float] = defaultdict(float)
    for step in range(cycle + 1, 2 * cycle + 1):
        operations = [it for it in of.twin.operations(step) if it.what != "tokens" or it.kind != "send"]
        for (here, there), byte_count in site_bytes(operations, of.twin.layout.sites).items():
            expected[f"{here}>{there}"] += byte_count
    found = of.simulate()
    assert found.steady
    between = {lane: cycle * moved for lane, moved in found.lane_bytes.items() if lane in of.network.rates_bps}
    assert between == pytest.approx(expected)


def inside_bytes(of: Job) -> float:
    """Return what stays inside all sites in a mean step."""
    moved = of.simulate().lane_bytes
    return sum(moved[name] for name in moved if name not in of.network.rates_bps)


@every_strategy
def test_what_stays_inside_is_counted_at_each_site(words: str) -> None:
    """Also where a site stands for others, or a step for the steps after it."""
    of = job(words, ranks=2, rate_bps=1e12, step_s=10.0, **fields(words))
    cycle, sites, expected = of.twin.cycle, of.twin.layout.sites, 0.0
    for step in range(cycle + 1, 2 * cycle + 1):
        apart = site_bytes(of.twin.operations(step), [str(rank) for rank in range(len(sites))])
        expected += sum(moved for (here, there), moved in apart.items() if sites[int(here)] == sites[int(there)])
    assert cycle * inside_bytes(of) == pytest.approx(expected)


ALIKE = {name: words for name, words in STRATEGIES.items() if words.partition(":")[0] not in (
    "async-diloco", "decoupled", "pipeline", "multi-tier")}  # fmt: skip


@table("words", ALIKE)
@settings(max_examples=10)
@given(limits=LIMITS, sites=st.integers(2, 4), library=LIBRARIES | st.just(GLOO))
def test_equal_sites_may_be_simulated_as_one(words: str, limits: Any, sites: int, library: Any) -> None:
    together = job(words, sites=sites, library=library, **limits, **fields(words) | {"heads": 12})
    # A rate inside the sites that hardly matters makes each of them one of its own.
    fabrics = {name: 1e18 * (1 + number) for number, name in enumerate(together.network.sites)}
    network = Network(**{**vars_of(together.network), "fabric_bps": fabrics})
    apart = together.but(network=network, moved={})
    assert len(together.sites_by_process) == 1 and len(apart.sites_by_process) == sites
    one, other = together.simulate(), apart.simulate()
    assert one.step_s == pytest.approx(other.step_s, rel=1e-6)
    assert sum(one.lane_bytes.values()) == pytest.approx(sum(other.lane_bytes.values()))


def vars_of(network: Network) -> dict[str, Any]:
    return {name: getattr(network, name) for name in network.__dataclass_fields__}


@pytest.mark.parametrize("most", [2, 4, 8])
@table(
    "words",
    {
        "one ring": "ddp",
        "two levels": "hierarchical",
        "slices": "diloco:every=4",
        "slices of fragments": "streaming-diloco:every=6",
        "sharded": "fsdp",
        "regions": "multi-tier:every=2,every_regions=4",
        "parcels": "async-diloco:every=3",
        "the whole model of each rank": "torchft-diloco:every=4",
        "a pipeline of each rank": "pipeline",
    },
)
def test_few_ranks_stand_for_many(words: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen ranks of each of two sites, one by one and by fewer."""
    sizes: dict[str, Any] = {"compute": "80ms", "model": "1B", "layers": 16, "ranks_per_site": 16, "rate_bps": 1e11}
    every = api.predict(words, **sizes)
    monkeypatch.setattr(predicted_job, "MOST_RANKS", most)
    few = api.predict(words, **sizes)
    assert len(few.job.twin.layout.sites) == 2 * most and few.job.ranks == every.job.ranks == 32
    assert few.outcome.step_s == pytest.approx(every.outcome.step_s, rel=5e-3)  # padding
    assert few.bits_per_step == pytest.approx(every.bits_per_step, rel=5e-3)
    assert sum(few.outcome.lane_bytes.values()) == pytest.approx(sum(every.outcome.lane_bytes.values()), rel=5e-3)
