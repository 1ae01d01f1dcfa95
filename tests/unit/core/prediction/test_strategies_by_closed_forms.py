"""The simulator against closed forms of each strategy, and of what slots of a library cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from builders.predicted_jobs import job, plain
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction.simulator import Simulated
from testbed.core.training.layout import gpt_tensors
from testbed.core.training.strategies_built import BUILT

LAYERS, ELEMENTS = 4, 3 * 2**18
"""Each tensor of the model has 3 x 2^14 values: 12 full blocks of 4096, without padding for up to 4 ranks."""
BYTES = 4 * ELEMENTS
GPT: dict[str, Any] = {"tensors": gpt_tensors(LAYERS), "tokens": 256}
VALUES = sum(it.elements for it in gpt_tensors(LAYERS))
"""Of the GPT, whose width is 96."""


@dataclass(frozen=True)
class Given:
    """Two sites, ``ranks`` at each. ``o``, ``c``: software and rounds of each operation."""

    ranks: int
    step_s: float
    rate_bps: float
    delay_s: float
    o: float
    c: int
    every: int

    def serial_s(self, byte_count: float = BYTES) -> float:
        return 8 * byte_count / self.rate_bps

    def crosses_s(self, byte_count: float = BYTES) -> float:
        """Of an operation between sites that nothing hides: software, delays, bits of each direction."""
        return self.o + self.c * self.delay_s + self.serial_s(byte_count)

    @property
    def inside_s(self) -> float:
        """Of an operation inside a site: fabrics have no limit."""
        return self.o if self.ranks > 1 else 0.0

    def simulate(self, words: str, **fields: Any) -> Simulated:
        found = job(
            words, ranks=self.ranks, elements=ELEMENTS, layers=LAYERS, step_s=self.step_s, rate_bps=self.rate_bps,
            delay_s=self.delay_s, library=plain(self.c, self.o), **fields,
        )  # fmt: skip
        assert not [it for it in found.twin.mistakes() if not it.warning]
        return found.simulate()


GIVEN = st.builds(
    Given,
    ranks=st.integers(1, 3),
    step_s=st.floats(0.01, 10),
    rate_bps=st.floats(1e6, 1e12),
    delay_s=st.floats(0, 0.5),
    o=st.sampled_from([0.0, 1e-3]),
    c=st.integers(1, 12),
    every=st.integers(1, 15),
)


def buckets_s(it: Given, byte_count: float, count: int) -> float:
    """Of a step whose gradient is sent in ``count`` parts beside two thirds of it; the first or the last decides."""
    part_s, t, s = it.step_s * 2 / 3 / count, it.step_s, it.serial_s(byte_count)
    arrives_s = it.o + it.c * it.delay_s
    return t / 3 + max(2 * t / 3 + s / count, part_s + s) + arrives_s


def ddp(it: Given) -> float:
    ranks = 2 * it.ranks
    return it.simulate("ddp:buckets=5").step_s - buckets_s(it, 2 * (ranks - 1) / ranks * BYTES, 5)


def accumulated(it: Given) -> float:
    found = it.simulate(f"ddp:buckets=5,accumulate={it.every}").step_s * it.every
    ranks = 2 * it.ranks
    return found - (it.every - 1) * it.step_s - buckets_s(it, 2 * (ranks - 1) / ranks * BYTES, 5)


def hierarchical(it: Given) -> float:
    one = replace(it, ranks=1)
    free = replace(it, o=0.0)
    return max((of.simulate("hierarchical:buckets=3").step_s - buckets_s(of, BYTES, 3) for of in (one, free)), key=abs)


def fsdp(it: Given) -> float:
    ranks = 2 * it.ranks
    passed = (ranks - 1) / ranks * BYTES
    # Each layer: gathered for both passes, and its gradients scattered, which costs gloo a whole all_reduce.
    blocking = LAYERS * 3 * (it.o + it.c * it.delay_s) + it.serial_s((1 + 1 + 2) * passed)
    return it.simulate("fsdp").step_s - it.step_s - blocking


def hsdp(it: Given) -> float:
    return it.simulate("hsdp").step_s - it.step_s - LAYERS * (3 * it.inside_s + it.crosses_s(BYTES / LAYERS))


def blocking(words: str, byte_count: float, gathers: bool = True) -> Callable[[Given], float]:
    """Return the difference for replicas that train alone, each step with a mean inside the site, then exchange."""

    def difference(it: Given) -> float:
        took_s = it.simulate(f"{words}every={it.every}").step_s * it.every
        inside_s = it.every * it.inside_s + (it.inside_s if gathers else 0.0)
        return took_s - it.every * it.step_s - inside_s - it.crosses_s(byte_count)

    return difference


def of_single_ranks(it: Given) -> float:
    return blocking("diloco:replica=rank,", BYTES)(replace(it, ranks=1))


def torchft(it: Given) -> float:
    """Each rank sends the whole model, by an all_reduce of two."""
    return blocking("torchft-diloco:", it.ranks * BYTES, gathers=False)(it)


def gathered_codes(it: Given) -> float:
    """Per 4096 values 64 are sent: 12 bits of place and 2 of value each, and two magnitudes of 16 bits; one rank."""
    one = replace(it, ranks=1)
    return blocking("sparse-loco:", ELEMENTS / 4096 * (64 * 14 / 8 + 4))(one)


def at_a_site(it: Given) -> float:
    """All send to one site, which sends back: two messages follow one another."""
    took_s = it.simulate(f"diloco:every={it.every},aggregate_at=s1").step_s * it.every
    return took_s - it.every * it.step_s - (it.every + 1) * it.inside_s - 2 * it.crosses_s()


def streaming(it: Given) -> float:
    """One fragment, tau steps of overlap: sent within a cycle, or the lane sets the pace."""
    one = replace(it, ranks=1)
    overlap = it.every // 2
    late_s = max(0.0, one.crosses_s() - overlap * it.step_s)
    found = one.simulate(f"streaming-diloco:every={it.every},fragments=1,overlap={overlap}")
    return found.step_s * it.every - max(it.every * it.step_s + late_s, one.serial_s())


def tiers(it: Given) -> float:
    """Two regions of two sites: every H steps inside them, every 3 H steps also between them and back."""
    found = job(
        f"multi-tier:every={it.every},every_regions={3 * it.every}", sites=4, elements=ELEMENTS, layers=LAYERS,
        step_s=it.step_s, rate_bps=it.rate_bps, delay_s=it.delay_s, library=plain(it.c, it.o),
    )  # fmt: skip
    return found.simulate().step_s * 3 * it.every - 3 * it.every * it.step_s - (3 + 2) * it.crosses_s()


def asynchronous(it: Given) -> float:
    """Window 2: of three rounds in a row, one waits for the answer to the first."""
    one = replace(it, ranks=1)
    round_s, s = it.every * it.step_s, one.serial_s()
    found = one.simulate(f"async-diloco:every={it.every},staleness=5").step_s * it.every
    return found - max(round_s, (round_s + 2 * one.crosses_s()) / 3, s)


def decoupled(it: Given) -> float:
    one = replace(it, ranks=1, o=0.0)
    return one.simulate(f"decoupled:every={it.every},grace=1ms").step_s - it.step_s


def tensor(it: Given) -> float:
    """Two ranks split each matrix; tokens and 4 sums a layer inside, gradients across, what is whole gathered again."""
    two = replace(it, ranks=2)
    inside_s = (1 + 4 * LAYERS + 1) * it.o
    return two.simulate("tensor", **GPT).step_s - it.step_s - inside_s - two.crosses_s(4 * VALUES)


def experts(it: Given) -> float:
    """One expert at each of two sites: half of the 256 tokens of 96 values cross, four times a layer."""
    one = replace(it, ranks=1)
    dense = 4 * (VALUES - LAYERS * (8 * 96 * 96 + 5 * 96) + LAYERS * 2 * 96)  # experts stay, routers are added
    tokens_s = 4 * LAYERS * one.crosses_s(4 * 256 * 96 / 2)
    return one.simulate("moe", **GPT).step_s - it.step_s - tokens_s - one.crosses_s(dense)


def pipelined(it: Given) -> float:
    """Fill and drain of GPipe in two stages: micro-batches follow each other at the pace of compute or of the lane."""
    count = 4
    message = 4 * 256 * 2 / count * 96
    found = job(
        f"pipeline:schedule=gpipe,micro_batches={count}", layers=LAYERS, step_s=it.step_s, rate_bps=it.rate_bps,
        delay_s=it.delay_s, library=plain(it.c, it.o), **GPT,
    ).simulate()  # fmt: skip
    passes_s = 0.0
    for one_s in (it.step_s / 3 / count, it.step_s * 2 / 3 / count):
        passes_s += 2 * one_s + it.crosses_s(message) + (count - 1) * max(one_s, it.serial_s(message))
    return found.step_s - passes_s


@table(
    "strategy, difference",
    {
        "the last bucket or the lane": ("ddp", ddp),
        "gradients added up over several steps": ("ddp", accumulated),
        "buckets of one slice a rank": ("hierarchical", hierarchical),
        "layers gathered and scattered over all ranks": ("fsdp", fsdp),
        "shards summed over sites": ("hsdp", hsdp),
        "parameters every H steps": ("local-sgd", blocking("local-sgd:", BYTES)),
        "pseudo-gradients every H steps": ("diloco", blocking("diloco:", BYTES)),
        "pseudo-gradients of replicas of one rank": ("diloco", of_single_ranks),
        "to a site and back": ("diloco", at_a_site),
        "the largest values only": ("sparse-loco", gathered_codes),
        "the whole model of each rank": ("torchft-diloco", torchft),
        "one fragment beside later steps": ("streaming-diloco", streaming),
        "regions and tiers": ("multi-tier", tiers),
        "pushes in a window": ("async-diloco", asynchronous),
        "sites that never wait": ("decoupled", decoupled),
        "matrices split inside a site": ("tensor", tensor),
        "tokens to experts and back": ("moe", experts),
        "fill and drain of a pipeline": ("pipeline", pipelined),
    },
)  # fmt: skip
@settings(max_examples=20)
@given(it=GIVEN)
def test_a_step_takes_what_its_closed_form_says(strategy: str, difference: Callable[[Given], float], it: Given) -> None:
    assert strategy in BUILT
    scale_s = it.every * (it.step_s + it.crosses_s(4 * BYTES)) * 8 * LAYERS
    assert difference(it) == pytest.approx(0, abs=1e-9 * scale_s)


def test_every_strategy_has_a_closed_form() -> None:
    of = next(it for it in test_a_step_takes_what_its_closed_form_says.pytestmark if it.name == "parametrize")
    assert {name for name, _ in of.args[1]} == set(BUILT)


def slotted_s(it: Given, count: int, slots: int) -> float:
    """Return the time of a step whose buckets wait for slots, bucket by bucket."""
    part_s = it.serial_s() / count
    alone = slots > 1 and slots * part_s <= it.o + it.c * it.delay_s + part_s
    ends: list[float] = []
    lane_s = 0.0
    for bucket in range(count):
        start_s = it.step_s * (1 / 3 + 2 / 3 * (bucket + 1) / count)
        if bucket >= slots:
            start_s = max(start_s, sorted(ends)[bucket - slots])
        lane_s = (start_s + it.o if alone else max(lane_s, start_s + it.o)) + part_s
        ends.append(lane_s + it.c * it.delay_s)
    return max(ends)


@settings(max_examples=30)
@given(GIVEN, st.integers(1, 9), st.integers(1, 4))
def test_buckets_wait_for_slots(it: Given, count: int, slots: int) -> None:
    found = job(
        f"ddp:buckets={count}", elements=ELEMENTS, layers=LAYERS, step_s=it.step_s, rate_bps=it.rate_bps,
        delay_s=it.delay_s, library=plain(it.c, it.o, slots),
    ).simulate()  # fmt: skip
    assert found.step_s == pytest.approx(slotted_s(it, count, slots), rel=1e-9)


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_two_slots_take_half_as_many_rounds(count: int) -> None:
    found = job(f"ddp:buckets={count}", step_s=1e-6, delay_s=1.0, library=plain(12, 0.0, 2)).simulate()
    assert found.step_s == pytest.approx(math.ceil(count / 2) * 12, rel=1e-6)


@settings(max_examples=20)
@given(GIVEN, st.floats(1, 3), st.sampled_from(["ddp", "diloco:every=3", "hierarchical", "fsdp", "local-sgd:every=2"]))
def test_a_fast_site_waits_for_the_slow_one(it: Given, slow: float, words: str) -> None:
    of: dict[str, Any] = {"elements": ELEMENTS, "layers": LAYERS, "rate_bps": it.rate_bps, "delay_s": it.delay_s}
    unequal = job(words, step_s=it.step_s, slowdowns={1: slow}, library=plain(it.c, it.o), **of)
    found = unequal.simulate()
    assert found.step_s == pytest.approx(
        job(words, step_s=it.step_s * slow, library=plain(it.c, it.o), **of).simulate().step_s, rel=1e-9
    )
    assert unequal.site == "s0"
    if ":" in words:  # those that exchange nothing beside the backward pass wait for all of it
        assert found.parts.waiting_s == pytest.approx((slow - 1) * it.step_s, rel=1e-6, abs=1e-6)
