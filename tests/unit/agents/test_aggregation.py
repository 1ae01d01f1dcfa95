"""The sum of replicas at one site: in the order of sites, the same bits on all, as the twin says of its messages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from builders import loopback_ranks
from builders.replica_jobs import Job
from testbed_agents.exchange.sums import begin_sum, rank_at
from testbed_agents.groups import Groups

from testbed.core.training import strategies_built
from testbed.core.training.layout import Layout, Tensor

SITES = ("west", "mid", "east")
PAIRS = ("west", "west", "mid", "mid", "east", "east")
ELEMENTS = 7


def _values(rank: int, turn: int) -> torch.Tensor:
    """Values of which every order of adding gives other bits."""
    return torch.randn(1000, generator=torch.Generator().manual_seed(100 * turn + rank)) * 10.0 ** (rank % 3)


def _train(groups: Groups, name: str, options: dict[str, Any]) -> torch.Tensor:
    return Job(groups, name, options, 4, rate=0.1).run().result().parameters


def _on_a_rank(rank: int) -> dict[str, Any]:
    groups = Groups(rank, SITES)
    ranks = (0, 1, 2)
    group = groups.new(ranks, "tested")
    found: dict[str, Any] = {}
    at = rank_at("mid", SITES, ranks)
    assert at == 1 and rank_at("", SITES, ranks) is None
    begun = [begin_sum(_values(rank, turn), group, ranks, at) for turn in range(3)]
    found["three at once"] = [it.wait() for it in begun]
    dist.barrier()
    found["alone"] = begin_sum(_values(rank, 0), None, (rank,), rank).wait()
    one = {"every": 2, "fragments": 1, "overlap": 1}
    for name, options in (
        ("hierarchical", {}), ("diloco", {"every": 2}), ("local-sgd", {"every": 3}), ("streaming-diloco", one),
    ):  # fmt: skip
        found[name] = _train(groups, name, options)
        found[f"{name} at mid"] = _train(groups, name, {**options, "aggregate_at": "mid"})
    try:
        rank_at("nowhere", SITES, ranks)
    except ValueError as error:
        found["unknown"] = str(error)
    return found


def test_one_site_adds_in_the_order_of_sites_and_all_have_its_bits() -> None:
    found = loopback_ranks.run(len(SITES), _on_a_rank)
    for turn in range(3):
        expected = (_values(0, turn) + _values(1, turn)) + _values(2, turn)
        assert not torch.equal(expected, (_values(2, turn) + _values(1, turn)) + _values(0, turn)), "order must show"
        for rank in range(3):
            assert torch.equal(found[rank]["three at once"][turn], expected)
    assert torch.equal(found[2]["alone"], _values(2, 0))
    for name in ("hierarchical", "diloco", "local-sgd", "streaming-diloco"):
        assert all(torch.equal(it[f"{name} at mid"], found[0][f"{name} at mid"]) for it in found)
        # A ring adds in another order: the same up to rounding, and more than nothing was learned.
        torch.testing.assert_close(found[0][f"{name} at mid"], found[0][name], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[0]["diloco"], found[0]["hierarchical"], atol=1e-4)
    assert "nowhere" in found[0]["unknown"] and "mid" in found[0]["unknown"]


def test_the_twin_says_who_sends_to_whom() -> None:
    tensors = (Tensor("weight", ELEMENTS * ELEMENTS), Tensor("bias", ELEMENTS))
    layout = Layout(PAIRS, tensors, steps=4)
    n = layout.payload_bytes
    for name in ("hierarchical", "diloco", "local-sgd", "streaming-diloco"):
        own = {} if name == "hierarchical" else {"every": 2}
        own |= {"fragments": 1, "overlap": 0} if name == "streaming-diloco" else {}
        twin = strategies_built.make(name, {"aggregate_at": "mid", **own}, layout)
        assert not twin.mistakes()
        across = [it for it in twin.operations(2) if len({PAIRS[rank] for rank in it.ranks}) > 1]
        assert all(it.kind == "send" and it.byte_count == n / 2 for it in across)
        pairs = [it.ranks for it in across]
        # Of both slices: up from the outer sites, then down to them.
        assert pairs == [(0, 2), (4, 2), (2, 0), (2, 4), (1, 3), (5, 3), (3, 1), (3, 5)]
        wrong = strategies_built.make(name, {"aggregate_at": "nowhere", **own}, layout)
        (mistake,) = wrong.mistakes()
        assert mistake.option == "aggregate_at" and "nowhere" in mistake.message and "west" in mistake.message
        unset = strategies_built.make(name, own, layout)
        assert not unset.mistakes()
    coded = {"every": 2, "fragments": 1, "bits": 8, "aggregate_at": "mid"}
    (mistake,) = strategies_built.make("streaming-diloco", coded, layout).mistakes()
    assert mistake.option == "aggregate_at" and "codes of 8 bits are gathered" in mistake.message


def test_the_reason_of_a_failed_exchange_is_told() -> None:
    def failed(rank: int) -> str:
        job = Job(Groups(rank, ("west", "east"), timeout_s=0.3), "hierarchical", {}, 4)
        if rank == 0:  # the other one does not come
            try:
                job.run()
            except RuntimeError as error:
                return str(error)
        return ""

    reason, _ = loopback_ranks.run(2, failed)
    assert "Timed out" in reason and "cast" not in reason, "not why DDP cannot use it"
