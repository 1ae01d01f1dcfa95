"""Sites of unequal size or speed: shares by tokens and inner steps by time, against references in one process.

And what the ranks tell of their means, judged by the checker: wrong shares are found, on one rank and on all alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import json_files, loopback_ranks, trainer_over_loopback
from builders.replica_jobs import Job, bits, distance, layout, twin_of
from builders.trainer_over_loopback import check_logs
from oracles import replica_reference
from testbed_agents.evidence import Evidence
from testbed_agents.groups import Groups
from testbed_agents.site_pace import InnerSteps
from torch import Tensor

from testbed.core.checkers.weighed_means import weighed_means
from testbed.core.records.check_record import Grouped
from testbed.core.training.twin import Twin

SITES = ("west", "west", "east", "north")
STEPS, RATE = 11, 0.05
REPLICAS = [[0, 1], [2], [3]]
HALVES = (("west", "east"), ("north",))


@dataclass(frozen=True)
class Case:
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)


SPEEDS = {"west": 0.4, "north": 0.8}
BY_TOKENS = {"every": 4, "weigh": "tokens"}
BY_BOTH = {**BY_TOKENS, "pace": "time"}
FRAGMENTS = {**BY_TOKENS, "fragments": 4, "overlap": 2}
CASES = {
    "averaged": Case("local-sgd", BY_TOKENS),
    "applied": Case("diloco", BY_BOTH, SPEEDS),
    "applied in the middle": Case("diloco", {**BY_BOTH, "aggregate_at": "east"}, SPEEDS),
    "equal shares": Case("diloco", {"every": 4, "pace": "time"}, SPEEDS),
    "each rank": Case("diloco", {**BY_BOTH, "replica": "rank"}, SPEEDS),
    "fragments": Case("streaming-diloco", FRAGMENTS),
    "fragments in the middle": Case("streaming-diloco", {**FRAGMENTS, "aggregate_at": "east"}),
    "coded": Case("streaming-diloco", {**BY_TOKENS, "fragments": 2, "bits": 4}),
    "sparse": Case("sparse-loco", {**BY_TOKENS, "top": 512}),
    "tiers": Case("multi-tier", {"every": 2, "every_regions": 4, "regions": HALVES, "weigh": "tokens"}),
}


class Weighed:
    """Keeps the records of weighted means of one rank."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> None:
        if kind == "weighed":
            self.lines.append({"kind": kind, "attempt": 1, "t": 0.0, **fields})


def _train(rank: int) -> dict[str, tuple[Tensor, list[dict[str, Any]]]]:
    groups, outer = Groups(rank, SITES), dict[str, tuple[Tensor, list[dict[str, Any]]]]()
    for name, case in CASES.items():
        weighed = Weighed()
        job = Job(groups, case.strategy, case.options, STEPS, RATE, speeds=case.speeds)
        groups.hooks.evidence = Evidence(weighed, 0, lambda job=job: job.context.step)  # type: ignore[arg-type,misc]
        outer[name] = job.run().result().outer, weighed.lines
    return outer


@pytest.fixture(scope="module")
def trained() -> list[dict[str, tuple[Any, list[dict[str, Any]]]]]:
    return loopback_ranks.run(len(SITES), _train)


def _in_time(step: int, speed: float, slowest: float) -> int:
    """How many inner steps fit into the time of ``step`` steps of the slowest site, in tenths."""
    return step * round(10 * speed) // round(10 * slowest)


