"""Twins of streaming-diloco and sparse-loco, against a walk through the steps of a job, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
from builders.inputs import by_input
from builders.tables import table
from builders.twins import twin as job
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.training import strategies_built
from testbed.core.training.codec_bytes import block_runs, dense_bytes, slice_runs, top_k_bytes
from testbed.core.training.layout import Layout, gpt_tensors
from testbed.core.training.strategies.streaming_diloco import StreamingDiloco
from testbed.core.training.strategy_operation import Operation
from testbed.core.training.twin import Twin
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


def pseudo_gradients(twin: Twin, steps: Iterable[int]) -> list[Operation]:
    return [sent for step in steps for sent in twin.operations(step) if sent.what == "pseudo-gradients"]


def streaming(words: str, steps: int = 1000) -> Any:
    return job(f"streaming-diloco:{words}", " ".join(SITES), layers=7, tensors=TENSORS, steps=steps)


@by_input(
    "words, groups",
    {
        "every=20,fragments=4,overlap=4": {"slice:0", "slice:1"},
        "every=20,fragments=4,overlap=5": {f"slice:{index}/fragment-{p}" for index in (0, 1) for p in range(4)},
        "every=20,fragments=1,overlap=19": {"slice:0", "slice:1"},
    },
)
def test_a_fragment_on_its_way_with_another_has_a_group_of_its_own(words: str, groups: set[str]) -> None:
    assert {sent.group for sent in pseudo_gradients(streaming(words, 100), range(1, 101))} == groups


@table(
    "words, share, rel",
    {
        "whole": ("", 1.0, 0.01),
        "16 bits": (",bits=16", 0.5, 0.01),
        "8 bits": (",bits=8", (1 + 4 / 256) / 4, 0.01),
        "4 bits": (",bits=4", (1 / 2 + 4 / 256) / 4, 0.02),
    },
)
def test_bytes_of_a_cycle_are_n_over_h_and_scales(words: str, share: float, rel: float) -> None:
    """Of a cycle cross from a to b as many bytes as the parameters have, or a share of them."""
    twin = streaming(f"every=20,fragments=3{words}")
    ours = [sent for sent in pseudo_gradients(twin, range(101, 121)) if sent.ranks[0] < 2]
    # A gather between two brings each the half that the other has put in.
    total = sum(sent.byte_count / (2 if sent.kind == "all_gather" else 1) for sent in ours)
    assert total / twin.layout.payload_bytes == pytest.approx(share, rel=rel)


def test_mistakes_name_the_option_and_the_fix() -> None:
    twin = streaming("every=5,fragments=8,overlap=5,rounding=stochastic")
    assert [(mistake.option, mistake.message, mistake.fix) for mistake in twin.mistakes()] == [
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
    twin = job("sparse-loco:every=10", " ".join(SITES), layers=7, tensors=TENSORS, steps=25)
    sent = {step: operations for step in range(1, 26) if (operations := pseudo_gradients(twin, [step]))}
    assert list(sent) == [10, 20, 25]
    size = math.ceil(twin.layout.elements / 2)
    runs = list(block_runs(twin.layout.tensors))
    first, second = (top_k_bytes(slice_runs(runs, begin, begin + size)) for begin in (0, size))
    assert [(code.kind, code.ranks, code.byte_count, code.group) for code in sent[10]] == [
        ("all_gather", (0, 2), 2 * first, "slice:0"),
        ("all_gather", (1, 3), 2 * second, "slice:1"),
    ]
    progress = [(twin.committed(step), twin.outer_updates(step)) for step in (9, 10, 24, 25)]
    assert progress == [(0, 0), (10, 1), (20, 2), (25, 3)]
    assert not twin.mistakes()
