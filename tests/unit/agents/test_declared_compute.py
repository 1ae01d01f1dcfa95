"""Declared compute: when layers of a step end, how long it takes on average, what the sleeping model is."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping
from typing import Any

import host_stalls
import pytest
import torch
from builders.loopback_ranks import run
from builders.torch_threads import one_thread
from testbed_agents import compute as under_test
from testbed_agents.compute import Compute, SleepingModel
from testbed_agents.exchange.gradients import Reduce, Reduced
from testbed_agents.model import GPT, Shape, parameter_count
from testbed_agents.strategies import make
from testbed_agents.strategies.strategy import Context
from torch import Tensor

from testbed.core.training.strategies_built import BUILT

__all__ = ["one_thread"]  # of every test here

TOKENS = torch.zeros(2, 16, dtype=torch.int64)
SHAPE = Shape(layers=2, heads=2, width=16, context=16)


def made(rank: int = 0, seed: int = 1, **message: Any) -> Compute:
    return Compute.from_message(message, rank=rank, seed=seed, shape=SHAPE)


class Clock:
    """Time that passes only while something sleeps, or is said to work; notes when each sleep ended."""

    def __init__(self) -> None:
        self.now, self.ends = 100.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def process_time(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.ends.append(self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(under_test, "time", clock)
    yield clock


def train(compute: Compute, model: torch.nn.Module) -> Tensor:
    """Run both passes; return the loss."""
    loss = compute.loss(model(TOKENS), TOKENS)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


class Steps:
    """Steps of a sleeping model of three layers; ``record``: of the last one."""

    def __init__(self, clock: Clock, seconds: float = 0.09, **message: Any) -> None:
        self.clock, self.compute = clock, made(seconds=seconds, elements=300, layers=3, **message)
        self.model = self.compute.model()
        self.record: Mapping[str, float] = {}

    def run(self, step: int, optimizer_s: float = 0.0, excused_s: float = 0.0, slower_by: float = 0.0) -> float:
        """Run a step; return how long it took."""
        begin = self.clock.now
        self.compute.begin(step, slower_by=slower_by)
        self.compute.excuse(excused_s)
        train(self.compute, self.model)
        ready = self.clock.now
        self.clock.now += optimizer_s
        self.record = self.compute.end(begin, ready, ready, self.clock.now)
        return self.clock.now - begin


def test_layers_end_at_deadlines_in_both_passes(clock: Clock) -> None:
    """Three layers of 90 ms: a third of it forward, two thirds backward, in equal parts."""
    Steps(clock).run(1)
    assert [end - 100 for end in clock.ends] == pytest.approx([0.01, 0.02, 0.03, 0.05, 0.07, 0.09])


def test_what_was_late_before_is_not_late_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first sleep ends 15 ms late; the pass ends on time nevertheless."""
    late = itertools.chain([0.015], itertools.repeat(0.0))
    punctual = clock.sleep
    monkeypatch.setattr(clock, "sleep", lambda seconds: punctual(seconds + next(late)))
    Steps(clock).run(1)
    assert clock.ends[-1] - 100 == pytest.approx(0.09)


def test_time_blocked_by_communication_is_no_compute(clock: Clock) -> None:
    steps = Steps(clock)
    steps.compute.begin(1)
    clock.now += 0.05
    steps.compute.excuse(0.05)
    steps.compute.end(100.0, 100.0, 100.0, 100.0)
    steps.compute.excuse(7.0)  # outside a step: nothing to move
    assert steps.run(2) == pytest.approx(0.09)
    assert steps.run(3, excused_s=0.05) == pytest.approx(0.09 + 0.05)


@pytest.mark.parametrize("real", [False, True])
def test_the_usual_time_of_the_optimizer_is_part_of_what_is_declared(clock: Clock, real: bool) -> None:
    """The optimizer takes 12 ms; once that is known, a step takes the declared 90 ms with it."""
    steps = Steps(clock, real=real)
    times = [steps.run(step, optimizer_s=0.012) for step in range(1, 12)]
    assert times == pytest.approx([0.102] + [0.09] * 10)