def _reference(case: Case, replicas: list[list[int]]) -> Any:
    """local-sgd and diloco in one process. Tokens are counted one by one."""
    by = [replica_reference.Replica(ranks, RATE) for ranks in replicas]
    names = list(by[0].parameters)
    theta = by[0].get(names)
    velocity, tokens = torch.zeros_like(theta), [0] * len(by)
    rate, momentum = (1.0, 0.0) if case.strategy == "local-sgd" else (0.7, 0.5)
    speeds = [case.speeds.get(SITES[ranks[0]], 1.0) for ranks in replicas]
    for step in range(1, STEPS + 1):
        for index, replica in enumerate(by):
            done = [_in_time(it, speeds[index], min(speeds)) for it in (step - 1, step)]
            for inner in range(done[1] - done[0]):
                replica.step(step, inner)
                tokens[index] += len(replica.ranks)
        if step % 4 == 0 or step == STEPS:
            shares = tokens if case.options.get("weigh") == "tokens" else [1] * len(by)
            mean = replica_reference.mean_of([theta - it.get(names) for it in by], shares)
            velocity = momentum * velocity + mean
            theta = theta - rate * (mean + momentum * velocity)
            tokens = [0] * len(by)
            for it in by:
                it.put(names, theta)
    return theta


@pytest.mark.parametrize("name", ["averaged", "applied", "applied in the middle", "equal shares", "each rank"])
def test_a_mean_by_tokens_and_steps_by_time_are_those_of_a_reference(trained: Any, name: str) -> None:
    alone = name == "each rank"
    expected = _reference(CASES[name], [[0], [1], [2], [3]] if alone else REPLICAS)
    for rank in trained:
        assert distance(rank[name][0], expected) < 1e-5


def test_shares_and_inner_steps_change_what_is_learned(trained: Any) -> None:
    one, other = trained[0]["applied"][0], trained[0]["equal shares"][0]
    assert distance(one, other) > 1e-4
    assert distance(one, _reference(Case("diloco", CASES["applied"].options), REPLICAS)) > 1e-3


def test_fragments_by_tokens_are_those_of_a_reference(trained: Any) -> None:
    job: dict[str, Any] = {"every": 4, "rate": RATE, "tokens": (2, 1, 1)}
    overlap: dict[str, Any] = {"overlap": 1, "alpha": 0.5}
    _, outer = replica_reference.streaming(REPLICAS, STEPS, count=4, **job, **overlap | {"overlap": 2})
    coded: dict[str, Any] = {"count": 2, "quantize": replica_reference.e3m0}
    _, outer_of_codes = replica_reference.streaming(REPLICAS, STEPS, **job, **overlap, **coded)
    theta, _ = replica_reference.sparse(REPLICAS, STEPS, keep=512, **job)
    for name, expected, bound in (
        ("fragments", outer, 1e-5),
        ("fragments in the middle", outer, 1e-5),
        ("coded", outer_of_codes, 1e-3),
        ("sparse", theta, 1e-3),
    ):
        assert distance(trained[3][name][0], expected) < bound, name


def test_regions_by_tokens_are_those_of_a_reference(trained: Any) -> None:
    by = [replica_reference.Replica(ranks, RATE) for ranks in REPLICAS]
    names = list(by[0].parameters)
    top = by[0].get(names)
    upper = torch.zeros_like(top)
    regions, lower = [top, top], [torch.zeros_like(top)] * 2
    for step in range(1, STEPS + 1):
        for it in by:
            it.step(step)
        if step % 2 and step != STEPS:
            continue
        for region, (members, tokens) in enumerate((((0, 1), (2, 1)), ((2,), (1,)))):
            mean = replica_reference.mean_of([regions[region] - by[it].get(names) for it in members], tokens)
            lower[region] = 0.5 * lower[region] + mean
            regions[region] = regions[region] - 0.7 * (mean + 0.5 * lower[region])
        if step % 4 == 0 or step == STEPS:
            mean = replica_reference.mean_of([top - it for it in regions], (3, 1))
            upper = 0.5 * upper + mean
            top = top - 0.7 * (mean + 0.5 * upper)
            regions, lower = [top, top], [torch.zeros_like(top)] * 2
        for it, region in zip(by, (0, 0, 1), strict=True):
            it.put(names, regions[region])
    assert distance(trained[2]["tiers"][0], top) < 1e-5


