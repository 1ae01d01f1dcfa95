"""Twins of strategies with a server: operations, bytes, certain counts; what is found wrong in records of versions."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import pytest

from testbed.core.training import strategies_built
from testbed.core.training.gloo_bytes import site_bytes
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.twin import Twin

SITES = ("west", "west", "east", "east")
N = 4 * 478_272


def twin(name: str, sites: tuple[str, ...] = SITES, steps: int = 100, **options: Any) -> Twin:
    given = {key.replace("_", "."): value for key, value in options.items()}
    return strategies_built.make(name, given, Layout(sites, gpt_tensors(), steps=steps))


def crossing(of: Twin) -> dict[tuple[str, str], float]:
    """Return the bytes between sites in all steps of a job, its set-up left out."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for step in range(1, of.layout.steps + 2):
        for pair, count in site_bytes(of.operations(step), of.layout.sites).items():
            found[pair] += count
    return found


@pytest.mark.parametrize(
    ("name", "options", "per_step"),
    [
        ("async-diloco", {"every": 10}, N / 10),
        ("decoupled", {"every": 10}, N / 10),
        ("decoupled", {"every": 10, "bits": 8}, N / 10 * (8 + 32 / 256) / 32),
        ("decoupled", {"every": 20, "bits": 4, "fragments": 4}, N / 20 * (4 + 32 / 256) / 32),
        ("torchft-diloco", {"every": 10}, 2 * N / 10),
    ],
)
def test_bytes_of_two_sites_each_way(name: str, options: dict[str, Any], per_step: float) -> None:
    found = crossing(twin(name, **options, steps=400))
    assert set(found) == {("west", "east"), ("east", "west")}
    for count in found.values():
        assert count / 400 == pytest.approx(per_step, rel=0.05)  # at the end, all fragments once more


def pushed(site: str, step: int, fragment: int | None = None) -> dict[str, Any]:
    """As one of the two ranks of a site records it."""
    return {"what": "pushed", "site": site, "step": step, "push": 1, "fragment": fragment}


def test_what_was_pushed_and_merged_is_what_crosses_however_late_a_site_was() -> None:
    of = twin("decoupled", every=10, fragments=2)
    halves = [of.fragment_elements(it) * 4 for it in (0, 1)]  # type: ignore[attr-defined]
    records = [pushed(site, step, 0) for site in ("west", "east") for step in (10, 20) for _ in range(2)]
    records += [pushed("east", 37, 1)] * 2  # later than it was due: four pushes before were not merged yet
    for step, fragment in ((11, 0), (12, 0), (40, 1)):
        records += [
            {"what": "served", "slice": index, "fragment": fragment, "step": step, "taken": {}} for index in (0, 1)
        ]
    found = crossing(of.as_recorded(records))
    assert found["east", "west"] == pytest.approx(2 * halves[0] + halves[1], abs=8)
    assert found["west", "east"] == pytest.approx(2 * halves[0] + halves[1], abs=8)
    once = crossing(of.as_recorded([*records, {"what": "served", "slice": 0, "fragment": 0, "step": 50, "taken": {}}]))
    assert once["west", "east"] - found["west", "east"] == pytest.approx(halves[0] / 2, abs=4)
    assert once["east", "west"] == found["east", "west"]


def test_each_recorded_push_is_answered_once_whatever_the_pace() -> None:
    of = twin("async-diloco", every=10, pace="time")
    assert {it.at_most for it in of.operations(10) if not it.watched and it.kind == "send"} == {10.0}
    happened = of.as_recorded([pushed("east", step) for step in (4, 8, 100)] + [pushed("west", 7)])
    assert crossing(happened) == dict.fromkeys((("west", "east"), ("east", "west")), 3 * N)
    assert {it.at_most for it in happened.operations(4)} == {1.0}
    assert of.as_recorded([]) is of
    assert twin("diloco", every=10).as_recorded([pushed("east", 4)]).operations(4) == twin("diloco").operations(4)


def test_the_home_site_sends_to_each_of_the_others_and_nothing_to_itself() -> None:
    found = crossing(twin("async-diloco", ("a", "b", "c"), every=10, home="b"))
    assert found == dict.fromkeys((("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")), 10 * N)


def test_sites_of_half_the_speed_push_twice_as_often() -> None:
    layout = Layout(SITES, gpt_tensors(), steps=100, speeds={"west": 1.0, "east": 0.5})
    of = strategies_built.make("async-diloco", {"every": 20, "pace": "time"}, layout)
    assert [sum(bool(of.pushes(site, step)) for step in range(1, 101)) for site in ("west", "east")] == [5, 10]  # type: ignore[attr-defined]
    assert of.versions(100) == 15  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["async-diloco", "decoupled", "torchft-diloco"])
@pytest.mark.parametrize("steps", [1, 7, 100])
def test_counts_never_decrease_and_are_complete_at_the_end(name: str, steps: int) -> None:
    of = twin(name, every=8, steps=steps)
    committed = [of.committed(step) for step in range(steps + 1)]
    assert committed == sorted(committed) and committed[0] == 0 and committed[-1] == steps
    count = getattr(of, "versions", of.outer_updates)
    outer = [count(step) for step in range(steps + 1)]
    assert outer == sorted(outer) and outer[0] == 0 and outer[-1] >= 1
    assert {it.name for it in of.equal(steps)} >= {"parameters"}
    everyone = max((it.ranks for it in of.equal(steps) if it.name == "parameters"), key=len)
    assert everyone == (0, 1, 2, 3)