def test_overruns_are_counted_and_recorded(clock: Clock) -> None:
    steps = Steps(clock, 0.1)
    for step in range(1, 6):
        steps.run(step)
    assert (steps.compute.overruns, "overrun_s" in steps.record) == (0, False)
    steps.run(6, optimizer_s=0.25)
    assert steps.compute.overruns == 1
    assert steps.record["declared_s"] == pytest.approx(0.1)
    assert steps.record["overrun_s"] == pytest.approx(0.25) == pytest.approx(steps.compute.overrun_s)


def test_a_slower_rank_computes_longer(clock: Clock) -> None:
    assert Steps(clock, 0.1).run(1, slower_by=0.5) == pytest.approx(0.15)


def test_real_compute_is_extended_by_the_last_step(clock: Clock) -> None:
    compute = Compute.from_message(None, rank=0, seed=0, shape=SHAPE)
    compute.begin(1, slower_by=0.5)
    compute.before_backward()
    assert clock.ends == []  # no step before
    assert set(compute.end(100.0, 100.2, 100.3, 100.3)) == {"cpu_s"}
    compute.begin(2, slower_by=0.5)
    compute.before_backward()
    assert clock.now == pytest.approx(100.1)
    compute.end(100.0, 100.3, 100.3, 100.3)  # 0.1 of it were the fault's
    compute.begin(3, slower_by=0.5)
    compute.before_backward()
    assert clock.now == pytest.approx(100.2)
    assert compute.job_fields() == {}


def test_noise_is_drawn_for_rank_and_step_and_has_mean_one() -> None:
    def factors(**words: Any) -> list[float]:
        compute = made(seconds=1.0, noise=0.1, elements=8, layers=1, **words)
        return [compute._noise_in(step) for step in range(1, 2001)]

    found = factors(rank=2)
    assert found == factors(rank=2)  # again, as after a resume
    assert found != factors(rank=3) and found != factors(rank=2, seed=2)
    assert statistics.mean(found) == pytest.approx(1.0, abs=0.01)
    assert statistics.stdev(found) == pytest.approx(0.1, rel=0.1)
    assert made(seconds=1.0, elements=8, layers=1)._noise_in(7) == 1.0


@pytest.mark.parametrize("real", [False, True])
def test_on_the_real_clock_a_step_is_never_much_shorter(real: bool) -> None:
    """However much was learned from steps before, on a busy machine."""
    compute = made(seconds=0.02, real=real, elements=400, layers=4)
    model = compute.model()
    for step in range(1, 4):
        began = time.monotonic()
        compute.begin(step)
        train(compute, model)
        ready = time.monotonic()
        compute.end(began, ready, ready, ready)
        assert ready - began >= 0.02 * (1 - under_test.MOST_LEARNED)


def test_the_model_runs_at_full_speed_outside_a_step() -> None:
    compute = made(seconds=30.0, elements=300, layers=3)
    began = time.monotonic()
    model = compute.model()
    train(compute, model)
    compute.begin(1)
    compute.end(0.0, 0.0, 0.0, 0.0)
    with torch.no_grad():
        model(TOKENS)
    assert host_stalls.elapsed_s(began) < 30.0


def test_the_sleeping_model_is_a_convex_problem_with_targets_of_its_rank() -> None:
    def built(rank: int) -> tuple[Any, Compute]:
        torch.manual_seed(3)
        compute = made(rank=rank, seconds=1e-3, elements=1001, layers=3)
        model = compute.model()
        assert isinstance(model, SleepingModel)
        return model, compute

    models = [built(rank) for rank in (0, 1)]
    starts = [torch.cat([it.detach() for it in model.parameters()]) for model, _ in models]
    assert torch.equal(*starts) and starts[0].numel() == 1001
    assert parameter_count(models[0][0].blocks) == 1001  # all of them are in layers
    gradients = []
    for model, compute in models:
        loss = compute.loss(model(TOKENS), TOKENS)
        (loss / 4).backward()  # as a strategy that accumulates four steps does
        gradients.append(torch.cat([it.grad for it in model.parameters() if it.grad is not None]))
        targets = torch.cat([target for block in model.blocks for target in block._targets])
        assert torch.allclose(gradients[-1], (starts[0] - targets) / 4, atol=1e-6)
        parts = itertools.pairwise([0, 334, 668, 1001])
        means = [0.5 * (starts[0] - targets)[a:b].square().mean() for a, b in parts]
        assert loss.item() == pytest.approx(float(sum(means)) / 3, rel=1e-4)
    assert not torch.equal(*gradients)