def _twin(case: Case) -> Twin:
    return twin_of(case.strategy, case.options, layout(SITES, STEPS, speeds=case.speeds))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.options.get("weigh") == "tokens"])
def test_the_checker_finds_what_is_weighted_wrongly(trained: Any, name: str) -> None:
    twin = _twin(CASES[name])

    def checked(ranks: list[list[dict[str, Any]]]) -> Any:
        return weighed_means(Grouped.of(check_logs(ranks), twin.longest_gap), twin)

    ranks = [rank[name][1] for rank in trained]
    right = checked(ranks)
    assert right.looked_at and not right.findings

    # All ranks alike take equal shares: the sum is that of what they record, but not what the twin states.
    alike = [[{**line, "share": 1 / len(line["ranks"])} for line in lines] for lines in ranks]
    assert checked(alike).findings

    # One rank multiplied by another share than it records: the mean is another one.
    lines = [{**line, "own": _doubled(line["own"])} if len(line["ranks"]) > 1 else line for line in ranks[0]]
    assert any("of the mean is" in finding.text for finding in checked([lines, *ranks[1:]]).findings)


def _doubled(values: str) -> str:
    floats = torch.frombuffer(bytearray.fromhex(values), dtype=torch.float32)
    return bits(2 * floats).hex()


def test_a_job_with_inner_steps_and_evaluations_is_right(tmp_path: Path) -> None:
    """Site b is half as fast. What a rank evaluates is no exchange: its operations are not the strategy's."""
    compute = {"seconds": 0.02, "real": True, "speeds": {"b": 0.5}}
    options = {"every": 4, "pace": "time", "weigh": "tokens"}
    ended = trainer_over_loopback.train(tmp_path, "diloco", options, 10, compute=compute, evaluate_every=3)
    ended.check()
    assert "exchanges" in ended.holds
    for rank, (tokens, updates) in enumerate(((2, 20), (2, 20), (1, 10), (1, 10))):
        file = tmp_path / f"rank-{rank}.jsonl"
        (job,), steps = json_files.read_lines(file, "job"), json_files.read_lines(file, "step")
        assert [step["tokens"] for step in steps] == [tokens * job["tokens_per_step"]] * 10
        assert [step["declared_s"] for step in steps] == pytest.approx([0.04] * 10)
        assert job["compute"].get("speed", 1.0) == (0.5 if rank > 1 else 1.0)
        for step in steps:  # the parts of a step are all of it
            assert step["compute_s"] + step["exposed_s"] == pytest.approx(step["t_end"] - step["t_begin"])
        assert len(json_files.read_lines(file, "evaluation")) == 4
        checks = json_files.read_lines(file.with_suffix(".checks.jsonl"), "step")
        assert max(step["optimizer_steps"] for step in checks) == updates


@pytest.mark.parametrize("speeds", [{"west": 0.2, "east": 0.6}, {"west": 0.3}, {"east": 0.07, "north": 0.49}])
def test_inner_steps_fit_into_the_time_of_the_slowest_site(speeds: Mapping[str, float]) -> None:
    """Never more than fit, never one fewer; the slowest takes one; both sides count alike. 0.6 is three times 0.2."""
    groups: Any = SimpleNamespace(sites=SITES, site_names=tuple(dict.fromkeys(SITES)))
    of = InnerSteps(groups, speeds, True)
    twin = _twin(Case("diloco", {"every": 4, "pace": "time"}, dict(speeds)))
    hundredths = [round(100 * speeds.get(site, 1.0)) for site in SITES]
    for step in range(1, 200):
        for rank, speed in enumerate(hundredths):
            done = of.until(step, rank)
            assert done == twin.inner_steps(step, rank) == step * speed // min(hundredths)
            assert of.within(step, rank) >= 1
    assert math.isclose(sum(of.shares(REPLICAS, 5, 9)), 1.0)
