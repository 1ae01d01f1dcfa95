"""Every strategy does what its pure twin says: which tensors are equal on which ranks after which step, and counts."""

from __future__ import annotations

import pytest
import torch
from builders import loopback_ranks
from trained import BATCH, SHAPE, Case, train, train_interrupted

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


def _layout(sites: tuple[str, ...], case: Case) -> Layout:
    tensors = gpt_tensors(SHAPE.layers, SHAPE.width, SHAPE.context)
    return Layout(
        sites, tensors, BATCH * SHAPE.context, SHAPE.context, SHAPE.width, SHAPE.layers, case.steps, speeds=case.speeds
    )


def _all(rank: int, cases: tuple[Case, ...], sites: tuple[str, ...]) -> list[object]:
    return [train(rank, case, sites) for case in cases]


@pytest.mark.parametrize("sites", SITES.values(), ids=SITES)
def test_what_the_twin_says_of_each_step_is_so(sites: tuple[str, ...]) -> None:
    found = loopback_ranks.run(len(sites), _all, CASES, sites)
    for number, case in enumerate(CASES):
        options = {it.name: case.options[it.argument] for it in _options(case) if it.argument in case.options}
        twin = strategies_built.make(case.strategy, options, _layout(sites, case))
        of = [rank[number] for rank in found]
        compared = 0
        for step in range(1, case.steps + 1):
            for equal in twin.equal(step):
                values = {of[rank].fingerprints[step - 1][equal.name] for rank in equal.ranks}
                assert len(values) == 1, f"{case}: {equal} after step {step}"
                compared += len(equal.ranks) > 1
            for rank, it in enumerate(of):
                assert it.updates[step - 1] == twin.updates(step, rank), case
            if twin.outer_updates(case.steps):
                assert {it.outer_versions[step - 1] for it in of} == {twin.outer_updates(step)}, case
        assert compared >= 1, case
        everyone = {rank.fingerprints[-1]["parameters"] for rank in of}
        assert len(everyone) == 1, "a job ends with an exchange"
        assert twin.committed(case.steps) == case.steps
        counts = [twin.committed(step) for step in range(case.steps + 1)]
        assert counts == sorted(counts) and counts[0] == 0


def _restored(rank: int, cases: tuple[Case, ...], sites: tuple[str, ...]) -> list[tuple[int, int]]:
    return [train_interrupted(rank, case, sites, at=4) for case in cases]


def test_restored_from_a_checkpoint_a_job_ends_with_the_same_bits() -> None:
    """Between two exchanges, with fragments on their way and gradients that are kept back. Accumulated gradients are
    no part of a checkpoint: it is taken after an update."""
    cases = tuple(it for it in CASES if it.options.get("accumulate") != 3)
    for rank in loopback_ranks.run(4, _restored, cases, SITES["two sites of two"]):
        assert [whole for whole, _ in rank] == [again for _, again in rank]


def _options(case: Case) -> tuple[strategies_built.Option, ...]:
    return strategies_built.twin_class(case.strategy).options


def test_both_sides_know_the_same_strategies() -> None:
    from testbed_agents import strategies

    assert set(strategies._FILES) == set(strategies_built.BUILT)
    for name, twin in strategies_built.BUILT.items():
        assert twin.name == name and twin.summary and twin.options is not None
        options = {option.argument: option.default for option in twin.options}
        if name in ("fsdp", "hsdp") and torch.__version__ < "2.8":
            with pytest.raises(ValueError, match=f"strategy {name} cannot be imported: expected torch 2.8 or newer"):
                strategies.make(name, options)
        else:
            assert strategies.make(name, options) is not None
