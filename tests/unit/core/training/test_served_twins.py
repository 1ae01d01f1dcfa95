"""Twins of strategies with a server: operations, bytes, certain counts; what is found wrong in records of versions."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import pytest
from builders.inputs import by_input
from builders.tables import table
from builders.twins import twin

from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.twin import Twin

N = 4 * 478_272

Record = dict[str, Any]


def crossing(strategy: Twin) -> dict[tuple[str, str], float]:
    """Return the bytes between sites in all steps of a job, its set-up left out."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for step in range(1, strategy.layout.steps + 2):
        for pair, count in site_bytes(strategy.operations(step), strategy.layout.sites).items():
            total[pair] += count
    return total


def links(*ends: str) -> list[tuple[str, str]]:
    """Return both directions of links between sites: ``a-b``."""
    return [pair for words in ends for pair in itertools.permutations(words.split("-"), 2)]


@by_input(
    "words, per_step",
    {
        "async-diloco:every=10": N / 10,
        "decoupled:every=10": N / 10,
        "decoupled:every=10,bits=8": N / 10 * (8 + 32 / 256) / 32,
        "decoupled:every=20,bits=4,fragments=4": N / 20 * (4 + 32 / 256) / 32,
        "torchft-diloco:every=10": 2 * N / 10,
    },
)
def test_bytes_of_two_sites_each_way(words: str, per_step: float) -> None:
    # At the end, all fragments once more.
    expected = dict.fromkeys(links("west-east"), 400 * per_step)
    assert crossing(twin(words, steps=400)) == pytest.approx(expected, rel=0.05)


def pushed(site: str, step: int, fragment: int | None = None, **fields: int) -> Record:
    """As one of the two ranks of a site records it."""
    return {"what": "pushed", "site": site, "step": step, "push": 1, "fragment": fragment, **fields}


def merged(index: int, **fields: Any) -> Record:
    """A record of the server that has slice ``index`` of a fragment."""
    return {"what": "served", "slice": index, "taken": {}, **fields}


def test_what_was_pushed_and_merged_is_what_crosses_however_late_a_site_was() -> None:
    strategy = twin("decoupled:every=10,fragments=2")
    first, second = (fragment.elements * 4 for fragment in strategy.fragments)
    records = [pushed(site, step, 0) for site in ("west", "east") for step in (10, 20) for _ in range(2)]
    records += [pushed("east", 37, 1)] * 2  # later than it was due: four pushes before were not merged yet
    merges = itertools.product(((11, 0), (12, 0), (40, 1)), (0, 1))
    records += [merged(index, fragment=fragment, step=step) for (step, fragment), index in merges]
    before = crossing(strategy.as_recorded(records))
    assert before == pytest.approx(dict.fromkeys(links("east-west"), 2 * first + second), abs=8)
    after = crossing(strategy.as_recorded([*records, merged(0, fragment=0, step=50)]))
    assert after["west", "east"] - before["west", "east"] == pytest.approx(first / 2, abs=4)
    assert after["east", "west"] == before["east", "west"]


def test_each_recorded_push_is_answered_once_whatever_the_pace() -> None:
    strategy = twin("async-diloco:every=10,pace=time")
    sends = [operation for operation in strategy.operations(10) if operation.kind == "send"]
    assert {send.at_most for send in sends if not send.watched} == {10.0}
    recorded = strategy.as_recorded([*(pushed("east", step) for step in (4, 8, 100)), pushed("west", 7)])
    assert crossing(recorded) == dict.fromkeys(links("west-east"), 3 * N)
    assert {operation.at_most for operation in recorded.operations(4)} == {1.0}
    assert strategy.as_recorded([]) is strategy
    assert twin("diloco:every=10").as_recorded([pushed("east", 4)]).operations(4) == twin("diloco").operations(4)


def test_the_home_site_sends_to_each_of_the_others_and_nothing_to_itself() -> None:
    assert crossing(twin("async-diloco:every=10,home=b", "a b c")) == dict.fromkeys(links("a-b", "b-c"), 10 * N)


