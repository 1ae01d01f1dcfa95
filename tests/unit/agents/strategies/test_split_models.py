"""fsdp, hsdp, pipeline, tensor, moe on four ranks at two sites, against one process, written independently.

One run of ranks for all of them: what a rank finds is compared here.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import loopback_ranks
from builders.replica_jobs import Job, distance, vector
from testbed_agents import watched
from testbed_agents.checkpoint import Checkpoints, State
from testbed_agents.compute import Compute, Kind
from testbed_agents.data import Corpus, Windows
from testbed_agents.groups import Groups
from testbed_agents.model import GPT, Shape, cross_entropy
from testbed_agents.records import Fence
from testbed_agents.strategies import Strategy
from torch import Tensor

from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, asleep_tensors, gpt_tensors
from testbed.core.training.twin import Twin

Ranks = list[dict[str, Any]]
SITES = ("west", "west", "east", "east")
SHAPE = Shape(layers=2, heads=4, width=16, context=16)
BATCH, STEPS, SAVED_AFTER = 2, 4, 2
CORPUS = Corpus("bytes", torch.randint(256, (20_000,), generator=torch.Generator().manual_seed(7)).to(torch.uint8))

JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "fsdp": ("fsdp", {}),
    "hsdp": ("hsdp", {}),
    "tensor": ("tensor", {}),
    "tensor across": ("tensor", {"across": True}),
    "1f1b": ("pipeline", {}),
    "gpipe": ("pipeline", {"schedule": "gpipe", "micro_batches": 2}),
    "1f1b, one in flight": ("pipeline", {"in_flight": 1}),
    "moe": ("moe", {"router_seed": 3}),
    "fsdp asleep": ("fsdp", {}),
    "pipeline asleep": ("pipeline", {"micro_batches": 2, "in_flight": 2}),
    "moe in sites": ("moe", {"experts": "site", "top_k": 2, "capacity": 0.6}),
}
SHARDS = torch.__version__ >= "2.8"
"""Whether torch shards on CPUs."""
JOBS = {name: job for name, job in JOBS.items() if SHARDS or job[0] not in ("fsdp", "hsdp")}
ASLEEP = 1003
"""Parameters of a model that sleeps: not a multiple of the ranks."""
RESTORED = [name for name in ("fsdp", "tensor", "1f1b", "moe") if name in JOBS]


def _twin(name: str) -> Twin:
    tensors = gpt_tensors(SHAPE.layers, SHAPE.width, SHAPE.context)
    if "asleep" in name:
        tensors = asleep_tensors(ASLEEP, SHAPE.layers)
    shape = (BATCH * SHAPE.context, SHAPE.context, SHAPE.width, SHAPE.layers)
    return strategies_built.make(*JOBS[name], Layout(SITES, tensors, *shape, STEPS, heads=4))


class _Seen:
    """Counts the operations that are asked of all groups."""

    def __init__(self) -> None:
        self.operations: Counter[tuple[Any, ...]] = Counter()

    def entered(self, operation: Any) -> None:
        if len(operation.ranks) > 1 and operation.kind != "recv":
            ranks = operation.ranks
            if operation.kind == "send":
                ranks = (ranks[operation.position], ranks[operation.peer])
            self.operations[operation.group, operation.kind, ranks, float(operation.byte_count)] += 1

    def left(self, operation: Any) -> None:
        pass

    def added(self, *sum_of_messages: Any) -> None:
        pass


class _Job(Job):
    def __init__(self, groups: Groups, name: str) -> None:
        kind: Kind = "declared" if "asleep" in name else "real"
        self.compute = Compute(kind, 1e-3, shape=SHAPE, elements=ASLEEP, layers=SHAPE.layers, rank=groups.rank)
        self.windows = Windows(CORPUS, batch=BATCH, context=SHAPE.context, seed=0, rank=groups.rank)
        super().__init__(groups, *JOBS[name], STEPS, loss=self.compute.loss, compute=self.compute)

    def make_model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        return self.compute.model()

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters, lr=1e-3)

    def draw(self, step: int, inner: int = 0) -> tuple[Tensor, Tensor]:
        return self.windows.draw()

    def checkpoint(self) -> State:
        return State(self.model, self.optimizer, self.windows, self.state)


def _train(rank: int, folder: Path) -> dict[str, Any]:
    trained: dict[str, Any] = {}
    groups = Groups(rank, SITES)
    for name in JOBS:
        seen = _Seen()
        # torch's parallelize_module distributes parameters that are equal already; that is no step's exchange.
        groups.hooks.observer = seen if JOBS[name][0] == "pipeline" else None
        job = _Job(groups, name)
        groups.hooks.observer = seen
        groups.hooks.count_blocked(job.context.waiting)
        job.run(SAVED_AFTER)
        checkpoints = Checkpoints(folder / name / f"rank-{rank}", Fence(folder, 1))
        if name in RESTORED:
            checkpoints.save(SAVED_AFTER, job.checkpoint())
        job.run()
        groups.hooks.detach()
        trained[name] = {
            "losses": [None if loss is None else float(loss) for loss in job.losses],
            "fingerprints": job.trace[-1].fingerprints,
            "operations": seen.operations,
            "outer": [tensor.detach().clone() for tensor in job.strategy.outer_parameters()],
            "waited_s": job.context.waited_s,
            "evaluated": _evaluated(job.strategy),
        }
        if name in RESTORED:
            again = _Job(groups, name)
            checkpoints.load(SAVED_AFTER, 1, again.checkpoint())
            again.done = SAVED_AFTER
            trained[name]["restored"] = again.run().trace[-1].fingerprints
    return trained


def _evaluated(strategy: Strategy) -> float | None:
    """Return the loss of the outer parameters on one window, as :mod:`testbed_agents.evaluation` does."""
    inputs, targets = Windows(CORPUS, batch=1, context=SHAPE.context, seed=9, rank=9).draw()
    with torch.no_grad():
        model = strategy.outer_model(GPT(SHAPE))
        return None if model is None else float(cross_entropy(model(inputs), targets))


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each rank found, by job."""

    return loopback_ranks.run(4, _train, tmp_path_factory.mktemp("split"), backend=watched.BACKEND)


