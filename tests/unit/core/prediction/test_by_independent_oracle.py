"""`testbed.predict` against an oracle that was written from docs/prediction.md and shares no code with it.

Each strategy has 20 seeded cases. They differ if a rule of the oracle is changed, so they depend on each rule.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from oracles.predicted_step import Fiber, Job, Lane, Rules, Step, predict

import testbed
from testbed.core.topology.resolve import load_text

CASES = 20
RELATIVE = 1e-6
PAYLOAD_SHARE = 1448 / 1538
SITES = ("alba", "brava", "costa", "delta")
EQUAL_SITES = ("hsdp", "torchft-diloco", "pipeline", "tensor", "moe", "decoupled")
"""Strategies that pair each rank with its like, and decoupled: sites of unequal size have no steady state there."""
UNEQUAL_SPEEDS = (
    "ddp",
    "hierarchical",
    "local-sgd",
    "diloco",
    "sparse-loco",
    "multi-tier",
    "async-diloco",
    "decoupled",
)
HEADS = (12, 48)
"""Of the model of tensor and moe: a multiple of 2, 3 and 4 ranks."""


def sometimes(rng: random.Random, share: float, **options: Any) -> dict[str, Any]:
    return options if rng.random() < share else {}


def gradient_options(rng: random.Random, sites: int) -> dict[str, Any]:
    return {
        **sometimes(rng, 0.4, accumulate=rng.randint(2, 3)),
        **sometimes(rng, 0.4, buckets=rng.randint(1, 12)),
    }


def replica_options(rng: random.Random, sites: int) -> dict[str, Any]:
    options: dict[str, Any] = {"every": rng.randint(1, 6)}
    kind = rng.random()
    if kind < 0.25:
        return {**options, "replica": "rank"}
    return {**options, "aggregate_at": rng.randrange(sites)} if kind < 0.5 else options


def sparse_options(rng: random.Random, sites: int) -> dict[str, Any]:
    return {
        "every": rng.randint(1, 6),
        **sometimes(rng, 0.5, top=rng.choice([16, 100]), bits=rng.choice([2, 32])),
        **sometimes(rng, 0.25, replica="rank"),
    }


def streaming_options(rng: random.Random, sites: int) -> dict[str, Any]:
    every = rng.randint(2, 8)
    options = {"every": every, "fragments": rng.randint(1, 4), "overlap": rng.randrange(every)}
    if rng.random() < 0.2:
        return {**options, "aggregate_at": rng.randrange(sites)}
    return {**options, "bits": rng.choice([32, 32, 16, 8, 4])}


def tier_options(rng: random.Random, sites: int) -> dict[str, Any]:
    every = rng.randint(1, 4)
    options = {"every": every, "every_regions": every * rng.randint(1, 3)}
    first = rng.randrange(1, sites)
    return {**options, **sometimes(rng, 0.6, regions=[[*range(first)], [*range(first, sites)]])}


def async_options(rng: random.Random, sites: int) -> dict[str, Any]:
    options = {"every": rng.randint(1, 6), "home": rng.randrange(sites)}
    return {**options, **sometimes(rng, 0.6, staleness=rng.randint(sites - 1, 4 * sites))}


def decoupled_options(rng: random.Random, sites: int) -> dict[str, Any]:
    return {
        "every": rng.randint(2, 4),
        "fragments": rng.randint(1, 4),
        "bits": rng.choice([32, 16, 8, 4]),
        "home": rng.randrange(sites),
        **sometimes(rng, 0.5, quorum=rng.randint(1, sites), grace=rng.choice([0.0, 0.02, 0.2])),
    }


def pipeline_options(rng: random.Random, sites: int) -> dict[str, Any]:
    windows = 4 * sites
    batches = rng.choice([count for count in (2, 3, 4, 6, 8) if windows % count == 0])
    return {
        "stages": sites,
        "micro_batches": batches,
        **rng.choice([{"schedule": "gpipe"}, {}, {"in_flight": rng.randint(1, batches)}]),
    }


def moe_options(rng: random.Random, sites: int) -> dict[str, Any]:
    experts = rng.choice(["all", "site"])
    return {
        "experts": experts,
        "top_k": 1 if experts == "site" else rng.randint(1, 2),
        **sometimes(rng, 0.3, capacity=rng.choice([1.25, 2.0])),
    }


OPTIONS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {
    "ddp": lambda rng, sites: {**gradient_options(rng, sites), **sometimes(rng, 0.3, bits=16)},
    "hierarchical": lambda rng, sites: {
        **gradient_options(rng, sites), **sometimes(rng, 0.3, aggregate_at=rng.randrange(sites)),
    },
    "fsdp": lambda rng, sites: {},
    "hsdp": lambda rng, sites: {},
    "local-sgd": replica_options,
    "diloco": replica_options,
    "streaming-diloco": streaming_options,
    "sparse-loco": sparse_options,
    "torchft-diloco": lambda rng, sites: {"every": rng.randint(1, 6)},
    "multi-tier": tier_options,
    "async-diloco": async_options,
    "decoupled": decoupled_options,
    "pipeline": pipeline_options,
    "tensor": lambda rng, sites: sometimes(rng, 0.5, across=True),
    "moe": moe_options,
}  # fmt: skip


def draw_fibers(rng: random.Random, sites: int, slowest_bps: float) -> dict[Lane, Fiber]:
    """Draw a mesh, a ring or a line; no two routes are equally long."""
    pairs = list(itertools.combinations(range(sites), 2))
    ring = [(site, site + 1) for site in range(sites - 1)]
    chosen = rng.choice([pairs, ring, sorted({*ring, (0, sites - 1)})])
    lengths_km = [rng.randrange(1, 1500) + 2**number / 1000 for number in range(len(chosen))]
    return {
        pair: Fiber(round(slowest_bps * 10 ** rng.uniform(0, 2.5) / 1e3) * 1e3 * PAYLOAD_SHARE, km * 5e-6)
        for pair, km in zip(chosen, lengths_km, strict=True)
    }


def draw(strategy: str, rng: random.Random) -> Job:
    sites = rng.randint(2, 4)
    ranks = [rng.randint(1, 4) for _ in range(sites)]
    if strategy in EQUAL_SITES:
        ranks = ranks[:1] * sites
    layers = rng.randint(1, 6) * (sites if strategy == "pipeline" else 4)
    parameters = round(10 ** rng.uniform(8, 10), -6)
    if strategy in ("tensor", "moe"):
        parameters = round(12 * layers * (128 * rng.choice(HEADS)) ** 2 * rng.uniform(0.98, 1.02), -6)
    options = OPTIONS[strategy](rng, sites)
    speeds: list[float] = []
    drifts = strategy == "decoupled" and ranks[0] > 1
    if strategy in UNEQUAL_SPEEDS and not drifts and rng.random() < 0.4:
        speeds = [1.0, *(rng.choice([1.0, 0.8, 0.5]) for _ in range(sites - 1))]
        rng.shuffle(speeds)
        if 0.8 not in speeds and 0.5 in speeds and strategy not in ("ddp", "hierarchical", "decoupled"):
            options |= sometimes(rng, 0.5, pace="time")
    return Job(
        strategy,
        options,
        ranks,
        draw_fibers(rng, sites, 1e11 if strategy == "decoupled" else rng.choice([1e9, 1e11])),
        round(10 ** rng.uniform(1, 3)) / 1000,
        parameters,
        layers,
        rng.choice([100.0, 500.0, 1000.0]),
        speeds,
    )


def with_names(options: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return options with the names of sites for their numbers."""
    sites: dict[str, Any] = {key: names[site] for key, site in options.items() if key in ("aggregate_at", "home")}
    if "regions" in options:
        sites["regions"] = [[names[site] for site in region] for region in options["regions"]]
    return {**options, **sites}


