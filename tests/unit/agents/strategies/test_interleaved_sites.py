"""Ranks of sites that interleave: torch sorts the ranks of a group, and a slice's ranks are in the order of sites.

At sites a, b, b, a slice 1 belongs to ranks 3 and 2, in this order. What is gathered comes in the order of torch, not
of the sites. Regions may be named in any order.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from builders import loopback_ranks
from builders.replica_jobs import Job, distance
from oracles import replica_reference
from testbed_agents.process_groups.groups import Groups

SITES = ("a", "b", "b", "a")
RANKS = ([0, 3], [1, 2])
STEPS, RATE = 9, 0.05
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "sparse": ("sparse-loco", {"every": 4, "top": 512}),
    "coded": ("streaming-diloco", {"every": 4, "fragments": 2, "bits": 4}),
    "tiers": ("multi-tier", {"every": 2, "every_regions": 4, "regions": (("b",), ("a",))}),
    "tiers in order": ("multi-tier", {"every": 2, "every_regions": 4, "regions": (("a",), ("b",))}),
    "hierarchical": ("hierarchical", {}),
    "ddp": ("ddp", {}),
}


def _train(rank: int) -> tuple[dict[str, torch.Tensor], Any, tuple[int, ...], list[int]]:
    groups = Groups(rank, SITES)
    jobs = {name: Job(groups, *job, STEPS, RATE).run() for name, job in JOBS.items()}
    outer = {name: job.result().outer for name, job in jobs.items()}
    with pytest.raises(ValueError, match="numbered site by site"):  # on all ranks, or some would wait for ever
        Job(groups, "tensor", {"across": True}, STEPS)
    replicas = groups.replicas("site")
    ranks = dist.get_process_group_ranks(replicas.across)
    return outer, jobs["sparse"].strategy.residual, replicas.across_ranks, ranks


@pytest.fixture(scope="module")
def trained() -> Any:
    return loopback_ranks.run(len(SITES), _train)


def test_torch_sorts_what_is_in_the_order_of_sites(trained: Any) -> None:
    assert [across for _, _, across, _ in trained] == [(0, 1), (0, 1), (3, 2), (3, 2)]
    assert [ranks for _, _, _, ranks in trained] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_codes_are_those_of_their_sites(trained: Any) -> None:
    theta, residuals = replica_reference.sparse(RANKS, STEPS, every=4, keep=512, rate=RATE)
    halves = [it.split(trained[0][1].numel()) for it in residuals]
    for rank, (site, part) in enumerate(((0, 0), (1, 0), (1, 1), (0, 1))):
        found, residual, _, _ = trained[rank]
        assert distance(found["sparse"], theta) < 1e-3
        expected = halves[site][part]
        assert distance(residual[: expected.numel()], expected) < 1e-2
    _, outer = replica_reference.streaming(
        RANKS, STEPS, every=4, count=2, overlap=1, alpha=0.5, rate=RATE, quantize=replica_reference.e3m0
    )
    assert distance(trained[2][0]["coded"], outer) < 1e-3


def test_sums_do_not_depend_on_the_order_of_ranks(trained: Any) -> None:
    for found, *_ in trained:
        assert torch.equal(found["tiers"], found["tiers in order"])
        assert distance(found["hierarchical"], found["ddp"]) < 1e-6
        for name in JOBS:
            assert torch.equal(found[name], trained[0][0][name])
