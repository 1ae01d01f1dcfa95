"""The catalogue: its content, its validity, and its size."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from builders.tables import table

import testbed
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.validation.bound import Placed
from testbed.core.validation.cases import (
    FIRST_FAULT_CALL,
    FIRST_SPEED_CALL,
    Suite,
    correctness,
    groups,
    not_offered,
    performance,
    preferred,
)
from testbed.core.validation.elements import TYPES
from testbed.core.validation.fault_matrix import FAULTS, REPORTS_ERROR, left_out, trials, why_no_trials
from testbed.core.validation.operation import OPERATIONS, REDUCING, CollectiveOperation
from testbed.core.validation.traffic import crossing, patterns

SUITES: tuple[Suite, ...] = get_args(Suite)

TWO = ("east", "east", "west", "west")
PLACES = [TWO, ("a", "b"), ("a",), ("a", "a"), ("a", "a", "a", "b"), ("a", "a", "b", "b", "c", "c", "c")]
EVERYTHING: Mapping[str, Any] = {
    **{do: {"types": list(TYPES), "reductions": ["sum", "max", "avg"]} for do in OPERATIONS},
    "groups": True,
}
METRO = testbed.load("metro-40km")
TOPOLOGIES = [
    "metro-40km",
    "metro-single",
    "metro-triangle",
    "regional-protected",
    "regional-ring",
    "continental-4000km",
]


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("sites", PLACES)
def test_correctness_cases_are_fair(suite: Suite, sites: tuple[str, ...]) -> None:
    """Calls are unique, groups of one case disjoint, roots members, cases of the matrix unique."""
    known = {group.name: group for group in groups(sites)}
    cases = correctness(suite, sites, seed=3)
    calls = [operation.call for case in cases for operation in case.operations]
    assert len(set(calls)) == len(calls) and max(calls) < FIRST_SPEED_CALL
    seen = set()
    for case in cases:
        taken: list[int] = []
        for operation in case.operations:
            group = known[operation.group]
            taken += group.ranks
            assert 0 <= operation.root < len(group.ranks)
            assert operation.do != "send" or (operation.to != operation.root and operation.to < len(group.ranks))
            assert operation.reduction != "avg" or not TYPES[operation.type].is_integer
            assert (operation.reduction != "") == (operation.do in REDUCING)
            assert operation.keep
            json.dumps(operation.line(at=1.5))
            key = (operation.do, operation.group, operation.type, operation.count, operation.reduction, operation.late)
            assert key not in seen
            seen.add(key)
        assert len(set(taken)) == len(taken) and taken


@pytest.mark.parametrize("suite", SUITES)
def test_correctness_has_what_the_issue_asks_for(suite: Suite) -> None:
    operations = operations_of(suite)
    world = [it for it in operations if it.group == "world"]
    for do in OPERATIONS:
        mine = [it for it in world if it.do == do]
        if do == "barrier":
            assert [it.late for it in mine] == [0, 1, 2, 3]  # each comes last in turn
            continue
        assert {it.type for it in mine} == set(TYPES)
        assert {0, 1} <= {it.count for it in mine}
        assert any(it.count % 2 for it in mine if it.count > 1000)
        assert max(it.size_bytes(4) for it in mine) > (15e6 if suite == "full" or do == "all_reduce" else 4e6)
        if do in REDUCING:
            assert {it.reduction for it in mine} == {"sum", "max", "avg"}
        if do in ("broadcast", "reduce", "send"):
            assert {it.root for it in mine} == {0, 1, 2, 3}
    assert {it.group for it in operations} == {"world", "at east", "at west", "first of each site"}
    assert any(len(case.operations) == 2 for case in correctness(suite, TWO))


def test_correctness_and_performance_repeat() -> None:
    assert correctness("quick", TWO, 5) == correctness("quick", TWO, 5)
    assert correctness("quick", TWO, 5) != correctness("quick", TWO, 6)
    assert performance("quick", TWO, EVERYTHING, 5) == performance("quick", TWO, EVERYTHING, 5)


def test_groups() -> None:
    assert [(it.name, it.ranks) for it in groups(TWO)] == [
        ("world", (0, 1, 2, 3)),
        ("at east", (0, 1)),
        ("at west", (2, 3)),
        ("first of each site", (0, 2)),
    ]
    assert [it.name for it in groups(("a", "b"))] == ["world", "at a", "at b"]
    assert groups(TWO)[1].line() == {"do": "group", "group": "at east", "ranks": [0, 1]}


def test_quick_suite_fits_into_its_time() -> None:
    """Under 40 s: bytes over one fiber of 800 Mb/s by the dearest usual pattern, 20 ms for each operation beside them,
    and the elements that two cores make and judge, 30 million a second each."""
    seconds = 0.0
    rate, overhead_s, elements_per_s = 92e6, 0.020, 60e6
    known = {group.name: tuple(TWO[rank] for rank in group.ranks) for group in groups(TWO)}
    operations = operations_of("quick")
    operations += [call for series in performance("quick", TWO, EVERYTHING) for call in series.calls]
    for operation in operations:
        sites = known[operation.group]
        placed = Placed(operation.do, operation.size_bytes(len(sites)), sites, operation.root, operation.to)
        names = [it for it in patterns(placed) if it in ("flat ring", "binomial tree", "direct exchange", "direct")]
        if operation.do in ("all_reduce", "reduce_scatter"):
            names = ["flat ring"]
        crossed = max((max(crossing(placed, patterns(placed)[it]).values()) for it in names), default=0.0)
        givers = 1 if operation.do in ("broadcast", "send") else len(sites)
        made = givers * operation.input_count(len(sites))
        judged = operation.keep * len(sites) * operation.output_count(len(sites))
        seconds += crossed / rate + overhead_s + (made + judged) / elements_per_s
    assert 10 < seconds < 40, seconds


def operations_of(suite: Suite) -> list[CollectiveOperation]:
    return [operation for case in correctness(suite, TWO) for operation in case.operations]


def test_not_offered_operations_are_not_asked() -> None:
    some: Mapping[str, Any] = {
        "all_reduce": {"types": ["float32"], "reductions": ["sum"]},
        "barrier": {},
        "groups": False,
    }
    reasons = {operation: not_offered(operation, some) for operation in operations_of("quick")}
    asked = {(it.do, it.type, it.reduction, it.group) for it, reason in reasons.items() if not reason}
    assert asked == {("all_reduce", "float32", "sum", "world"), ("barrier", "int32", "", "world")}
    assert {
        "the library does not offer broadcast",
        "the library does not offer groups",
        "its all_reduce does not offer int32",
        "its all_reduce does not offer max",
    } <= set(reasons.values())
    assert not any(not_offered(operation, EVERYTHING) for operation in operations_of("full"))


@table(
    "offer, expected",
    {
        "no types": ({"types": [], "reductions": ["sum"]}, None),
        "no reductions": ({"types": ["float32"]}, None),
        "no average of integers": ({"types": ["int32"], "reductions": ["avg"]}, None),
        "a maximum of integers": ({"types": ["int32"], "reductions": ["max"]}, ("int32", "max")),
    },
)
def test_preferred(offer, expected) -> None:
    assert preferred("all_reduce", {"all_reduce": offer}) == expected


def test_offers_that_make_no_sense_are_not_asked() -> None:
    assert not_offered(operations_of("quick")[0], {"all_reduce": "yes"}) != ""
    assert performance("quick", TWO, {}) == ()


def test_performance_series() -> None:
    for suite, sites in itertools.product(SUITES, PLACES):
        series = performance(suite, sites, EVERYTHING)
        calls = [call.call for it in series for call in it.calls]
        assert len(set(calls)) == len(calls)
        assert min(calls) >= FIRST_SPEED_CALL and max(calls) < FIRST_FAULT_CALL - 50_000
        keys = [(it.do, it.size) for it in series]
        assert len(set(keys)) == len(keys)
        for it in series:
            assert len(it.calls) - it.warm_up >= 6, "fewer repeats give a median no interval of 95 %"
            assert all(call.size_bytes(len(sites)) == it.size and not call.keep for call in it.calls)
    sizes = [it.size for it in performance("quick", TWO, EVERYTHING) if it.do == "all_reduce"]
    assert sizes == [8, 65536, 1 << 20, 16 << 20]


# ---- faults


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_trials_inject_faults_that_the_lab_has(name: str) -> None:
    topology = testbed.load(name)
    found = trials("full", topology, EVERYTHING)
    assert {it.fault.name for it in found} | set(left_out("full", topology)) == set(FAULTS)
    for trial in found:
        assert trial.injections
        for it in trial.injections:
            compile_fault(topology, it.kind, it.target, it.parameters)  # raises where the lab would refuse it
        assert 0 < trial.timeout_s < trial.error_by_s < trial.outer_s
        if trial.fault.holds == REPORTS_ERROR:
            assert all(it.for_s is None for it in trial.injections), "it would be over before it has to be told"
        for it in trial.injections:
            assert it.for_s is None or it.for_s < trial.timeout_s - 2
    calls = [trial.operation.call for trial in found]
    assert len(set(calls)) == len(calls) and min(calls) >= FIRST_FAULT_CALL


def test_trials_of_quick_have_the_faults_of_the_issue() -> None:
    names = [it.fault.name for it in trials("quick", METRO, EVERYTHING)]
    assert names == ["cut-short", "cut-long", "failover", "loss-1pct", "rank-killed"]
    assert len(FAULTS) == 17


def test_trials_of_a_cut_leave_no_path_and_those_of_a_failover_do() -> None:
    """Walk over the links that are still up."""
    for name in ("metro-40km", "metro-triangle", "regional-ring"):
        topology = testbed.load(name)
        by_name = {it.fault.name: it for it in trials("quick", topology, EVERYTHING)}
        for fault, reached in (("cut-long", False), ("cut-short", False), ("failover", True)):
            gone = {it.target for it in by_name[fault].injections}
            seen, edge = {topology.sites[0].name}, [topology.sites[0].name]
            while edge:
                here = edge.pop()
                for link in topology.links:
                    if here in link.between and link.name not in gone:
                        there = link.between[1 - link.between.index(here)]
                        edge += [there] if there not in seen else []
                        seen.add(there)
            assert (topology.sites[-1].name in seen) is reached, (name, fault)


def test_left_out_failover_where_there_is_one_fiber() -> None:
    topology = testbed.load("metro-single")
    assert left_out("full", topology) == {"failover": "no path replaces north"}
    assert "failover" not in [it.fault.name for it in trials("full", topology, EVERYTHING)]


def test_trials_have_an_operation_that_lasts_long_enough() -> None:
    trial = trials("quick", METRO, EVERYTHING)[0]
    assert trial.operation.do == "all_reduce" and trial.operation.type == "int64"
    assert 0.3 < trial.operation.size_bytes(4) / 100e6 < 0.5  # seconds on 800 Mb/s
    slow = trials("quick", testbed.load("metro-40km", set={"scale": 1_000_000}), EVERYTHING)[0]
    assert slow.operation.size_bytes(4) >= 4 << 20
    only = trials("quick", METRO, {"broadcast": {"types": ["float16"]}})
    assert {(it.operation.do, it.operation.type) for it in only} == {("broadcast", "float16")}
    assert trials("quick", METRO, {"barrier": {}, "reduce": {}}) == ()
    assert "none of all_reduce" in why_no_trials({"barrier": {}}) and why_no_trials(EVERYTHING) == ""


def test_trials_affect_only_ranks_that_are_ended_or_stopped() -> None:
    for trial in trials("full", METRO, EVERYTHING):
        assert trial.affected == ({3} if trial.fault.name in ("rank-killed", "rank-stopped") else set())
