"""Delayed Nesterov against Algorithm 3 of arXiv:2401.09135, written here a second time, in Python's numbers."""

from __future__ import annotations

import random

import pytest
import torch
from testbed_agents.exchange.outer_optimizers import DelayedNesterov
from testbed_agents.hooks import Hooks


def algorithm_3(theta: float, gradients: list[float], eps: float, beta: float, n: int, c: float) -> list[float]:
    m, delta, found = 0.0, 0.0, []
    for t, g in enumerate(gradients):
        delta += g
        if (t + 1) % n == 0:
            m = beta * m + delta / n
            theta -= eps * ((1 - c * n + c) * beta * m + g / n)
            delta = 0.0
        else:
            theta -= eps * (c * beta * m + g / n)
        found.append(theta)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_it_is_algorithm_3(seed: int) -> None:
    drawn = random.Random(seed)
    n = drawn.randrange(1, 6)
    eps, beta, c = drawn.uniform(0.05, 1.0), drawn.uniform(0, 0.95), drawn.uniform(0, 1 / n)
    starts = [drawn.gauss(0, 1) for _ in range(3)]
    gradients = [[drawn.gauss(0, 1) for _ in range(3)] for _ in range(23)]
    optimizer = DelayedNesterov(torch.tensor(starts, dtype=torch.float64), eps, beta, Hooks(), n, c)
    expected = [algorithm_3(start, [g[i] for g in gradients], eps, beta, n, c) for i, start in enumerate(starts)]
    for t, gradient in enumerate(gradients):
        optimizer.step(torch.tensor(gradient, dtype=torch.float64))
        assert optimizer.values.tolist() == pytest.approx([it[t] for it in expected], rel=1e-12, abs=1e-12)


def test_with_one_site_it_is_torchs_nesterov() -> None:
    torch.manual_seed(1)
    mine = torch.randn(50, dtype=torch.float64)
    parameter = torch.nn.Parameter(mine.clone())
    sgd = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    optimizer = DelayedNesterov(mine, 0.7, 0.9, Hooks(), 1)
    for _ in range(10):
        parameter.grad = torch.randn(50, dtype=torch.float64)
        optimizer.step(parameter.grad)
        sgd.step()
    assert torch.allclose(optimizer.values, parameter.detach(), rtol=0, atol=1e-12)


def test_values_on_their_way_do_not_change() -> None:
    optimizer = DelayedNesterov(torch.zeros(4), 1.0, 0.5, Hooks(), 2)
    optimizer.step(torch.ones(4))
    served = optimizer.values
    optimizer.step(torch.ones(4))
    assert served.tolist() == [-0.5] * 4
