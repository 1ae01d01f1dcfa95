"""streaming-diloco over loopback, against a reference in one process, and against its twin."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from builders import loopback_ranks, replica_jobs
from builders.replica_jobs import Job, bits, check_steps, distance, twin_of
from oracles import replica_reference
from testbed_agents.exchange.fragments import Schedule, cut
from testbed_agents.groups import Groups

TWO = ("a", "a", "b", "b")
THREE = ("a", "b", "c")
STEPS = 13
STREAMING = "streaming-diloco"
CASES: dict[str, dict[str, Any]] = {
    "overlapping": {"every": 5, "fragments": 4, "overlap": 3, "alpha": 0.25, "outer_momentum": 0.9},
    "four bits": {"every": 4, "fragments": 2, "overlap": 1, "alpha": 0.5, "bits": 4},
    "waiting": {"every": 4, "fragments": 2, "overlap": 0, "alpha": 0.5, "bits": 8},
    "stochastic": {"every": 6, "fragments": 2, "overlap": 4, "alpha": 0.5, "bits": 4, "rounding": "stochastic"},
}
SITES = {TWO: tuple(CASES), THREE: ("overlapping", "four bits")}
REPLICAS = {TWO: ((0, 1), (2, 3)), THREE: ((0,), (1,), (2,))}
KILLED = {"overlapping": 8, "stochastic": 7}
SAME = {"every": 5, "outer_momentum": 0.9}


def _make(groups: Groups, job: tuple[str, dict[str, Any]], seed: int) -> Job:
    return Job(groups, *job, STEPS, seed=seed)


def _train(rank: int, sites: tuple[str, ...]) -> dict[str, Any]:
    """Return the result of each case; of those that are killed, what is saved at the end of both jobs as well."""
    groups = Groups(rank, sites)
    jobs = {name: (STREAMING, CASES[name]) for name in SITES[sites]}
    if sites == TWO:
        jobs["diloco"] = ("diloco", SAME)
        jobs["as diloco"] = (STREAMING, {**SAME, "fragments": 1, "overlap": 0, "alpha": 0.0})
    results: dict[str, Any] = {}
    for name, job in jobs.items():
        make = functools.partial(_make, groups, job)
        if name not in KILLED or sites != TWO:
            results[name] = make(0).run().result()
            continue
        whole, again = replica_jobs.interrupted(make, KILLED[name])
        taken = [values for key, values in again.loaded["strategy"].items() if key.endswith("taken")]
        flying = sum(int(step) > 0 for step in taken)
        results[name] = whole.result()
        results[f"{name}, killed"] = bits(whole.saved()), bits(again.saved()), flying
    return results


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Results by sites, rank, and case."""
    return {sites: loopback_ranks.run(len(sites), _train, sites) for sites in SITES}


@pytest.mark.parametrize("case", ["overlapping", "four bits"])
@pytest.mark.parametrize("sites", SITES, ids=len)
def test_sites_train_as_the_reference(trained: Any, sites: tuple[str, ...], case: str) -> None:
    options = CASES[case]
    _, outer = replica_reference.streaming(
        REPLICAS[sites],
        STEPS,
        every=options["every"],
        count=options["fragments"],
        overlap=options["overlap"],
        alpha=options["alpha"],
        quantize=replica_reference.e3m0 if "bits" in options else list,
        momentum=options.get("outer_momentum", 0.5),
        rate=0.05,
    )
    for rank in trained[sites]:
        assert torch.equal(rank[case].parameters, trained[sites][0][case].parameters)
        assert torch.equal(rank[case].outer, rank[case].parameters)  # a job ends with an exchange
        # With four bits, a value between two levels may be rounded to the other one.
        assert distance(rank[case].outer, outer) < (1e-3 if "bits" in options else 1e-5)
    # Training moved the parameters by far more than that.
    assert distance(outer, replica_jobs.vector(replica_jobs.tiny().parameters())) > 0.1


def test_one_fragment_that_is_waited_for_is_diloco(trained: Any) -> None:
    for rank in trained[TWO]:
        assert distance(rank["as diloco"].parameters, rank["diloco"].parameters) < 1e-6


def test_outer_parameters_are_equal_after_each_exchange_as_the_twin_says(trained: Any) -> None:
    for sites, names in SITES.items():
        for name in names:
            traces = [rank[name].trace for rank in trained[sites]]
            check_steps(twin_of(STREAMING, CASES[name], replica_jobs.layout(sites, STEPS)), traces)
            # Sites differ between exchanges, or the comparison says nothing.
            assert _differ(traces[0][:-1], traces[-1][:-1]), name


def _differ(trace: Sequence[replica_jobs.Step], other: Sequence[replica_jobs.Step]) -> bool:
    pairs = zip(trace, other, strict=True)
    return any(mine.fingerprints["parameters"] != theirs.fingerprints["parameters"] for mine, theirs in pairs)


def test_a_killed_job_ends_as_an_undisturbed_one(trained: Any) -> None:
    for rank in trained[TWO]:
        for case in KILLED:
            undisturbed, restored, flying = rank[f"{case}, killed"]
            assert flying >= 1 + (case == "overlapping"), "nothing on its way"
            assert undisturbed == restored, case


def test_fragments_have_every_tensor_once() -> None:
    sizes = {name: values.numel() for name, values in replica_jobs.tiny().named_parameters()}
    named = [(name, name) for name in sizes]
    for count in (1, 2, 3, 4):
        fragments = cut(named, count)
        assert sorted(itertools.chain(*fragments)) == sorted(sizes)
        assert fragments == replica_reference.fragments(count)
        twin: Any = twin_of(STREAMING, {"fragments": count}, replica_jobs.layout(TWO, STEPS))
        elements = [sum(sizes[name] for name in fragment) for fragment in fragments]
        assert elements == [fragment.elements for fragment in twin.fragments]
    with pytest.raises(ValueError, match="at most 4 fragments"):
        cut(named, 5)
    # The planted bug: the tied weights are in a second fragment.
    assert [fragment.count("embedding.weight") for fragment in cut(named, 2, tied_twice=True)] == [1, 1]


def test_schedule_has_each_fragment_once_in_h_steps() -> None:
    for every, count in itertools.product(range(1, 14), range(1, 9)):
        schedule = Schedule(every, count, 0)
        due = [schedule.due(step) for step in range(1, 5 * every + 1)]
        for fragment in range(count):
            times = [step for step, fragments in enumerate(due, 1) if fragment in fragments]
            assert [after - before for before, after in itertools.pairwise(times)] == [every] * 4
    assert [Schedule(50, 4, 1).due(step) for step in (13, 25, 38, 50, 51)] == [[1], [2], [3], [0], []]
    with pytest.raises(ValueError, match="expected every > overlap"):
        Schedule(5, 2, 5)
    assert not Schedule(50, 4, 11).overlapping
    assert Schedule(50, 4, 12).overlapping  # 13 to 25, and at 25 the next one begins