def predicted(job: Job) -> Step:
    """Return what the product predicts of a topology with these sites and fibers."""
    names = SITES[: len(job.ranks)]
    lines = [f"scale: {job.scale:g}", "sites:"]
    lines += [f"  {name}: {{nodes: {ranks}}}" for name, ranks in zip(names, job.ranks, strict=True)]
    lines.append("links:")
    for (first, second), fiber in job.fibers.items():
        ends = f"between: [{names[first]}, {names[second]}], km: {fiber.delay_s / 5e-6:.3f}"
        line_rate = f"rate: {round(fiber.rate_bps / PAYLOAD_SHARE / 1e3)}k"
        lines.append(f"  {names[first]}-{names[second]}: {{{ends}, {line_rate}, optics: SLTE}}")
    compute: object = f"{job.compute_s * 1000:g}ms"
    if len(set(job.speeds)) > 1:
        compute = {"at_least": compute, "speeds": dict(zip(names, job.speeds, strict=True))}
    prediction = testbed.predict(
        job.strategy, load_text("\n".join(lines).encode(), "oracle.yaml"), compute=compute, model=job.parameters,
        layers=job.layers, **with_names(job.options, names),
    ).to_dict()  # fmt: skip
    bits = {}
    for direction, value in prediction["bits_by_fiber"].items():
        link, receiver = direction.split(":")
        (sender,) = {*link.split("-")} - {receiver}
        bits[names.index(sender), names.index(receiver)] = value
    return Step(prediction["step_s"], bits, prediction["steady"])


