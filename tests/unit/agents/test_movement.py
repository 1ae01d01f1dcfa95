"""Each step of a replica enters exactly one pseudo-gradient, whatever outer parameters arrive meanwhile."""

from __future__ import annotations

import random

import pytest
import torch
from testbed_agents.parameter_server.movement import Movement


@pytest.mark.parametrize("seed", range(30))
def test_pushes_and_what_is_left_are_all_that_was_moved(seed: int) -> None:
    drawn, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def some() -> torch.Tensor:
        return torch.randn(5, generator=generator, dtype=torch.float64)

    here = some()
    movement = Movement(here)
    since, pushed, outer = [torch.zeros(5, dtype=torch.float64)], [], here.clone()
    for _ in range(60):
        what = drawn.random()
        if what < 0.6:
            step = some()
            here, since[-1] = here + step, since[-1] + step
        elif what < 0.8:
            pushed.append(movement.take(here))
            assert torch.allclose(pushed[-1], -since[-1], atol=1e-12)
            since.append(torch.zeros(5, dtype=torch.float64))
        else:
            included = drawn.randrange(movement.included, movement.taken + 1)
            outer = some()
            here = movement.rebase(outer, included, here)
            # What the outer parameters do not contain is still where it was.
            assert torch.allclose(here, outer + sum(since[included:]), atol=1e-12)
            assert torch.equal(movement.outer, outer)
    movement.take(here)
    for included in range(movement.included, movement.taken):
        here = movement.rebase(some(), included, here)
        assert torch.equal(here, movement.last), "where nothing has moved, bit for bit"
    here = movement.rebase(outer, movement.taken, here)
    assert torch.equal(here, outer), "without movement, exactly the outer parameters"


def test_a_restored_movement_goes_on_as_the_one_before() -> None:
    movement = Movement(torch.zeros(3))
    movement.take(torch.ones(3))
    movement.take(torch.full((3,), 3.0))
    other = Movement(torch.zeros(3))
    other.restart(movement.outer, movement.last, movement.included, movement.taken)
    for each in (movement, other):
        assert each.take(torch.full((3,), 4.0)).tolist() == [-1.0] * 3
        assert each.rebase(torch.full((3,), 10.0), 2, torch.full((3,), 5.0)).tolist() == [12.0] * 3
    with pytest.raises(ValueError, match="from 2 to 3, got 1"):
        other.rebase(torch.zeros(3), 1, torch.zeros(3))
