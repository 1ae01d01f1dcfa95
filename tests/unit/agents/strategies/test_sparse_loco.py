"""sparse-loco over loopback, against a reference in one process, and against its twin."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from builders import loopback_ranks, replica_jobs  # noqa: E402
from oracles import replica_reference  # noqa: E402
from testbed_agents import evidence, failpoints  # noqa: E402
from testbed_agents.groups import Groups  # noqa: E402
from testbed_agents.operation_log import crc32  # noqa: E402
from testbed_agents.strategies.sparse_loco import SparseLoco  # noqa: E402

from testbed.core.training.layout import Layout, Tensor  # noqa: E402
from testbed.core.training.sparse_loco import SparseLoco as Twin  # noqa: E402

SITES = {"two": ("a", "a", "a", "b", "b"), "three": ("a", "b", "c")}
"""Rank 2 has no slice: site b has none for it."""

OPTIONS = {"every": 4, "top": 512}
STEPS, RATE, KILLED = 13, 0.05, 5


class Told(evidence.Evidence):
    """Keeps what a strategy tells of its exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.exchanges: list[dict[str, Any]] = []

    def encoded(self, what: str, **told: Any) -> None:
        count = told["inputs"].numel()
        bound = told.pop("bound")(torch.arange(count))
        copies = {name: it.clone() if isinstance(it, torch.Tensor) else it for name, it in told.items()}
        self.exchanges.append({"what": what, "bound": bound, **copies})


def _job(rank: int, sites: tuple[str, ...]) -> dict[str, Any]:
    groups = Groups(rank, sites)
    strategy = SparseLoco(**OPTIONS)
    told = Told()
    evidence.install(told)
    job = replica_jobs.Job(groups, strategy, STEPS, RATE)
    trace: list[tuple[int, dict[str, str]]] = []

    def note(step: int) -> None:
        trace.append((strategy.outer_version, {name: crc32(it) for name, it in strategy.fingerprints().items()}))

    job.run(KILLED, note)
    saved = job.saved()
    job.run(after=note)
    evidence.install(None)
    restored = replica_jobs.Job(groups, SparseLoco(**OPTIONS), STEPS, RATE).load(saved).run()
    outer = torch.cat([it.reshape(-1) for it in strategy.outer_parameters()])
    return {
        "outer": outer,
        "parameters": job.parameters(),
        "residual": strategy.residual,
        "told": told.exchanges,
        "dropped": _dropped(groups),
        "trace": trace,
        "saved": job.saved(),
        "restored": restored.saved(),
    }


def _dropped(groups: Groups) -> torch.Tensor:
    """Return the residual after an exchange that drops it."""
    failpoints.plant(lambda name: name == "dropped-residual")
    strategy = SparseLoco(**OPTIONS)
    replica_jobs.Job(groups, strategy, OPTIONS["every"], RATE).run()
    failpoints.plant(None)
    return strategy.residual


@pytest.fixture(scope="module")
def jobs() -> dict[str, list[dict[str, Any]]]:
    return {name: loopback_ranks.run(len(sites), _job, sites) for name, sites in SITES.items()}


def test_sites_train_as_the_reference(jobs: dict[str, list[dict[str, Any]]]) -> None:
    for name, ranks in (("two", ((0, 1, 2), (3, 4))), ("three", ((0,), (1,), (2,)))):
        outer, residuals = replica_reference.sparse(
            ranks, STEPS, every=OPTIONS["every"], keep=OPTIONS["top"], rate=RATE
        )
        for rank in jobs[name]:
            assert torch.equal(rank["outer"], jobs[name][0]["outer"])
            assert torch.equal(rank["outer"], rank["parameters"])
            assert replica_jobs.distance(rank["outer"], outer) < 1e-3
        for members, residual in zip(ranks, residuals, strict=True):
            own = torch.cat([jobs[name][rank]["residual"] for rank in members])[: len(residual)]
            assert replica_jobs.distance(own, residual) < 1e-3
    untrained = torch.cat([it.detach().reshape(-1) for it in replica_jobs.tiny().parameters()])
    assert replica_jobs.distance(outer, untrained) > 0.05


def test_what_was_not_transmitted_is_kept_back(jobs: dict[str, list[dict[str, Any]]]) -> None:
    for name, mates in (("two", (0, 3)), ("two", (1, 4)), ("three", (0, 1, 2))):
        for exchanges in zip(*(jobs[name][rank]["told"] for rank in mates), strict=True):
            assert all(it["ranks"] == mates for it in exchanges)
            for index, told in enumerate(exchanges):
                own = told["decoded"][told["own"]]
                assert told["own"] == index
                assert torch.equal(told["residual"], told["inputs"] - own)
                assert torch.equal(told["inputs"], 0.95 * told["before"] + told["added"])
                assert ((told["inputs"] - own).abs() <= told["bound"]).all()
                # An eighth of the values is sent.
                assert own.count_nonzero() == math.ceil(len(own) / 8)
                # All decode the same, and add it in the same order.
                assert all(map(torch.equal, told["decoded"], exchanges[0]["decoded"]))
                assert torch.equal(told["total"], exchanges[0]["total"])
        for before, after in itertools.pairwise(jobs[name][mates[0]]["told"]):
            assert torch.equal(before["residual"], after["before"])
            assert after["before"].any()
    assert not jobs["two"][2]["told"]  # it has no slice
    assert not any(rank["dropped"].any() for rank in jobs["two"])


def test_equal_and_counted_as_the_twin_says(jobs: dict[str, list[dict[str, Any]]]) -> None:
    for name, sites in SITES.items():
        tensors = [Tensor(key, it.numel()) for key, it in replica_jobs.tiny().named_parameters()]
        twin = Twin(OPTIONS, Layout(sites, tuple(tensors), steps=STEPS))
        for step, rows in enumerate(zip(*(rank["trace"] for rank in jobs[name]), strict=True), 1):
            assert {version for version, _ in rows} == {twin.outer_updates(step)}
            for equal in twin.equal(step):
                assert len({rows[rank][1][equal.name] for rank in equal.ranks}) == 1, (step, equal)
        assert jobs[name][0]["trace"][0][1]["parameters"] != jobs[name][-1]["trace"][0][1]["parameters"]


def test_a_killed_job_ends_as_an_undisturbed_one(jobs: dict[str, list[dict[str, Any]]]) -> None:
    for rank in itertools.chain(*jobs.values()):
        for name in ("parameters", "moments"):
            assert all(map(torch.equal, rank["saved"][name], rank["restored"][name]))
        assert rank["saved"]["strategy"].keys() == rank["restored"]["strategy"].keys() >= {"residual"}
        for name, value in rank["saved"]["strategy"].items():
            assert torch.equal(value, rank["restored"]["strategy"][name]), name