def test_sites_of_half_the_speed_push_twice_as_often() -> None:
    strategy = twin("async-diloco:every=20,pace=time", speeds={"west": 1.0, "east": 0.5})
    pushes = [sum(bool(strategy.pushes(site, step)) for step in range(1, 101)) for site in ("west", "east")]
    assert pushes == [5, 10]
    assert strategy.versions(100) == 15


@pytest.mark.parametrize("name", ["async-diloco", "decoupled", "torchft-diloco"])
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_counts_never_decrease_and_are_complete_at_the_end(name: str, steps: int) -> None:
    strategy = twin(f"{name}:every=8", steps=steps)
    committed = [*map(strategy.committed, range(steps + 1))]
    assert committed == sorted(committed) and committed[0] == 0 and committed[-1] == steps
    outer = [*map(getattr(strategy, "versions", strategy.outer_updates), range(steps + 1))]
    assert outer == sorted(outer) and outer[0] == 0 and outer[-1] >= 1
    ranks = [equal.ranks for equal in strategy.equal(steps) if equal.name == "parameters"]
    assert max(ranks, key=len) == (0, 1, 2, 3)


@by_input(
    "words, committed",
    {
        # With a staleness of 3, one push may be unanswered.
        "async-diloco:every=10,staleness=3": {10: 0, 19: 0, 20: 10, 39: 20, 40: 30, 100: 100},
        "async-diloco:every=10,staleness=1": {9: 0, 10: 10, 20: 20},
    },
)
def test_only_pushes_that_must_have_been_answered_are_certain(words: str, committed: dict[int, int]) -> None:
    assert {step: twin(words).committed(step) for step in committed} == committed


@by_input(
    "words, mistake",
    {
        "async-diloco:home=eats": ("unknown home site 'eats'", "did you mean east?"),
        "async-diloco:staleness=1": ("staleness 1 is too small for 3 sites", "write at least 2"),
        "async-diloco:outer.delay=4,outer.activation=0.3": ("outer.activation 0.3 is more than 1/4", "at most"),
        "decoupled:quorum=4": ("a quorum of 4 among 3 sites", "at most 3"),
        "decoupled:fragments=5": ("at most one fragment a layer, of which there are 4, got 5", "at most 4"),
        "torchft-diloco:lighthouse=east1": ("unknown site of the lighthouse 'east1'", "did you mean east?"),
    },
)
def test_mistakes_are_told_with_a_fix(words: str, mistake: tuple[str, str]) -> None:
    (mistaken,) = twin(words, "west mid east").mistakes()
    assert mistake[0] in mistaken.message and mistake[1] in mistaken.fix and not mistaken.warning


def test_torchft_needs_as_many_ranks_at_each_site() -> None:
    (mistake,) = twin("torchft-diloco", "west west east").mistakes()
    assert "replica groups of the same size" in mistake.message


def version(what: str, number: int, site: str, **fields: Any) -> Record:
    """A record of slice 0: ``served`` by the server that made this version of a push, or ``pulled`` by the site."""
    return {"what": what, "slice": 0, "version": number, "site": site, "crc": f"{number:08x}", **fields}


def served(number: int, site: str, push: int, staleness: int = 0) -> Record:
    return version("served", number, site, push=push, staleness=staleness)


RIGHT = [served(1, "a", 1), served(2, "b", 1, 1), served(3, "a", 2, 1)]
RIGHT += [version("pulled", number, site) for number, site in enumerate("aba", 1)]


def broken(index: int, **changes: Any) -> list[Record]:
    """Return the right records with some fields of one of them changed; none: without it."""
    return [*RIGHT[:index], *([RIGHT[index] | changes] if changes else ()), *RIGHT[index + 1 :]]


@by_input(
    "said, records",
    {
        "a adopted other parameters as version 3 of slice 0 than were made": broken(5, crc="deadbeef"),
        "push 1 of a, slice 0 is in 2 versions": broken(2, push=1),
        "version 2 of slice 0 is missing": broken(1),
        "took a push of a that was 9 versions old, 8 allowed": broken(2, staleness=9),
        "version 2 of slice 0 was made twice": broken(2, version=2),
        "b adopted version 2 of slice 0, which was never made": [*broken(1), served(4, "b", 2)],
    },
)
def test_wrong_exchanges_of_versions_are_found(said: str, records: list[Record]) -> None:
    strategy = twin("async-diloco")
    assert strategy.wrong_exchanges(RIGHT) == []
    assert any(said in wrong for wrong in strategy.wrong_exchanges(records)), strategy.wrong_exchanges(records)


