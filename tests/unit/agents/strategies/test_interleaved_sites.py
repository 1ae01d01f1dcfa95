"""Ranks of sites that interleave: torch sorts the ranks of a group, and a slice's ranks are in the order of sites.

At sites a, b, b, a slice 1 belongs to ranks 3 and 2, in this order. What is gathered comes in the order of torch, not
of the sites. Regions may be named in any order.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from builders import loopback_ranks, replica_jobs  # noqa: E402
from oracles import replica_reference  # noqa: E402
from testbed_agents import strategies  # noqa: E402
from testbed_agents.groups import Groups  # noqa: E402
from testbed_agents.strategies import Context  # noqa: E402

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


def _train(rank: int) -> tuple[dict[str, Any], Any, tuple[int, ...], list[int]]:
    groups, found = Groups(rank, SITES), {}
    for name, (strategy, options) in JOBS.items():
        made = strategies.make(strategy, options)
        replica_jobs.Job(groups, made, STEPS, RATE).run()
        found[name] = torch.cat([it.reshape(-1) for it in made.outer_parameters()])
        if name == "sparse":
            residual = made.residual  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="numbered site by site"):  # on all ranks, or some would wait for ever
        strategies.make("tensor", {"across": True}).prepare(replica_jobs.tiny(), Context(groups))
    replicas = groups.replicas("site")
    return found, residual, replicas.across_ranks, dist.get_process_group_ranks(replicas.across)


@pytest.fixture(scope="module")
def trained() -> Any:
    torch.set_num_threads(1)
    return loopback_ranks.run(len(SITES), _train)


def test_torch_sorts_what_is_in_the_order_of_sites(trained: Any) -> None:
    assert [across for _, _, across, _ in trained] == [(0, 1), (0, 1), (3, 2), (3, 2)]
    assert [ranks for _, _, _, ranks in trained] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_codes_are_those_of_their_sites(trained: Any) -> None:
    theta, residuals = replica_reference.sparse(RANKS, STEPS, every=4, keep=512, rate=RATE)
    halves = [it.split(trained[0][1].numel()) for it in residuals]
    for rank, (site, part) in enumerate(((0, 0), (1, 0), (1, 1), (0, 1))):
        found, residual, _, _ = trained[rank]
        assert replica_jobs.distance(found["sparse"], theta) < 1e-3
        expected = halves[site][part]
        assert replica_jobs.distance(residual[: expected.numel()], expected) < 1e-2
    _, outer = replica_reference.streaming(
        RANKS, STEPS, every=4, count=2, overlap=1, alpha=0.5, rate=RATE, quantize=replica_reference.e3m0
    )
    assert replica_jobs.distance(trained[2][0]["coded"], outer) < 1e-3


def test_sums_do_not_depend_on_the_order_of_ranks(trained: Any) -> None:
    for found, *_ in trained:
        assert torch.equal(found["tiers"], found["tiers in order"])
        assert replica_jobs.distance(found["hierarchical"], found["ddp"]) < 1e-6
        for name in JOBS:
            assert torch.equal(found[name], trained[0][0][name])
