"""streaming-diloco over loopback, against a reference in one process, and against its twin."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from builders import loopback_ranks, replica_jobs  # noqa: E402
from oracles import replica_reference  # noqa: E402
from testbed_agents.fragments import Schedule, cut, layer_of  # noqa: E402
from testbed_agents.groups import Groups  # noqa: E402
from testbed_agents.operation_log import crc32  # noqa: E402
from testbed_agents.strategies.diloco import Diloco  # noqa: E402
from testbed_agents.strategies.streaming_diloco import StreamingDiloco  # noqa: E402

from testbed.core.training.layout import Layout, Tensor  # noqa: E402
from testbed.core.training.streaming_diloco import StreamingDiloco as Twin  # noqa: E402

TWO = ("a", "a", "b", "b")
THREE = ("a", "b", "c")
RATE = 0.05
STEPS = 13


CASES: dict[str, dict[str, Any]] = {
    "overlapping": {"every": 5, "fragments": 4, "overlap": 3, "alpha": 0.25, "outer_momentum": 0.9},
    "four bits": {"every": 4, "fragments": 2, "overlap": 1, "alpha": 0.5, "bits": 4},
    "waiting": {"every": 4, "fragments": 2, "overlap": 0, "alpha": 0.5, "bits": 8},
    "stochastic": {"every": 6, "fragments": 2, "overlap": 4, "alpha": 0.5, "bits": 4, "rounding": "stochastic"},
}
KILLED = {"overlapping": 8, "stochastic": 7}


def _train(rank: int, sites: tuple[str, ...], names: Iterable[str]) -> dict[str, Any]:
    """Return the result of each case; of those in KILLED, the bits of an undisturbed and of a restored job as well."""
    groups, results = Groups(rank, sites), dict[str, Any]()
    for name in names:
        strategy, options = CASES[name]
        make = lambda seed: Job(groups, strategy, options, STEPS, RATE, seed)  # noqa: B023, E731
        if name not in KILLED or sites != TWO:
            results[name] = make(0).run().result()
            continue
        job, again = interrupted(make, KILLED[name])
        results[name] = job.result()
        results[f"restored {name}"] = bits(job.saved()), bits(again.saved()), again.flying
    return results


@pytest.fixture(scope="module")
def ranks() -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """Results by sites and rank."""
    return {sites: loopback_ranks.run(len(sites), _train, sites, names) for sites, names in NAMES.items()}


@pytest.mark.parametrize("case", ["overlapping", "four bits"])
def test_two_sites_train_as_the_reference(of_four: list[dict[str, Any]], case: str) -> None:
    _assert_as_the_reference(of_four, ((0, 1), (2, 3)), case)


@pytest.mark.parametrize("case", ["overlapping", "four bits"])
def test_three_sites_train_as_the_reference(of_three: list[dict[str, Any]], case: str) -> None:
    _assert_as_the_reference(of_three, ((0,), (1,), (2,)), case)


def _assert_as_the_reference(ranks: list[dict[str, Any]], sites: tuple[tuple[int, ...], ...], case: str) -> None:
    options = CASES[case]
    _, outer = replica_reference.streaming(
        sites,
        STEPS,
        every=options["every"],
        count=options["fragments"],
        overlap=options["overlap"],
        alpha=options["alpha"],
        quantize=replica_reference.e3m0 if "bits" in options else list,
        momentum=options.get("outer_momentum", 0.5),
        rate=RATE,
    )
    for rank in ranks:
        assert torch.equal(rank[case]["parameters"], ranks[0][case]["parameters"])
        assert torch.equal(rank[case]["outer"], rank[case]["parameters"])  # a job ends with an exchange
        # With four bits, a value between two levels may be rounded to the other one.
        assert replica_jobs.distance(rank[case]["outer"], outer) < (1e-3 if "bits" in options else 1e-5)
    # Training moved the parameters by far more than that.
    untrained = torch.cat([it.detach().reshape(-1) for it in replica_jobs.tiny().parameters()])
    assert replica_jobs.distance(outer, untrained) > 0.1


def test_one_fragment_that_is_waited_for_is_diloco(of_four: list[dict[str, Any]]) -> None:
    for rank in of_four:
        assert replica_jobs.distance(rank["as diloco"]["parameters"], rank["diloco"]["parameters"]) < 1e-6


def test_outer_parameters_are_equal_after_each_exchange_as_the_twin_says(
    of_four: list[dict[str, Any]], of_three: list[dict[str, Any]]
) -> None:
    for ranks, sites in ((of_four, TWO), (of_three, THREE)):
        for case in set(CASES) & set(ranks[0]):
            twin = Twin(_twin_options(CASES[case]), _layout(sites))
            assert not twin.mistakes()
            for step in range(1, STEPS + 1):
                traced = [rank[case]["trace"][step - 1] for rank in ranks]
                assert {version for version, _ in traced} == {twin.outer_updates(step)}, (case, step)
                for equal in twin.equal(step):
                    assert len({traced[rank][1][equal.name] for rank in equal.ranks}) == 1, (case, step, equal)
            # Sites differ between exchanges, or the comparison says nothing.
            assert traced_differ(ranks, case), case


def traced_differ(ranks: list[dict[str, Any]], case: str) -> bool:
    return any(
        ranks[0][case]["trace"][step][1]["parameters"] != ranks[-1][case]["trace"][step][1]["parameters"]
        for step in range(STEPS - 1)
    )


def test_a_killed_job_ends_as_an_undisturbed_one(of_four: list[dict[str, Any]]) -> None:
    for rank in of_four:
        for case in KILLED:
            assert sum(step > 0 for step in rank[case]["flying"]) >= 1 + (case == "overlapping"), "nothing on its way"
            undisturbed, restored = rank[case]["undisturbed"], rank[case]["restored"]
            for name in ("parameters", "moments"):
                for one, other in zip(undisturbed[name], restored[name], strict=True):
                    assert torch.equal(one, other), (case, name)
            for name, value in undisturbed["strategy"].items():
                assert torch.equal(value, restored["strategy"][name]), (case, name)


def _twin_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("outer_", "outer."): value for name, value in options.items()}


def test_fragments_have_every_tensor_once() -> None:
    sizes = {name: it.numel() for name, it in replica_jobs.tiny().named_parameters()}
    named = [(name, name) for name in sizes]
    for count in (1, 2, 3, 4):
        found = cut(named, count)
        assert sorted(itertools.chain(*found)) == sorted(sizes)
        assert found == replica_reference.fragments(count)
        twin = Twin({"fragments": count}, _layout(TWO))
        assert [sum(sizes[name] for name in it) for it in found] == [twin.fragment_elements(p) for p in range(count)]
    with pytest.raises(ValueError, match="at most 4 fragments"):
        cut(named, 5)
    # The planted bug: the tied weights are in a second fragment.
    assert [it.count("embedding.weight") for it in cut(named, 2, tied_twice=True)] == [1, 1]


def test_schedule_has_each_fragment_once_in_h_steps() -> None:
    for every in range(1, 14):
        for count in range(1, 9):
            schedule = Schedule(every, count, 0)
            due = [schedule.due(step) for step in range(1, 5 * every + 1)]
            for fragment in range(count):
                times = [step for step, it in enumerate(due, 1) if fragment in it]
                assert [after - before for before, after in itertools.pairwise(times)] == [every] * 4
    assert [Schedule(50, 4, 1).due(step) for step in (13, 25, 38, 50, 51)] == [[1], [2], [3], [0], []]
    with pytest.raises(ValueError, match="expected every > overlap"):
        Schedule(5, 2, 5)
    assert not Schedule(50, 4, 11).overlapping
    assert Schedule(50, 4, 12).overlapping  # 13 to 25, and at 25 the next one begins