@table(
    "push, said",
    {
        "twice": (
            (4, 47, 50),
            "push 3 of east, fragment 1 ends with step 47, and the next one begins with step 47",
        ),
        "never": (
            (4, 49, 50),
            "push 3 of east, fragment 1 ends with step 47, and the next one begins with step 49",
        ),
        "differently at two ranks": ((3, 21, 46), "ranks of east, fragment 1 made push 3 of different steps"),
    },
)
def test_wrong_exchanges_where_a_step_of_a_site_is_not_in_one_push(push: tuple[int, int, int], said: str) -> None:
    def made(number: int, first: int, step: int, site: str = "east") -> Record:
        return pushed(site, step, 1, push=number, first=first)

    strategy = twin("decoupled:every=10")
    right = [made(1, 1, 10), made(1, 1, 10), made(2, 11, 20), made(3, 21, 47), made(1, 1, 10, "west")]
    assert strategy.wrong_exchanges(right) == []
    (wrong,) = strategy.wrong_exchanges([*right, made(*push)])
    assert wrong == said


def test_wrong_exchanges_of_copies_of_a_merged_fragment_that_differ() -> None:
    merge = merged(1, fragment=2, version=1, taken={"a": [1, 2], "b": [1]})
    copy = {"what": "pulled", "slice": 1, "fragment": 2, "version": 1, "site": "a", "crc": "1"}
    wrong_exchanges = twin("decoupled").wrong_exchanges
    assert wrong_exchanges([merge, copy, copy | {"site": "b"}]) == []
    (said,) = wrong_exchanges([merge, copy, copy | {"site": "b", "crc": "2"}])
    assert "b adopted other parameters as version 1 of slice 1 of fragment 2" in said
    (said,) = wrong_exchanges([merge, merge | {"version": 2, "taken": {"a": [2]}}])
    assert said == "push 2 of a, fragment 2, slice 1 is in 2 versions"


def test_wrong_exchanges_of_a_push_that_arrived_with_other_bytes_or_twice() -> None:
    push = pushed("east", 10, first=1, slice=1) | {"parcel_crc": "a1"}
    receipt = push | {"what": "received"}
    wrong_exchanges = twin("async-diloco:every=10").wrong_exchanges
    assert wrong_exchanges([push, receipt]) == []
    where = "push 1 of east, slice 1"
    other = receipt | {"parcel_crc": "a2"}
    assert wrong_exchanges([push, other]) == [f"{where} arrived with other bytes than were sent"]
    assert wrong_exchanges([push, receipt, receipt]) == [f"{where} arrived 2 times"]


@table(
    "first, step, last, due",
    {
        "every tenth step": (11, 20, False, True),
        "too late": (11, 30, False, False),
        "too early": (11, 17, False, False),
        "the last one": (11, 17, True, True),
    },
)
def test_wrong_exchanges_of_a_push_that_was_not_due(first: int, step: int, last: bool, due: bool) -> None:
    push = pushed("east", step, first=first, last=last)
    expected = [] if due else [f"push 1 of east has steps 11 to {step}; one is due every 10 steps"]
    assert twin("async-diloco:every=10").wrong_exchanges([push]) == expected
    assert twin("async-diloco:every=10,pace=time").wrong_exchanges([push]) == []


def test_wrong_exchanges_of_a_version_that_no_step_of_the_optimizer_made() -> None:
    wrong = [it | {"steps": it["version"] - (it["version"] > 2)} for it in RIGHT[:3]]
    (said,) = twin("async-diloco").wrong_exchanges([*wrong, *RIGHT[3:]])
    assert said == "version 3 of slice 0 was made by 2 steps of the outer optimizer"