def _distance(tensors: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    return distance(vector(tensors), vector(expected))


@pytest.mark.parametrize("name", [name for name in ("fsdp", "hsdp", "tensor", "tensor across") if name in JOBS])
def test_a_split_model_learns_what_ddp_learns(ranks: Ranks, name: str) -> None:
    for rank in ranks:
        assert _distance(rank[name]["outer"], rank["ddp"]["outer"]) < 1e-6
        assert [it.shape for it in rank[name]["outer"]] == [it.shape for it in rank["ddp"]["outer"]]


@pytest.mark.parametrize("name", JOBS)
def test_the_group_is_asked_for_what_the_twin_says(ranks: Ranks, name: str) -> None:
    if name == "ddp":
        pytest.skip("its twin has one operation for all buckets")
    twin = _twin(name)
    assert twin.mistakes() == () or all(it.warning for it in twin.mistakes())
    for rank, found in enumerate(ranks):
        expected: Counter[tuple[Any, ...]] = Counter()
        for step in range(STEPS + 2):
            for it in twin.operations(step):
                if rank in it.ranks and (it.kind != "send" or rank == it.ranks[0]):
                    expected[it.group, it.kind, it.ranks, float(it.byte_count)] += 1
        assert found[name]["operations"] == expected


@pytest.mark.parametrize("name", JOBS)
def test_what_the_twin_calls_equal_is_so(ranks: Ranks, name: str) -> None:
    twin = _twin(name)
    for equal in twin.equal(STEPS):
        assert len({ranks[rank][name]["fingerprints"][equal.name] for rank in equal.ranks}) == 1, equal
    # And nothing else is: another shard, stage or expert has other bits.
    for what in ("shard", "stage", "expert"):
        values = {rank[name]["fingerprints"].get(what) for rank in ranks}
        sets = [it.ranks for it in twin.equal(STEPS) if it.name == what]
        if values != {None}:
            assert len(values) == (len(sets) or len(SITES))


@pytest.mark.parametrize("name", RESTORED)
def test_a_restored_job_ends_with_the_same_bits(ranks: Ranks, name: str) -> None:
    for rank in ranks:
        assert rank[name]["restored"] == rank[name]["fingerprints"]


def _reference(model: torch.nn.Module) -> list[list[float]]:
    """Train by the mean gradient of all windows in one process; return the losses by step and rank."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    windows = [Windows(CORPUS, batch=BATCH, context=SHAPE.context, seed=0, rank=rank) for rank in range(4)]
    losses: list[list[float]] = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses.append([])
        for of_rank in windows:
            inputs, targets = of_rank.draw()
            loss = cross_entropy(model(inputs), targets)
            losses[-1].append(float(loss.detach()))
            (loss / 4).backward()
        optimizer.step()
    return losses


def test_a_model_that_sleeps_is_split_too(ranks: Ranks) -> None:
    for name in [name for name in JOBS if "asleep" in name]:
        assert sum(it.numel() for it in ranks[0][name]["outer"]) == ASLEEP
        for rank in ranks:
            assert _distance(rank[name]["outer"], ranks[0][name]["outer"]) == 0.0
        losses = ranks[2][name]["losses"]
        assert losses[-1] < losses[0]


class _Untied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gpt = GPT(SHAPE)
        self.head = torch.nn.Parameter(self.gpt.embedding.weight.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        gpt = self.gpt
        x = gpt.embedding(tokens) + gpt.position
        for block in gpt.blocks:
            x = block(x)
        return gpt.last_norm(x) @ self.head.T


def test_a_pipeline_is_one_model_with_an_untied_output_layer(ranks: Ranks) -> None:
    model = _Untied()
    losses = _reference(model)
    expected = [*model.gpt.parameters(), model.head]
    for name in ("1f1b", "gpipe", "1f1b, one in flight"):
        for rank in ranks:
            assert _distance(rank[name]["outer"], expected) < 1e-6
        assert ranks[0][name]["losses"] == [None] * STEPS, "only the last stage has a loss"
        # Rank 2 is the last stage of ranks 0 and 2.
        means = [(of_step[0] + of_step[2]) / 2 for of_step in losses]
        assert ranks[2][name]["losses"] == pytest.approx(means, rel=1e-5)
    inputs, targets = Windows(CORPUS, batch=1, context=SHAPE.context, seed=9, rank=9).draw()
    loss = float(cross_entropy(model(inputs), targets).detach())
    assert [rank["1f1b"]["evaluated"] for rank in ranks] == pytest.approx([loss] * 4, rel=1e-5)
    if SHARDS:
        assert ranks[0]["fsdp"]["evaluated"] == pytest.approx(ranks[0]["ddp"]["evaluated"], rel=1e-5)
    assert ranks[0]["moe"]["evaluated"] is None, "its model is another one"
    assert ranks[0]["1f1b"]["fingerprints"] == ranks[0]["1f1b, one in flight"]["fingerprints"], "order of sums"


@pytest.mark.parametrize("name", JOBS)
def test_what_forward_and_backward_wait_for_is_not_compute(ranks: Ranks, name: str) -> None:
    waits = name != "ddp"
    assert all((rank[name]["waited_s"] > 0) == waits for rank in ranks), "torch's own waits, too"


class _Mixture(torch.nn.Module):
    """All experts in one process, each of which sees all tokens; those that it does not take count nothing."""

    def __init__(self, experts: int, top_k: int, capacity: float, seed: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gpt: Any = GPT(SHAPE)
        self.top_k, self.count = top_k, experts
        self.slots = -int(-capacity * BATCH * SHAPE.context * top_k // experts)
        generator = torch.Generator().manual_seed(seed)
        self.experts: Any = torch.nn.ModuleList()
        self.routers = torch.nn.ParameterList()
        blocks: Iterable[Any] = self.gpt.blocks
        for block in blocks:
            pair = torch.nn.Sequential(block.inward, torch.nn.GELU(), block.outward)
            self.experts.append(torch.nn.ModuleList(copy.deepcopy(pair) for _ in range(experts)))
            self.routers.append(0.02 * torch.randn(experts, SHAPE.width, generator=generator))
        for block in blocks:
            del block.inward, block.outward

    def forward(self, tokens: Tensor) -> Tensor:
        gpt = self.gpt
        x = gpt.embedding(tokens) + gpt.position
        for block, experts, router in zip(gpt.blocks, self.experts, self.routers, strict=True):
            x = x + block.attention(block.before_attention(x))
            seen = block.before_perceptron(x).reshape(-1, SHAPE.width)
            share = torch.softmax(seen @ router.T, -1)
            order = share.argsort(-1, descending=True)
            left, weight = [self.slots] * self.count, torch.zeros(len(seen), self.count)
            for choice in range(self.top_k):
                for at, expert in enumerate(order[:, choice].tolist()):
                    weight[at, expert] = float(left[expert] > 0)
                    left[expert] -= left[expert] > 0
            answers = torch.stack([expert(seen) for expert in experts], 1)
            x = x + (answers * (weight * share)[:, :, None]).sum(1).view(x.shape)
        return gpt.last_norm(x) @ gpt.embedding.weight.T


@pytest.mark.parametrize("name", ["moe", "moe in sites"])
def test_a_mixture_over_ranks_is_one_in_one_process(ranks: Ranks, name: str) -> None:
    options: dict[str, Any] = {"experts": "all", "top_k": 1, "capacity": 1.0, "router_seed": 0} | JOBS[name][1]
    experts = 4 if options.pop("experts") == "all" else 2
    model = _Mixture(experts, options["top_k"], options["capacity"], options["router_seed"])
    _reference(model)
    expected = dict(model.gpt.named_parameters())
    for layer in range(SHAPE.layers):
        for at, part in ((0, "inward"), (2, "outward")):
            for kind in ("weight", "bias"):
                found = [getattr(expert[at], kind) for expert in model.experts[layer]]
                expected[f"blocks.{layer}.{part}.{kind}"] = torch.stack(found)
        expected[f"blocks.{layer}.router.weight"] = model.routers[layer]
    torch.manual_seed(0)
    names = [it for it, _ in GPT(SHAPE).named_parameters()]
    for layer in reversed(range(SHAPE.layers)):
        names.insert(names.index(f"blocks.{layer}.outward.bias") + 1, f"blocks.{layer}.router.weight")
    for rank in ranks:
        assert _distance(rank[name]["outer"], [expected[key] for key in names]) < 1e-5
