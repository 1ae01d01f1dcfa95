"""The ring and torch's gloo give every rank the right answer, for every operation, type and odd size."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from builders import loopback_ranks
from builders.forked_program import ForkedProgram
from builders.rank_programs import FLOATS_AND_INTEGERS, Ranks, decoded, element, expected, slack, started, vector

TYPES = FLOATS_AND_INTEGERS
COUNTS = (0, 1, 2, 7, 61)
REDUCTIONS = ("sum", "max", "avg")
ROOT, TO = 1, 2
OLD = torch.__version__ < "2.8"
"""Whether gloo takes no means."""


@pytest.fixture(scope="module", params=["ring", "torch_gloo"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    size = 4 if request.param == "ring" else 3
    folder = tmp_path_factory.mktemp(request.param)
    popen = subprocess.Popen if request.param == "ring" else ForkedProgram  # torch is imported here already
    with started(["-m", f"testbed_agents.adapters.{request.param}"], size, folder, popen) as ranks:
        for answer in ranks.join():
            assert "error" not in answer, answer
        yield ranks


@functools.cache
def scatters_sums() -> bool:
    """Return whether gloo's reduce_scatter takes sums in place of maxima, as that of torch 2.4 to 2.8 does."""
    return loopback_ranks.run(2, _scattered_maximum) != [2.0, 2.0]


def _scattered_maximum(rank: int) -> float:
    output = torch.empty(1)
    dist.reduce_scatter_tensor(output, torch.full((2,), rank + 1.0), dist.ReduceOp.MAX)
    return output.item()


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("do", ["all_reduce", "reduce", "reduce_scatter"])
def test_a_reduction_is_right_on_every_rank(
    ranks: Ranks, do: str, element_type: str, request: pytest.FixtureRequest
) -> None:
    gloo = request.node.callspec.params["ranks"] == "torch_gloo"
    for reduction in REDUCTIONS:
        if gloo and do == "reduce_scatter" and (reduction == "max" or (reduction == "avg" and OLD)) and scatters_sums():
            continue
        for count in COUNTS:
            call, answers = ranks.call(do, type=element_type, count=count, reduction=reduction, root=ROOT)
            for rank, answer in enumerate(answers):
                case = (do, element_type, reduction, count, rank, answer)
                if reduction == "avg" and (
                    element_type.startswith("int") or (gloo and OLD and "unsupported" in answer)
                ):
                    assert "unsupported" in answer, case
                    continue
                right = expected(do, rank, call, element_type, count, ranks.size, reduction, ROOT)
                assert ("output" in answer) == (right is not None), case
                if right is not None:
                    got = decoded(element_type, ranks.output(answer))
                    assert got.shape == right.shape, case
                    exact = reduction == "max"
                    bound = 0.0 if exact else slack(element_type, ranks.size)
                    assert np.max(np.abs(got - right), initial=0) <= bound, case


@pytest.mark.parametrize("element_type", TYPES)
@pytest.mark.parametrize("do", ["all_gather", "broadcast", "all_to_all", "send"])
def test_what_is_moved_arrives_bit_by_bit(ranks: Ranks, do: str, element_type: str) -> None:
    for count in COUNTS:
        call, answers = ranks.call(do, type=element_type, count=count, root=ROOT, to=TO)
        for rank, answer in enumerate(answers):
            right = expected(do, rank, call, element_type, count, ranks.size, root=ROOT, to=TO)
            assert ("output" in answer) == (right is not None), (do, rank, answer)
            if right is not None:
                assert np.array_equal(decoded(element_type, ranks.output(answer)), right), (do, rank, count)


@pytest.mark.parametrize("do", ["all_reduce", "broadcast", "reduce"])
def test_a_large_odd_vector_is_right_wherever_one_looks(ranks: Ranks, do: str) -> None:
    count = (1 << 18) + 3  # more than a segment of the ring's chains, and than a chunk of the input
    call, answers = ranks.call(do, type="int32", count=count, root=ROOT)
    places = [*np.random.default_rng(7).integers(0, count, 40), 0, 65535, 65536, count - 1]
    for answer in answers:
        if "output" not in answer:
            assert do == "reduce"
            continue
        got = decoded("int32", ranks.output(answer))
        assert got.size == count
        for place in map(int, places):
            parts = [element("int32", place, rank, call, 5) for rank in range(ranks.size)]
            assert got[place] == (parts[ROOT] if do == "broadcast" else sum(parts)), (do, place)


def test_all_reduce_gives_all_ranks_the_same_bits_as_it_promises(ranks: Ranks) -> None:
    _, answers = ranks.call("all_reduce", type="float32", count=1009)
    assert len({ranks.output(answer) for answer in answers}) == 1


def test_groups_work_side_by_side_and_have_ranks_of_their_own(ranks: Ranks) -> None:
    last = ranks.size - 1
    ranks.ask({"do": "group", "group": "low", "ranks": [0, 1]})
    ranks.ask({"do": "group", "group": "high", "ranks": [2, 3] if ranks.size == 4 else [2]})
    low, first = ranks.call("all_gather", ranks=[0, 1], group="low", type="int64", count=3)
    assert np.array_equal(
        decoded("int64", ranks.output(first[1])), np.concatenate([vector("int64", 3, rank, low) for rank in (0, 1)])
    )
    high, second = ranks.call("broadcast", ranks=list(range(2, last + 1)), group="high", type="int64", count=3)
    assert np.array_equal(decoded("int64", ranks.output(second[-1])), vector("int64", 3, 0, high))


def test_nobody_leaves_a_barrier_before_the_last_has_come(ranks: Ranks) -> None:
    _, answers = ranks.call("barrier")
    assert max(it["began"] for it in answers) <= min(it["ended"] for it in answers)


def test_a_call_begins_at_its_time_on_all_ranks(ranks: Ranks) -> None:
    at = time.monotonic() + 0.3
    _, answers = ranks.call("all_reduce", type="float32", count=5, at=at)
    assert all(it["began"] >= at for it in answers)
    assert min(it["began"] for it in answers) - at < 0.1


def test_after_a_rank_was_killed_the_others_err_in_time_and_all_can_begin_anew(ranks: Ranks) -> None:
    """The last test of the module: it leaves a second communicator."""
    timeout_s = 5.0
    ranks.join(timeout_s)
    victim = ranks.size - 1
    ranks.ranks[victim].kill()
    _, answers = ranks.call("all_reduce", ranks=list(range(victim)), type="int32", count=1000)
    for answer in answers:
        assert "error" in answer and answer["ended"] - answer["began"] < 3 * timeout_s, answer
    ranks.restart(victim)
    for answer in ranks.join():
        assert "error" not in answer, answer
    call, answers = ranks.call("all_reduce", type="int32", count=61)
    right = expected("all_reduce", 0, call, "int32", 61, ranks.size)
    for answer in answers:
        assert np.array_equal(decoded("int32", ranks.output(answer)), right)