@functools.cache
def cases(strategy: str) -> list[tuple[Job, Step]]:
    """Return 20 jobs that reach a steady state, with their predictions.

    Others are left out: their figures are means of a part of the job. The oracle agrees on which these are.
    """
    steady: list[tuple[Job, Step]] = []
    numbers = itertools.count()
    while len(steady) < CASES:
        job = draw(strategy, random.Random(f"{strategy} {next(numbers)}"))
        step = predicted(job)
        assert step.steady == predict(job).steady, job
        if step.steady:
            steady.append((job, step))
    return steady


def difference(step: Step, reference: Step) -> float:
    """Return the largest relative difference of step time and of the bits on any lane."""
    lanes = {*step.bits, *reference.bits}
    most_bits = max(reference.bits.values())
    bits = [abs(step.bits.get(lane, 0.0) - reference.bits.get(lane, 0.0)) / most_bits for lane in lanes]
    return max(abs(step.step_s - reference.step_s) / reference.step_s, *bits)


@pytest.mark.parametrize("strategy", OPTIONS)
def test_agrees_with_the_oracle(strategy: str) -> None:
    differences = {number: difference(step, predict(job)) for number, (job, step) in enumerate(cases(strategy))}
    assert len(differences) == CASES
    worst = max(differences, key=lambda number: differences[number])
    assert differences[worst] < RELATIVE, cases(strategy)[worst]


@pytest.mark.parametrize("strategy", OPTIONS)
def test_without_a_topology_each_two_sites_have_a_fiber(strategy: str) -> None:
    job = draw(strategy, random.Random(f"{strategy}, no topology"))
    sites, ranks, rate_bps, delay_s = len(job.ranks), job.ranks[0], 2e11, 3e-3
    fibers = {pair: Fiber(rate_bps, delay_s) for pair in itertools.combinations(range(sites), 2)}
    names = [f"site-{number + 1}" for number in range(sites)]
    options = {name: value for name, value in job.options.items() if name != "pace"}
    prediction = testbed.predict(
        strategy, sites=sites, ranks_per_site=ranks, rate_bps=rate_bps, delay_s=delay_s, scale=job.scale,
        compute=f"{job.compute_s * 1000:g}ms", model=job.parameters, layers=job.layers, **with_names(options, names),
    ).to_dict()  # fmt: skip
    step = predict(replace(job, options=options, ranks=[ranks] * sites, fibers=fibers, speeds=()))
    assert prediction["step_s"] == pytest.approx(step.step_s, rel=RELATIVE)
    bits = {f"{names[first]}>{names[second]}": value for (first, second), value in step.bits.items()}
    assert prediction["bits_by_fiber"] == pytest.approx(bits, rel=RELATIVE)


def test_a_slower_site_of_decoupled_pushes_less_often() -> None:
    """By hand: at 0.8 of the speed 0.8 pushes in H steps of the faster site, and a merge takes one of each site."""
    fibers = {(0, 1): Fiber(1e11 * PAYLOAD_SHARE, 1e-3)}
    step = predicted(Job("decoupled", {"every": 4}, [1, 1], fibers, 0.5, 1e8, 4, 1000.0, [1.0, 0.8]))
    assert step.steady
    assert step.bits == pytest.approx(dict.fromkeys([(0, 1), (1, 0)], 0.8 * 32 * 1e8 / 4))


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("decoupled", {"every": 154, "fragments": 4}),
        ("streaming-diloco", {"every": 100, "fragments": 16, "overlap": 1, "bits": 4}),
    ],
)
def test_cycles_of_many_steps(strategy: str, options: dict[str, Any]) -> None:
    """Sites of decoupled do not look for merges in each of them."""
    job = Job(strategy, options, [2, 2], {(0, 1): Fiber(1e11 * PAYLOAD_SHARE, 4e-3)}, 0.08, 1e9, 24, 1000.0)
    assert difference(predicted(job), predict(job)) < RELATIVE


