"""Strategies against references in one process, written independently: relative norm of all parameters at the end."""

from __future__ import annotations

import os

import pytest
import torch
from builders import loopback_ranks
from builders.replica_jobs import Result, distance
from testbed_agents.process_groups.groups import Groups
from testbed_agents.training.model import cross_entropy
from trained import Case, Reference, train, windows

STEPS = 40 if os.environ.get("TESTBED_THOROUGH") else 14
HALVES, PAIRS = ("west", "west", "east", "east"), ((0, 1), (2, 3))
CASES = {
    "ddp sgd": Case("ddp", {}, "sgd", STEPS),
    "ddp": Case("ddp", {}, "adamw", STEPS),
    "ddp in 16 bits": Case("ddp", {"bits": 16}, "sgd", STEPS),
    "accumulated": Case("ddp", {"accumulate": 3}, "sgd", STEPS),
    "two-level": Case("hierarchical", {}, "sgd", STEPS),
    "averaged each step": Case("local-sgd", {"every": 1}, "sgd", STEPS),
    "applied each step": Case("diloco", {"every": 1, "outer_rate": 1.0, "outer_momentum": 0.0}, "sgd", STEPS),
    "applied each step, adamw": Case("diloco", {"every": 1, "outer_rate": 1.0, "outer_momentum": 0.0}, "adamw", STEPS),
    "local-sgd": Case("local-sgd", {"every": 9}, "adamw", STEPS),
    "diloco": Case("diloco", {"every": 9, "outer_rate": 0.7, "outer_momentum": 0.9}, "adamw", STEPS),
    "tiers": Case("multi-tier", {"every": 4, "every_regions": 8, "regions": [["west"], ["east"]]}, "adamw", STEPS),
}


Ranks = list[dict[str, Result]]


def _train(rank: int) -> tuple[dict[str, Result], list[Result]]:
    """Each case at two sites, and one of them with all ranks at one site."""
    at_one_site = train(Groups(rank, ("west",) * 4), [CASES["ddp"]])
    return dict(zip(CASES, train(Groups(rank, HALVES), CASES.values()), strict=True)), at_one_site


@pytest.fixture(scope="module")
def trained() -> list[tuple[dict[str, Result], list[Result]]]:
    return loopback_ranks.run(4, _train)


@pytest.fixture(scope="module")
def halves(trained: list[tuple[dict[str, Result], list[Result]]]) -> Ranks:
    """Two sites of two ranks: by rank, by case."""
    return [halves for halves, _ in trained]


def _ddp(case: Case) -> torch.Tensor:
    """The mean gradient of all windows, in one process."""
    one = Reference(case, [(0, 1, 2, 3)])
    for _ in range(STEPS):
        one.step()
    return one.vectors()[0]


@pytest.mark.parametrize(("name", "bound"), [("ddp sgd", 1e-6), ("ddp", 1e-3), ("ddp in 16 bits", 1e-2)])
def test_ddp_is_the_mean_gradient(halves: Ranks, name: str, bound: float) -> None:
    assert distance(halves[0][name].outer, _ddp(CASES[name])) < bound


def test_two_levels_are_one(halves: Ranks) -> None:
    flat = halves[0]["ddp sgd"].outer
    assert 0 < distance(halves[0]["two-level"].outer, flat) < 1e-6


def test_an_exchange_after_each_step_of_plain_sgd_is_ddp(halves: Ranks) -> None:
    flat = halves[0]["ddp sgd"].outer
    for name in ("averaged each step", "applied each step"):
        assert distance(halves[0][name].outer, flat) < 1e-5
    assert distance(halves[0]["applied each step, adamw"].outer, halves[0]["ddp"].outer) > 1e-3, (
        "its moments see other gradients"
    )


def test_accumulated_gradients_are_one_larger_batch(halves: Ranks) -> None:
    case = CASES["accumulated"]
    one = Reference(case, [(0, 1, 2, 3)])
    optimizer = torch.optim.SGD(one.models[0].parameters(), lr=0.03)

    draws = [windows(rank, case.seed) for rank in range(4)]
    for step in range(1, STEPS + 1):
        for draw in draws:
            inputs = draw()
            (cross_entropy(one.models[0](inputs), inputs) / 4 / 3).backward()
        if step % 3 == 0 or step == STEPS:
            optimizer.step()
            optimizer.zero_grad()
    assert distance(halves[0]["accumulated"].outer, one.vectors()[0]) < 1e-5
    assert halves[0]["accumulated"].trace[-1].updates == -(-STEPS // 3)


def test_local_sgd_is_the_mean_of_parameters(halves: Ranks) -> None:
    two = Reference(CASES["local-sgd"], PAIRS)
    for step in range(1, STEPS + 1):
        two.step()
        if step % 9 == 0 or step == STEPS:
            mean = sum(two.vectors()) / 2
            two.set([mean, mean])
    assert distance(halves[0]["local-sgd"].outer, two.vectors()[0]) < 1e-3


def test_diloco_applies_the_mean_pseudo_gradient_with_nesterov(halves: Ranks) -> None:
    two = Reference(CASES["diloco"], PAIRS)
    outer, momentum = two.vectors()[0], torch.zeros_like(two.vectors()[0])
    for step in range(1, STEPS + 1):
        two.step()
        if step % 9 == 0 or step == STEPS:
            gradient = outer - sum(two.vectors()) / 2
            momentum = 0.9 * momentum + gradient
            outer = outer - 0.7 * (gradient + 0.9 * momentum)
            two.set([outer, outer])
    assert distance(halves[0]["diloco"].outer, outer) < 1e-3


def test_an_upper_tier_restarts_the_lower(halves: Ranks) -> None:
    """With one site a region, the lower tier is a Nesterov step of the site alone."""
    two = Reference(CASES["tiers"], PAIRS)
    top = two.vectors()[0]
    upper = torch.zeros_like(top)
    regions, lower = [top, top], [torch.zeros_like(top), torch.zeros_like(top)]
    for step in range(1, STEPS + 1):
        two.step()
        if step % 4 and step != STEPS:
            continue
        for index, local in enumerate(two.vectors()):
            gradient = regions[index] - local
            lower[index] = 0.5 * lower[index] + gradient
            regions[index] = regions[index] - 0.7 * (gradient + 0.5 * lower[index])
        if step % 8 == 0 or step == STEPS:
            gradient = top - sum(regions) / 2
            upper = 0.5 * upper + gradient
            top = top - 0.7 * (gradient + 0.5 * upper)
            regions, lower = [top, top], [torch.zeros_like(top), torch.zeros_like(top)]
        two.set(regions)
    assert distance(halves[0]["tiers"].outer, top) < 1e-3


def test_ddp_over_sites_is_ddp_in_one_site_bit_for_bit(trained: list[tuple[dict[str, Result], list[Result]]]) -> None:
    for halves, (together,) in trained:
        assert halves["ddp"].trace[-1].fingerprints == together.trace[-1].fingerprints


def test_all_ranks_end_with_the_same_bits(halves: Ranks) -> None:
    for name in CASES:
        assert len({rank[name].trace[-1].fingerprints["parameters"] for rank in halves}) == 1, name
