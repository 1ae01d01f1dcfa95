"""Sites of unequal size or speed: shares by tokens and inner steps by time, against references in one process.

And what the ranks tell of their means, judged by the checker: wrong shares are found, on one rank and on all alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from builders import loopback_ranks, replica_jobs, trainer_over_loopback  # noqa: E402
from oracles import replica_reference  # noqa: E402
from testbed_agents import evidence, strategies  # noqa: E402
from testbed_agents.evaluation import Plan  # noqa: E402
from testbed_agents.fragments import layer_of  # noqa: E402
from testbed_agents.groups import Groups  # noqa: E402
from testbed_agents.site_pace import InnerSteps  # noqa: E402

from testbed.core.checkers.weighed_means import weighed_means  # noqa: E402
from testbed.core.records.check_record import CheckLog, Grouped, read_checks  # noqa: E402
from testbed.core.training import strategies_built  # noqa: E402
from testbed.core.training.layout import Layout, Tensor  # noqa: E402
from testbed.core.training.twin import Twin  # noqa: E402

SITES = ("west", "west", "east", "north")
STEPS, RATE = 11, 0.05
HALVES = (("west", "east"), ("north",))


@dataclass(frozen=True)
class Case:
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    speeds: dict[str, float] = field(default_factory=dict)


CASES = {
    "averaged": Case("local-sgd", {"every": 4, "weigh": "tokens"}),
    "applied": Case("diloco", {"every": 4, "weigh": "tokens", "pace": "time"}, {"west": 0.4, "north": 0.8}),
    "applied in the middle": Case(
        "diloco", {"every": 4, "weigh": "tokens", "pace": "time", "aggregate_at": "east"}, {"west": 0.4, "north": 0.8}
    ),
    "equal shares": Case("diloco", {"every": 4, "pace": "time"}, {"west": 0.4, "north": 0.8}),
    "each rank": Case(
        "diloco", {"every": 4, "weigh": "tokens", "pace": "time", "replica": "rank"}, {"west": 0.4, "north": 0.8}
    ),
    "fragments": Case("streaming-diloco", {"every": 4, "fragments": 4, "overlap": 2, "weigh": "tokens"}),
    "fragments in the middle": Case(
        "streaming-diloco", {"every": 4, "fragments": 4, "overlap": 2, "weigh": "tokens", "aggregate_at": "east"}
    ),
    "coded": Case("streaming-diloco", {"every": 4, "fragments": 2, "bits": 4, "weigh": "tokens"}),
    "sparse": Case("sparse-loco", {"every": 4, "top": 512, "weigh": "tokens"}),
    "tiers": Case("multi-tier", {"every": 2, "every_regions": 4, "regions": HALVES, "weigh": "tokens"}),
}


class Kept:
    """Records of one rank as lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, kind: str, **fields: Any) -> None:
        if kind == "weighed":
            self.lines.append({"kind": kind, "attempt": 1, **fields})


