"""Every strategy does what its pure twin says: which tensors are equal on which ranks after which step, and counts."""

from __future__ import annotations

import functools

import pytest
import torch
from builders import loopback_ranks
from builders.replica_jobs import Result, check_steps, twin_of
from testbed_agents import strategies
from testbed_agents.process_groups.groups import Groups
from trained import BATCH, SHAPE, Case, interrupt, train

from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, gpt_tensors

CASES = (
    Case("ddp"),
    Case("ddp", {"accumulate": 3, "bits": 16}),
    Case("hierarchical"),
    Case("local-sgd", {"every": 3}),
    Case("diloco", {"every": 3}),
    Case("diloco", {"every": 4, "replica": "rank"}),
    Case("streaming-diloco", {"every": 4, "fragments": 3, "overlap": 2, "bits": 8}),
    Case("sparse-loco", {"every": 3}),
    Case("multi-tier", {"every": 2, "every_regions": 6}),
    Case("diloco", {"every": 3, "pace": "time", "weigh": "tokens"}, speeds={"west": 0.4, "a": 0.4}),
    Case("multi-tier", {"every": 3, "every_regions": 6}, steps=9),
)
SITES = {
    "two sites of two": ("west", "west", "east", "east"),
    "three sites": ("a", "b", "c"),
    "unequal sites": ("west", "west", "east"),
}


TWO = SITES["two sites of two"]
RESTORED = [number for number, case in enumerate(CASES) if case.options.get("accumulate") != 3]
"""Accumulated gradients are no part of a checkpoint: it is taken after an update."""


def _train(rank: int, sites: tuple[str, ...]) -> list[tuple[Result, ...]]:
    """Return the result of each case; at two sites of two, also that of a job that is restored from a checkpoint."""
    groups = Groups(rank, sites)
    return [
        interrupt(groups, case, after=4) if sites == TWO and number in RESTORED else tuple(train(groups, [case]))
        for number, case in enumerate(CASES)
    ]


@functools.cache
def trained(sites: tuple[str, ...]) -> list[list[tuple[Result, ...]]]:
    """Return the results by rank and case."""
    return loopback_ranks.run(len(sites), _train, sites)


@pytest.mark.parametrize("sites", SITES.values(), ids=SITES)
def test_what_the_twin_says_of_each_step_is_so(sites: tuple[str, ...]) -> None:
    tensors = gpt_tensors(SHAPE.layers, SHAPE.width, SHAPE.context)
    shape = (BATCH * SHAPE.context, SHAPE.context, SHAPE.width, SHAPE.layers)
    for case, *ranks in zip(CASES, *trained(sites), strict=True):
        layout = Layout(sites, tensors, *shape, case.steps, speeds=case.speeds)
        twin = twin_of(case.strategy, case.options, layout)
        assert check_steps(twin, [whole.trace for whole, *_ in ranks]) >= 1, case
        for number, (whole, *_) in enumerate(ranks):
            assert [step.updates for step in whole.trace] == [
                twin.updates(step, number) for step in range(1, case.steps + 1)
            ], case
        parameters = {whole.trace[-1].fingerprints["parameters"] for whole, *_ in ranks}
        assert len(parameters) == 1, "a job ends with an exchange"
        assert twin.committed(case.steps) == case.steps
        counts = [twin.committed(step) for step in range(case.steps + 1)]
        assert counts == sorted(counts) and counts[0] == 0


def test_restored_from_a_checkpoint_a_job_ends_with_the_same_bits() -> None:
    """Between two exchanges, with fragments on their way and gradients that are kept back."""
    for rank in trained(TWO):
        for whole, again in (rank[number] for number in RESTORED):
            assert torch.equal(whole.parameters, again.parameters)


def test_both_sides_know_the_same_strategies() -> None:
    assert set(strategies.names()) == set(strategies_built.BUILT)
    for name, twin in strategies_built.BUILT.items():
        assert twin.name == name and twin.summary and twin.options is not None
        options = {option.argument: option.default for option in twin.options}
        if name in ("fsdp", "hsdp") and torch.__version__ < "2.8":
            with pytest.raises(ValueError, match=f"strategy {name} cannot be imported: expected torch 2.8 or newer"):
                strategies.make(name, options)
        else:
            assert strategies.make(name, options) is not None