def test_the_paced_model_is_the_real_one() -> None:
    """Same parameters, outputs and gradients as without deadlines, bit for bit."""
    found = []
    for message in (None, {"seconds": 1e-3, "real": True}):
        torch.manual_seed(5)
        compute = Compute.from_message(message, rank=0, seed=0, shape=SHAPE)
        model = compute.model()
        assert isinstance(model, GPT)
        compute.begin(1)
        found.append([train(compute, model), *(it.grad for it in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    "message", [{"seconds": 0.0}, {"seconds": 1.0, "layers": 4, "elements": 3}, {"seconds": "x"}, {}]
)
def test_impossible_messages(message: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError)):
        made(**message)


def _shares(rank: int) -> tuple[list[int], list[float]]:
    """Buckets of a declared model, and when each was ready in the step."""
    torch.manual_seed(0)
    compute = made(rank=rank, seconds=0.06, elements=24_000, layers=6)
    context = Context.of_default_group("ab"[rank % 2])
    context.loss, context.compute, context.steps = compute.loss, compute, 9
    strategy = make("ddp", {"buckets": 12})
    strategy.prepare(compute.model(), context)
    sizes, ready = list[int](), list[float]()

    gradients: Any = strategy._gradients  # type: ignore[attr-defined]
    reduce: Reduce = gradients.reduce

    def noted(bucket: torch.Tensor) -> Reduced:
        sizes.append(bucket.numel())
        ready.append(time.monotonic() - began)
        return reduce(bucket)

    gradients.reduce = noted
    for step in range(1, 4):
        context.begin(step)
        sizes.clear()
        ready.clear()
        began = time.monotonic()
        compute.begin(step)
        strategy.run(TOKENS, TOKENS)
    return sizes, ready


def test_buckets_are_ready_layer_by_layer() -> None:
    """Twelve buckets for twelve, below the least size of others; two after each layer of the backward pass, 40 ms."""
    for sizes, ready in run(2, _shares):
        assert sizes == [2000] * 12
        for index, t in enumerate(ready):
            due_s = 0.02 + 0.04 * (index // 2 + 1) / 6
            assert t >= due_s * (1 - under_test.MOST_LEARNED)


ASLEEP = sorted(name for name, twin in BUILT.items() if twin.asleep)


def _train_asleep(rank: int) -> dict[str, tuple[float, float]]:
    """Loss of the first and the last of 8 steps by each strategy that can, 2 sites of 2 ranks."""
    found = {}
    for name in ASLEEP:
        torch.manual_seed(0)
        compute = made(rank=rank, seconds=2e-3, elements=4001, layers=4)
        context = Context.of_default_group("aabb"[rank])
        context.loss, context.compute, context.steps = compute.loss, compute, 8
        options = {option.argument: option.default for option in BUILT[name].options}
        if "every" in options:
            options["every"] = 4
        try:
            strategy = make(name, options)
            parameters = strategy.prepare(compute.model(), context)
        except ValueError as error:  # a package that is not installed, or too old a torch
            assert f"strategy {name} needs " in str(error) or "expected torch 2.8 or newer" in str(error)
            continue
        optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        losses = []
        for step in range(1, 9):
            context.begin(step)
            compute.begin(step)
            loss = strategy.run(TOKENS, TOKENS)
            compute.end(0.0, context.ready_t, context.ready_t, time.monotonic())
            losses.append(float("nan") if loss is None else float(loss))
            if strategy.updates(step):
                optimizer.step()
                optimizer.zero_grad()
            strategy.after_step(step)
        strategy.finish(8)
        found[name] = (losses[0], losses[-1])
    return found


def test_every_strategy_trains_the_sleeping_model() -> None:
    by_rank = run(4, _train_asleep)
    refused = 1 if torch.__version__ >= "2.8" else 3  # torchft-diloco, where torchft is not installed; fsdp and hsdp
    assert len(by_rank[0]) >= len(ASLEEP) - refused
    for name in by_rank[0]:
        known = [losses for losses in (found[name] for found in by_rank) if losses[0] == losses[0]]
        assert known, name  # not NaN on every rank
        first, last = (sum(it) / len(known) for it in zip(*known, strict=True))
        assert last < first, name