def _train(rank: int) -> dict[str, tuple[Any, list[dict[str, Any]]]]:
    groups, found = Groups(rank, SITES), {}
    for name, case in CASES.items():
        kept, made = Kept(), strategies.make(case.strategy, case.options)
        job = replica_jobs.Job(groups, made, STEPS, RATE, case.speeds)
        evidence.install(evidence.Evidence(kept, 0, lambda job=job: job.context.step))  # type: ignore[arg-type,misc]
        job.run()
        evidence.install(None)
        found[name] = torch.cat([it.reshape(-1) for it in made.outer_parameters()]), kept.lines
    return found


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Of tensors this small, more are slower."""
    torch.set_num_threads(1)


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
    expected = _reference(CASES[name], [[0], [1], [2], [3]] if alone else [[0, 1], [2], [3]])
    for rank in trained:
        assert replica_jobs.distance(rank[name][0], expected) < 1e-5


def test_shares_and_inner_steps_change_what_is_learned(trained: Any) -> None:
    one, other = trained[0]["applied"][0], trained[0]["equal shares"][0]
    assert replica_jobs.distance(one, other) > 1e-4
    assert replica_jobs.distance(one, _reference(Case("diloco", CASES["applied"].options), [[0, 1], [2], [3]])) > 1e-3


def test_fragments_by_tokens_are_those_of_a_reference(trained: Any) -> None:
    sites = [[0, 1], [2], [3]]
    _, outer = replica_reference.streaming(
        sites, STEPS, every=4, count=4, overlap=2, alpha=0.5, rate=RATE, tokens=(2, 1, 1)
    )
    for name in ("fragments", "fragments in the middle"):
        assert replica_jobs.distance(trained[3][name][0], outer) < 1e-5
    _, outer = replica_reference.streaming(
        sites,
        STEPS,
        every=4,
        count=2,
        overlap=1,
        alpha=0.5,
        rate=RATE,
        tokens=(2, 1, 1),
        quantize=replica_reference.e3m0,
    )
    assert replica_jobs.distance(trained[3]["coded"][0], outer) < 1e-3
    theta, _ = replica_reference.sparse(sites, STEPS, every=4, keep=512, rate=RATE, tokens=(2, 1, 1))
    assert replica_jobs.distance(trained[3]["sparse"][0], theta) < 1e-3


def test_regions_by_tokens_are_those_of_a_reference(trained: Any) -> None:
    by = [replica_reference.Replica(ranks, RATE) for ranks in ([0, 1], [2], [3])]
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
    assert replica_jobs.distance(trained[2]["tiers"][0], top) < 1e-5


def _twin(case: Case) -> Twin:
    tensors = [Tensor(name, it.numel(), layer_of(name)) for name, it in replica_jobs.tiny().named_parameters()]
    layout = Layout(SITES, tuple(tensors), layers=4, steps=STEPS, speeds=case.speeds)
    return strategies_built.make(case.strategy, case.options, layout)


def _grouped(ranks: list[list[dict[str, Any]]], twin: Twin) -> Grouped:
    logs: list[CheckLog] = []
    for rank, lines in enumerate(ranks):
        log, malformed = read_checks(rank, [{**it, "t": 0.0} for it in lines])
        assert not malformed
        logs.append(log)
    return Grouped.of(logs, twin.longest_gap)


@pytest.mark.parametrize("name", [it for it, case in CASES.items() if case.options.get("weigh") == "tokens"])
def test_the_checker_finds_what_is_weighted_wrongly(trained: Any, name: str) -> None:
    twin = _twin(CASES[name])
    ranks = [rank[name][1] for rank in trained]
    right = weighed_means(_grouped(ranks, twin), twin)
    assert right.looked_at and not right.findings

    # All ranks alike take equal shares: the sum is that of what they say, but not what the twin says.
    alike = [[{**it, "share": 1 / len(it["ranks"])} for it in lines] for lines in ranks]
    assert weighed_means(_grouped(alike, twin), twin).findings

    # One rank multiplied by another share than it says: the mean is another one.
    lines = [{**it, "own": _doubled(it["own"])} if len(it["ranks"]) > 1 else it for it in ranks[0]]
    found = weighed_means(_grouped([lines, *ranks[1:]], twin), twin).findings
    assert any("of the mean is" in it.text for it in found)


def _doubled(values: str) -> str:
    floats = torch.frombuffer(bytearray.fromhex(values), dtype=torch.float32)
    return (2 * floats).numpy().tobytes().hex()


def test_a_job_with_inner_steps_and_evaluations_is_right(tmp_path: Path) -> None:
    """Site b is half as fast. What a rank evaluates is no exchange: its operations are not the strategy's."""
    compute = {"seconds": 0.02, "real": True, "speeds": {"b": 0.5}}
    options = {"every": 4, "pace": "time", "weigh": "tokens"}
    ended = trainer_over_loopback.train(tmp_path, "diloco", options, 10, compute=compute, evaluate=Plan(3))
    assert len(set(ended.ranks)) == 1 and ended.ranks[0].startswith("ok"), ended.ranks
    assert set(ended.holds.values()) == {True} and "exchanges" in ended.holds, ended.texts
    for rank, (tokens, updates) in enumerate(((2, 20), (2, 20), (1, 10), (1, 10))):
        lines = [json.loads(it) for it in (tmp_path / f"rank-{rank}.jsonl").read_text().splitlines()]
        job = next(it for it in lines if it["kind"] == "job")
        steps = [it for it in lines if it["kind"] == "step"]
        assert [it["tokens"] for it in steps] == [tokens * job["tokens_per_step"]] * 10
        assert [it["declared_s"] for it in steps] == pytest.approx([0.04] * 10)
        assert job["compute"].get("speed", 1.0) == (0.5 if rank > 1 else 1.0)
        for it in steps:  # the parts of a step are all of it
            assert it["compute_s"] + it["exposed_s"] == pytest.approx(it["t_end"] - it["t_begin"])
        assert sum(it["kind"] == "evaluation" for it in lines) == 4
        checks = [json.loads(it) for it in (tmp_path / f"rank-{rank}.checks.jsonl").read_text().splitlines()]
        assert max(it["optimizer_steps"] for it in checks if it["kind"] == "step") == updates


@dataclass
class _Sites:
    """What InnerSteps asks of groups."""

    sites: tuple[str, ...]

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.sites))


@pytest.mark.parametrize("speeds", [{"west": 0.2, "east": 0.6}, {"west": 0.3}, {"east": 0.07, "north": 0.49}])
def test_inner_steps_fit_into_the_time_of_the_slowest_site(speeds: Mapping[str, float]) -> None:
    """Never more than fit, never one fewer; the slowest takes one; both sides count alike. 0.6 is three times 0.2."""
    of = InnerSteps(_Sites(SITES), speeds, True)  # type: ignore[arg-type]
    twin = _twin(Case("diloco", {"every": 4, "pace": "time"}, dict(speeds)))
    hundredths = [round(100 * speeds.get(site, 1.0)) for site in SITES]
    for step in range(1, 200):
        for rank, speed in enumerate(hundredths):
            done = of.until(step, rank)
            assert done == twin.inner_steps(step, rank) == step * speed // min(hundredths)
            assert of.within(step, rank) >= 1
    assert math.isclose(sum(of.shares([[0, 1], [2], [3]], 5, 9)), 1.0)
