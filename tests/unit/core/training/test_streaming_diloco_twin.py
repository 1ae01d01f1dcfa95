"""Twins of streaming-diloco and sparse-loco, against a walk through the steps of a job, one after the other."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.training import strategies_built
from testbed.core.training.codec_bytes import dense_bytes, top_k_bytes
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.streaming_diloco import StreamingDiloco
from testbed.core.units import Unreadable

SITES = ("a", "a", "b", "b")
TENSORS = gpt_tensors(layers=7, width=8, context=4)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[str, int], int]:
    every = draw(st.integers(1, 12))
    options = {
        "every": every,
        "fragments": draw(st.integers(1, 7)),
        "overlap": draw(st.integers(0, every - 1)),
        "bits": draw(st.sampled_from((32, 16, 8, 4))),
    }
    return options, draw(st.integers(1, 40))


@given(jobs(), st.sampled_from((SITES, ("a", "b", "c"), ("a", "b"), ("a", "a", "a"))))
@settings(max_examples=150, deadline=None)
def test_a_walk_through_the_job_sees_the_same(job: tuple[dict[str, int], int], sites: tuple[str, ...]) -> None:
    options, steps = job
    every, fragments, overlap, bits = options.values()
    twin = StreamingDiloco(options, Layout(sites, TENSORS, layers=7, steps=steps))
    assert not twin.mistakes()
    slices = min(sites.count(it) for it in sites)
    rest = sum(it.elements for it in TENSORS if it.layer is None)
    layer = (sum(it.elements for it in TENSORS) - rest) // 7
    sizes = [layer * len(range(p, 7, fragments)) + (rest if p == fragments - 1 else 0) for p in range(fragments)]
    due = [math.floor(Fraction(every * p, fragments) + Fraction(1, 2)) % every for p in range(fragments)]

    flying: list[tuple[int, int]] = []  # step and fragment
    taken, landed, gaps, last = [0] * fragments, 0, [], 0
    for step in range(1, steps + 1):
        begun = [p for p in range(fragments) if step % every == due[p]]
        flying += [(step, p) for p in begun]
        if begun:
            gaps.append(step - last)
            last = step
        here = [it for it in flying if it[0] + overlap <= step]
        again: list[int] = []
        if step == steps:
            here = flying
            again = [p for p in range(fragments) if step % every != due[p]]
        for at, p in here:
            taken[p] = at
        flying = [it for it in flying if it not in here]
        for p in again:
            taken[p] = step
        landed += len(here) + len(again)

        found = [it for it in twin.operations(step) if it.what == "pseudo-gradients"]
        if len(set(sites)) == 1:
            assert not found
        else:
            assert {it.fragment for it in found} == {*begun, *again}
            for p in {*begun, *again}:
                own = [it for it in found if it.fragment == p]
                each = math.ceil(sizes[p] / slices)
                replicas = len(set(sites))
                if bits < 32:
                    assert [it.kind for it in own] == ["all_gather"] * slices
                    assert {it.byte_count for it in own} == {replicas * dense_bytes(each, bits)}
                else:
                    assert {it.byte_count for it in own} == {4 * each}
                    assert len(own) == slices * (2 if replicas == 2 else 1)
                assert {it.lands for it in own} == {overlap if p in begun else 0}
        gathered = [it.fragment for it in twin.operations(step) if it.what == "parameters" and it.ranks[0] == 0]
        if len(sites) > len(set(sites)):
            extra = [p for p in begun if step == steps and overlap == 0]  # merged, and then adopted
            assert sorted(it for it in gathered if it is not None) == sorted([*(p for _, p in here), *again, *extra])
        committed = sum(size * at for size, at in zip(sizes, taken, strict=True)) / sum(sizes)
        assert twin.committed(step) == pytest.approx(committed)
        assert twin.outer_updates(step) == landed
        resent = {it.fragment for it in twin.resumed(step)} if step < steps else set()
        assert resent == ({p for _, p in flying} if len(set(sites)) > 1 else set())
    assert twin.committed(steps) == steps
    assert twin.longest_gap >= max([it for it in gaps if it], default=0)
    assert twin.longest_gap <= every


def test_a_fragment_on_its_way_with_another_has_a_group_of_its_own() -> None:
    def groups(**options: int) -> set[str]:
        twin = StreamingDiloco(options, Layout(SITES, TENSORS, layers=7, steps=100))
        return {it.group for step in range(1, 101) for it in twin.operations(step) if it.what == "pseudo-gradients"}

    assert groups(every=20, fragments=4, overlap=4) == {"slice:0", "slice:1"}
    assert groups(every=20, fragments=4, overlap=5) == {
        f"slice:{index}/fragment-{p}" for index in (0, 1) for p in range(4)
    }
    assert groups(every=20, fragments=1, overlap=19) == {"slice:0", "slice:1"}


def test_bytes_of_a_cycle_are_n_over_h_and_scales() -> None:
    def sent(**options: int) -> float:
        """Return the bytes that cross from a to b in a cycle, over those of the parameters."""
        layout = Layout(SITES, TENSORS, layers=7, steps=1000)
        twin = StreamingDiloco({"every": 20, "fragments": 3, **options}, layout)
        found = [it for step in range(101, 121) for it in twin.operations(step) if it.what == "pseudo-gradients"]
        # A gather between two brings each the half that the other has put in.
        ours = [it.byte_count / (2 if it.kind == "all_gather" else 1) for it in found if it.ranks[0] < 2]
        return sum(ours) / layout.payload_bytes

    assert sent() == pytest.approx(1.0, rel=0.01)
    assert sent(bits=16) == pytest.approx(0.5, rel=0.01)
    assert sent(bits=8) == pytest.approx((1 + 4 / 256) / 4, rel=0.01)
    assert sent(bits=4) == pytest.approx((1 / 2 + 4 / 256) / 4, rel=0.02)


def test_mistakes_name_the_option_and_the_fix() -> None:
    layout = Layout(SITES, TENSORS, layers=7)
    twin = StreamingDiloco({"every": 5, "fragments": 8, "overlap": 5, "rounding": "stochastic"}, layout)
    assert [(it.option, it.message, it.fix) for it in twin.mistakes()] == [
        ("fragments", "expected at most one fragment a layer, of which there are 7, got 8", "write at most 7"),
        ("overlap", "expected fewer steps than every, 5, got 5", "write at most 4, or a larger every"),
        ("rounding", "expected nearest for 32 bits, got stochastic", "write bits: 8 or 4, or rounding: nearest"),
    ]


@pytest.mark.parametrize(
    "strategy, option, value",
    [
        ("streaming-diloco", "bits", 2),
        ("streaming-diloco", "every", 0),
        ("streaming-diloco", "fragments", 0),
        ("streaming-diloco", "alpha", 1.5),
        ("sparse-loco", "bits", 4),
        ("sparse-loco", "top", 0),
        ("sparse-loco", "top", 4097),
        ("sparse-loco", "every", 0),
    ],
)
def test_values_that_a_strategy_lacks_are_refused(strategy: str, option: str, value: Any) -> None:
    (found,) = (it for it in strategies_built.twin_class(strategy).options if it.name == option)
    with pytest.raises(Unreadable):
        found.parse(value)


def test_sparse_loco_sends_codes_every_h_steps() -> None:
    layout = Layout(SITES, TENSORS, layers=7, steps=25)
    twin = strategies_built.make("sparse-loco", {"every": 10}, layout)
    found = {step: [it for it in twin.operations(step) if it.what == "pseudo-gradients"] for step in range(1, 26)}
    assert [step for step, it in found.items() if it] == [10, 20, 25]
    each = top_k_bytes(math.ceil(layout.elements / 2))
    assert [(it.kind, it.ranks, it.byte_count, it.group) for it in found[10]] == [
        ("all_gather", (0, 2), 2 * each, "slice:0"),
        ("all_gather", (1, 3), 2 * each, "slice:1"),
    ]
    assert [twin.committed(step) for step in (9, 10, 24, 25)] == [0, 10, 20, 25]
    assert [twin.outer_updates(step) for step in (9, 10, 24, 25)] == [0, 1, 2, 3]
    assert twin.delays == 1
    assert not twin.mistakes()
