"""The outer optimizer of a slice, by property: against its formula, and as no optimizer at all."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testbed_agents.exchange.outer_optimizers import Nesterov
from testbed_agents.hooks import Hooks

VALUES = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3, width=32), st.floats(-1e3, 1e3, width=32)), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_one_replica_with_rate_1_is_inner_training(pairs: list[tuple[float, float]]) -> None:
    """Within 2^-23 (|a| + |b|) per element and exchange: the rounding of a - (a - b)."""
    outer, local = (torch.tensor(it, dtype=torch.float32) for it in zip(*pairs, strict=True))
    found = Nesterov(outer.clone(), 1.0, 0.0, Hooks())
    found.step(found.values - local)
    assert bool(((found.values - local).abs() <= 2.0**-23 * (outer.abs() + local.abs())).all())


@given(VALUES, st.floats(0.05, 1.5), st.floats(0.0, 0.95), st.integers(1, 6))
@settings(max_examples=50, deadline=None)
def test_nesterov_is_its_formula(values: list[float], rate: float, momentum: float, steps: int) -> None:
    outer = torch.tensor(values, dtype=torch.float32)
    found = Nesterov(outer.clone(), rate, momentum, Hooks())
    expected, moved = outer.double(), torch.zeros(len(values), dtype=torch.float64)
    for step in range(steps):
        gradient = torch.linspace(-1.0, 1.0, len(values)) * (step + 1)
        found.step(gradient)
        moved = momentum * moved + gradient.double()
        expected = expected - rate * (gradient.double() + momentum * moved)
    assert torch.allclose(found.values.double(), expected, rtol=1e-5, atol=1e-4)


def test_an_optimizer_that_was_restarted_has_no_momentum() -> None:
    found = Nesterov(torch.zeros(3), 1.0, 0.5, Hooks())
    found.step(torch.ones(3))
    found.restart(torch.zeros(3))
    assert found.momentum.tolist() == [0.0] * 3
    found.step(torch.ones(3))
    assert found.values.tolist() == [-1.5] * 3
