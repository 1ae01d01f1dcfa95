"""sparse-loco over loopback, against a reference in one process, and against its twin."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from builders import loopback_ranks, replica_jobs
from builders.replica_jobs import Job, bits, check_steps, distance, twin_of
from oracles import replica_reference
from testbed_agents.evidence import Evidence
from testbed_agents.groups import Groups

SITES = {"two": ("a", "a", "a", "b", "b"), "three": ("a", "b", "c")}
"""Rank 2 has no slice: site b has none for it."""

OPTIONS = {"every": 4, "top": 512}
Jobs = dict[str, list[dict[str, Any]]]
"""What each rank had, by the name of its sites."""
STEPS, RATE, KILLED = 13, 0.05, 5


class Exchanges(Evidence):
    """Keeps what a strategy records of its exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[dict[str, Any]] = []

    def encoded(self, what: str, **fields: Any) -> None:
        fields["bound"] = fields["bound"](torch.arange(fields["inputs"].numel()))
        copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in fields.items()}
        self.exchanges.append({"what": what, **copies})


def _train(rank: int, sites: tuple[str, ...]) -> dict[str, Any]:
    groups, exchanges = Groups(rank, sites), Exchanges()

    def make(seed: int, steps: int = STEPS) -> Job:
        groups.hooks.evidence = Evidence() if seed else exchanges
        return Job(groups, "sparse-loco", OPTIONS, steps, RATE, seed)

    job = make(0)
    saved = job.run(KILLED).saved()
    job.run()
    trained = {"result": job.result(), "saved": bits(job.saved()), "residual": job.strategy.residual}
    restored = make(1).load(saved).run()
    # An exchange that drops the residual.
    groups.hooks.planted = SimpleNamespace(failpoint=lambda name: name == "dropped-residual")  # type: ignore[assignment]
    dropped = make(2, OPTIONS["every"]).run()
    return trained | {
        "exchanges": exchanges.exchanges,
        "restored": bits(restored.saved()),
        "dropped": dropped.strategy.residual,
    }


@pytest.fixture(scope="module")
def jobs() -> Jobs:
    return {name: loopback_ranks.run(len(sites), _train, sites) for name, sites in SITES.items()}


def test_sites_train_as_the_reference(jobs: Jobs) -> None:
    for name, ranks in (("two", ((0, 1, 2), (3, 4))), ("three", ((0,), (1,), (2,)))):
        outer, residuals = replica_reference.sparse(
            ranks, STEPS, every=OPTIONS["every"], keep=OPTIONS["top"], rate=RATE
        )
        for rank in jobs[name]:
            assert torch.equal(rank["result"].outer, jobs[name][0]["result"].outer)
            assert torch.equal(rank["result"].outer, rank["result"].parameters)
            assert distance(rank["result"].outer, outer) < 1e-3
        for members, residual in zip(ranks, residuals, strict=True):
            own = torch.cat([jobs[name][rank]["residual"] for rank in members])[: len(residual)]
            assert distance(own, residual) < 1e-3
    assert distance(outer, replica_jobs.vector(replica_jobs.tiny().parameters())) > 0.05


def test_what_was_not_transmitted_is_kept_back(jobs: Jobs) -> None:
    listed = replica_reference.blocks([it.shape for it in replica_jobs.tiny().parameters()])
    for name, mates, (index, slices) in (
        ("two", (0, 3), (0, 2)),
        ("two", (1, 4), (1, 2)),
        ("three", (0, 1, 2), (0, 1)),
    ):
        parts = replica_reference.parts_of_slices(listed, slices)[index]
        for exchanges in zip(*(jobs[name][rank]["exchanges"] for rank in mates), strict=True):
            for index, exchange in enumerate(exchanges):
                assert exchange["ranks"] == mates
                own = exchange["decoded"][exchange["own"]]
                assert exchange["own"] == index
                assert torch.equal(exchange["residual"], exchange["inputs"] - own)
                assert torch.equal(exchange["inputs"], 0.95 * exchange["before"] + exchange["added"])
                assert ((exchange["inputs"] - own).abs() <= exchange["bound"]).all()
                # An eighth of the values of each block is sent.
                sent = own[: sum(map(len, parts))].split([*map(len, parts)])
                assert [int(block.count_nonzero()) for block in sent] == [math.ceil(len(part) / 8) for part in parts]
                # All decode the same, and add it in the same order.
                assert all(map(torch.equal, exchange["decoded"], exchanges[0]["decoded"]))
                assert torch.equal(exchange["total"], exchanges[0]["total"])
        for before, after in itertools.pairwise(jobs[name][mates[0]]["exchanges"]):
            assert torch.equal(before["residual"], after["before"])
            assert after["before"].any()
    assert not jobs["two"][2]["exchanges"]  # it has no slice
    assert not any(rank["dropped"].any() for rank in jobs["two"])


def test_equal_and_counted_as_the_twin_says(jobs: Jobs) -> None:
    for name, sites in SITES.items():
        traces = [rank["result"].trace for rank in jobs[name]]
        check_steps(twin_of("sparse-loco", OPTIONS, replica_jobs.layout(sites, STEPS)), traces)
        assert traces[0][0].fingerprints["parameters"] != traces[-1][0].fingerprints["parameters"]


def test_a_killed_job_ends_as_an_undisturbed_one(jobs: Jobs) -> None:
    for rank in itertools.chain(*jobs.values()):
        assert rank["saved"] == rank["restored"]
        assert "residual" in rank["saved"]["strategy"]
