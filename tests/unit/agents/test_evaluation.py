"""Held-out evaluation: of outer parameters, on the same windows for all; nothing of them is trained on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from testbed_agents.data import Corpus, CorpusError, Windows
from testbed_agents.evaluation import WINDOWS, Evaluation, hold_out
from testbed_agents.model import GPT, Shape, cross_entropy
from testbed_agents.strategies.strategy import Strategy
from testbed_agents.training_job import Job

SHAPE = Shape(layers=1, heads=2, width=8, context=16)
TEXT = Corpus("a text", torch.randint(256, (4000,), generator=torch.Generator().manual_seed(1)).to(torch.uint8))


class Kept(Strategy):
    """Keeps other parameters than it trains."""

    def __init__(self, outer: list[torch.Tensor]) -> None:
        self.outer = outer

    def prepare(self, model, context):
        raise AssertionError("not of interest here")

    def outer_parameters(self) -> list[torch.Tensor]:
        return self.outer

    @property
    def outer_version(self) -> int:
        return 7


def outer_of(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [each.detach() for each in GPT(SHAPE).parameters()]


def test_shares_of_a_sites_ranks_add_up_to_the_loss_of_all_windows() -> None:
    _, held_out = hold_out(TEXT, SHAPE.context)
    outer = outer_of(3)
    model = GPT(SHAPE)
    for mine, theirs in zip(model.parameters(), outer, strict=True):
        mine.data.copy_(theirs)
    evaluations = [Evaluation(SHAPE, held_out, (rank, 3)) for rank in range(3)]
    inputs = torch.cat([it._inputs for it in evaluations])
    targets = torch.cat([it._targets for it in evaluations])
    expected = cross_entropy(model(inputs), targets).item()
    found: list[dict[str, Any]] = [it.run(Kept(outer), 40) for it in evaluations]
    assert sum(it["windows"] for it in found) == WINDOWS
    mean = sum(it["heldout_loss"] * it["windows"] for it in found) / WINDOWS
    assert mean == pytest.approx(expected, rel=1e-5)
    assert all((it["step"], it["outer_version"]) == (40, 7) and it["took_s"] > 0 for it in found)


def test_the_same_windows_whatever_was_drawn_before_and_no_draw_of_training_moves() -> None:
    _, held_out = hold_out(TEXT, SHAPE.context)
    torch.manual_seed(5)
    first = Evaluation(SHAPE, held_out, (0, 1))._inputs
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(Evaluation(SHAPE, held_out, (0, 1))._inputs, first)


def test_training_sees_nothing_of_what_is_held_out() -> None:
    train, held_out = hold_out(TEXT, SHAPE.context)
    assert torch.equal(torch.cat((train.text, held_out.text)), TEXT.text)
    assert len(held_out) == 200
    marked = Corpus("", torch.cat((torch.zeros_like(train.text), torch.full_like(held_out.text, 255))))
    windows = Windows(hold_out(marked, SHAPE.context)[0], batch=64, context=SHAPE.context, seed=0, rank=0)
    assert max(int(part.max()) for _ in range(20) for part in windows.draw()) == 0
    with pytest.raises(CorpusError, match="held-out part"):
        hold_out(Corpus("short", torch.zeros(33, dtype=torch.uint8)), 16)


def test_parts_of_a_model_have_no_loss() -> None:
    _, held_out = hold_out(TEXT, SHAPE.context)
    evaluation = Evaluation(SHAPE, held_out, (0, 1))
    assert "heldout_loss" not in evaluation.run(Kept([]), 1)
    broken = [torch.full_like(each, float("nan")) for each in outer_of(1)]
    assert "heldout_loss" not in evaluation.run(Kept(broken), 1)


def test_evaluations_are_regular_and_follow_the_last_step() -> None:
    job = Job("j1", 1, ("127.0.0.1", 1), "lo", Path(), steps=25, evaluate_every=10)
    assert [step for step in range(1, 26) if job.evaluates_after(step)] == [10, 20, 25]
    assert not any(dataclasses.replace(job, evaluate_every=0).evaluates_after(step) for step in range(1, 26))
