"""sparse-loco over loopback, against a reference in one process, and against its twin."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import loopback_ranks  # noqa: E402
import replica_jobs  # noqa: E402
import replica_reference  # noqa: E402
from testbed_agents.check_log import crc32  # noqa: E402
from testbed_agents.groups import Groups  # noqa: E402
from testbed_agents.strategies.sparse_loco import SparseLoco  # noqa: E402

from testbed.core.training.layout import Layout, Tensor  # noqa: E402
from testbed.core.training.sparse_loco import SparseLoco as Twin  # noqa: E402

SITES = {"two": ("a", "a", "a", "b", "b"), "three": ("a", "b", "c")}
"""Rank 2 has no slice: site b has none for it."""

OPTIONS = {"every": 4, "top": 512}
STEPS, RATE, KILLED = 13, 0.05, 5


class Observed(SparseLoco):
    """Notes what each exchange had, transmitted and kept back."""

    noted: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]

    def combine(self, local: torch.Tensor) -> None:
        before, outer = self.residual.clone(), self.outer.values.clone()
        super().combine(local)
        self.noted.append((before, outer - local, outer - self.outer.values, self.residual.clone()))


def _job(rank: int, sites: tuple[str, ...]) -> dict[str, Any]:
    groups = Groups(rank, sites)
    strategy = Observed(**OPTIONS)
    strategy.noted = []
    job = replica_jobs.Job(groups, strategy, STEPS, RATE)
    trace: list[tuple[int, dict[str, str]]] = []

    def note(step: int) -> None:
        trace.append((strategy.outer_version, {name: crc32(it) for name, it in strategy.fingerprints().items()}))

    job.run(KILLED, note)
    saved = job.saved()
    job.run(after=note)
    restored = replica_jobs.Job(groups, SparseLoco(**OPTIONS), STEPS, RATE).load(saved).run()
    outer = torch.cat([it.reshape(-1) for it in strategy.outer_parameters()])
    return {
        "outer": outer,
        "parameters": job.parameters(),
        "residual": strategy.residual,
        "noted": strategy.noted,
        "trace": trace,
        "saved": job.saved(),
        "restored": restored.saved(),
    }


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
    """Of all sites together: mean residual = mean (0.95 e + delta) - what the outer parameters moved by."""
    for mates in ((0, 3), (1, 4)):  # two sites exchange each slice
        for noted in zip(*(jobs["two"][rank]["noted"] for rank in mates), strict=True):
            accumulated = sum(0.95 * before + delta for before, delta, _, _ in noted) / 2
            kept = sum(residual for _, _, _, residual in noted) / 2
            moved = noted[0][2]
            assert (accumulated - moved - kept).abs().max() < 1e-6
            # An eighth of the values is sent, from each site.
            sent = [((0.95 * before + delta) != residual).sum() for before, delta, _, residual in noted]
            assert all(0.05 * len(moved) < it <= 0.13 * len(moved) for it in sent)
            assert kept.any()


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