RINGS = (
    "ddp",
    "hierarchical",
    "fsdp",
    "hsdp",
    "local-sgd",
    "diloco",
    "streaming-diloco",
    "torchft-diloco",
    "multi-tier",
)
GATHERS = ("fsdp", "streaming-diloco", "sparse-loco")
ALONE = ("local-sgd", "diloco", "sparse-loco", "streaming-diloco", "torchft-diloco", "multi-tier")
MUTATIONS: dict[str, tuple[Rules, tuple[str, ...]]] = {
    "byte: each rank sends the whole all_reduce once": (
        Rules(reduced_share=lambda ranks: 1.0), (*RINGS, "tensor", "moe"),
    ),
    "byte: each rank sends the whole all_gather": (Rules(gathered_share=lambda ranks: 1.0), GATHERS),
    "byte: codes have no scales": (Rules(scale_bytes=0), ("streaming-diloco", "sparse-loco", "decoupled")),
    "byte: activations are as wide as two models": (Rules(token_values=2), ("pipeline", "tensor", "moe")),
    "gate: an exchange starts with the first site": (
        Rules(starts_with_last_site=False), ("ddp", "hierarchical", "local-sgd", "diloco", "sparse-loco", "multi-tier"),
    ),
    "gate: stages do not wait for the stage before": (Rules(stages_follow=False), ("hierarchical",)),
    "gate: fragments land a step later": (Rules(landing_delay=1), ("streaming-diloco",)),
    "gate: exchanges of the outer loop do not block": (Rules(blocks=False), ALONE),
    "gate: a site waits for its own answers alone": (Rules(waits_for_all_answers=False), ("async-diloco",)),
    "gate: one more push may be unanswered": (Rules(unanswered_more=1), ("async-diloco",)),
    "gate: a site withholds the second unmerged push": (Rules(unmerged_pushes=1), ("decoupled",)),
    "gate: a merge waits for all sites": (Rules(merges_at_quorum=False), ("decoupled",)),
    "gate: one more micro-batch is in flight": (Rules(in_flight_more=1), ("pipeline",)),
    "slot: one collective of a group at once": (Rules(collective_slots=1), ("ddp", "hierarchical", *ALONE)),
    "slot: three collectives of a group at once": (
        Rules(collective_slots=3), ("ddp", "hierarchical", "diloco", "multi-tier"),
    ),
    "slot: two stages inside a site at once": (Rules(site_slots=2), ("hierarchical",)),
    "slot: messages need slots": (Rules(messages_take_slots=True), ("hierarchical", "async-diloco")),
    "slot: collectives never share a lane": (Rules(interleaves=False), ("ddp", "hierarchical")),
    "direction: an all_reduce goes to the rank after": (Rules(ring_turn=1), (*RINGS, "tensor", "moe")),
    "direction: an all_gather goes to the rank before": (Rules(gather_turn=-1), GATHERS),
    "direction: stages get back what they send": (Rules(backward_turn=1), ("pipeline",)),
    "direction: the home site gets answers and merges": (Rules(merges_return=False), ("async-diloco", "decoupled")),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "strategy"), [(name, strategy) for name, (_, strategies) in MUTATIONS.items() for strategy in strategies]
)
def test_fails_with_a_changed_rule(name: str, strategy: str) -> None:
    rules = MUTATIONS[name][0]
    assert any(difference(predict(job, rules), step) > RELATIVE for job, step in cases(strategy))


def test_every_class_of_rules_is_changed_twice_at_least() -> None:
    kinds = [name.split(":")[0] for name in MUTATIONS]
    assert all(kinds.count(kind) >= 2 for kind in ("byte", "gate", "slot", "direction"))
    assert {strategy for _, strategies in MUTATIONS.values() for strategy in strategies} == {*OPTIONS}