def test_only_pushes_that_must_have_been_answered_are_certain() -> None:
    of = twin("async-diloco", every=10, staleness=3)  # one push may be unanswered
    assert [of.committed(step) for step in (10, 19, 20, 39, 40, 100)] == [0, 0, 10, 20, 30, 100]
    blocking = twin("async-diloco", every=10, staleness=1)
    assert [blocking.committed(step) for step in (9, 10, 20)] == [0, 10, 20]


@pytest.mark.parametrize(
    ("name", "options", "said", "fix"),
    [
        ("async-diloco", {"home": "eats"}, "unknown home site 'eats'", "did you mean east?"),
        ("async-diloco", {"staleness": 1}, "staleness 1 is too small for 3 sites", "write at least 2"),
        (
            "async-diloco",
            {"outer_delay": 4, "outer_activation": 0.3},
            "outer.activation 0.3 is more than 1/4",
            "at most",
        ),
        ("decoupled", {"quorum": 4}, "a quorum of 4 among 3 sites", "at most 3"),
        ("decoupled", {"fragments": 5}, "5 fragments of a model with 4 layers", "at most 4"),
        ("torchft-diloco", {"lighthouse": "east1"}, "unknown site of the lighthouse 'east1'", "did you mean east?"),
    ],
)
def test_mistakes_are_told_with_a_fix(name: str, options: dict[str, Any], said: str, fix: str) -> None:
    (mistake,) = twin(name, ("west", "mid", "east"), **options).mistakes()
    assert said in mistake.message and fix in mistake.fix and not mistake.warning


def test_torchft_needs_as_many_ranks_at_each_site() -> None:
    (mistake,) = twin("torchft-diloco", ("west", "west", "east")).mistakes()
    assert "replica groups of the same size" in mistake.message


def served(version: int, site: str, push: int, staleness: int = 0) -> dict[str, Any]:
    fields = {"version": version, "site": site, "push": push, "staleness": staleness, "crc": f"{version:08x}"}
    return {"what": "served", "slice": 0, **fields}


def pulled(version: int, site: str) -> dict[str, Any]:
    return {"what": "pulled", "slice": 0, "version": version, "site": site, "crc": f"{version:08x}"}


RIGHT = [served(1, "a", 1), served(2, "b", 1, 1), served(3, "a", 2, 1), pulled(1, "a"), pulled(2, "b"), pulled(3, "a")]


def broken(**changes: Any) -> list[dict[str, Any]]:
    """Return the right records with some fields of one of them, ``at``, changed; None: without it."""
    records = copy.deepcopy(RIGHT)
    at = changes.pop("at")
    if changes:
        records[at] |= changes
    else:
        del records[at]
    return records


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (broken(at=5, crc="deadbeef"), "a adopted other parameters as version 3 of slice 0 than were made"),
        (broken(at=2, push=1), "push 1 of a, slice 0 is in 2 versions"),
        (broken(at=1), "version 2 of slice 0 is missing"),
        (broken(at=2, staleness=9), "took a push of a that was 9 versions old, 8 allowed"),
        (broken(at=2, version=2), "version 2 of slice 0 was made twice"),
        ([*broken(at=1), served(4, "b", 2)], "b adopted version 2 of slice 0, which was never made"),
    ],
)
def test_what_is_wrong_with_versions_is_found(records: list[dict[str, Any]], said: str) -> None:
    of = twin("async-diloco")
    assert of.wrong_exchanges(RIGHT) == []
    assert any(said in it for it in of.wrong_exchanges(records)), of.wrong_exchanges(records)


def test_each_step_of_a_site_is_in_one_push() -> None:
    def made(push: int, first: int, step: int, site: str = "east") -> dict[str, Any]:
        return {"what": "pushed", "site": site, "fragment": 1, "push": push, "first": first, "step": step}

    of = twin("decoupled", every=10)
    right = [made(1, 1, 10), made(1, 1, 10), made(2, 11, 20), made(3, 21, 47), made(1, 1, 10, "west")]
    assert of.wrong_exchanges(right) == []
    (twice,) = of.wrong_exchanges([*right, made(4, 47, 50)])
    assert twice == "push 3 of east, fragment 1 ends with step 47, and the next one begins with step 47"
    (never,) = of.wrong_exchanges([*right, made(4, 49, 50)])
    assert never.endswith("the next one begins with step 49")
    (differ,) = of.wrong_exchanges([*right, made(3, 21, 46)])
    assert differ == "ranks of east, fragment 1 made push 3 of different steps"


def test_copies_of_a_merged_fragment_must_agree() -> None:
    merged = {"what": "served", "slice": 1, "fragment": 2, "version": 1, "taken": {"a": [1, 2], "b": [1]}}
    west = {"what": "pulled", "slice": 1, "fragment": 2, "version": 1, "site": "a", "crc": "1"}
    of = twin("decoupled")
    assert of.wrong_exchanges([merged, west, west | {"site": "b"}]) == []
    (said,) = of.wrong_exchanges([merged, west, west | {"site": "b", "crc": "2"}])
    assert "b adopted other parameters as version 1 of slice 1 of fragment 2" in said
    (said,) = of.wrong_exchanges([merged, merged | {"version": 2, "taken": {"a": [2]}}])
    assert said == "push 2 of a, fragment 2, slice 1 is in 2 versions"
