"""The simulator against plain loops over steps, sites and micro-batches, where no closed form holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
from builders.predicted_jobs import first_steps, job, plain
from builders.tables import table
from hypothesis import example, given, settings
from hypothesis import strategies as st

from testbed.core.prediction.simulator import Simulated, simulate
from testbed.core.training.layout import gpt_tensors

ELEMENTS = 3 * 2**18
BYTES = 4 * ELEMENTS


@dataclass(frozen=True)
class Given:
    """Sites with a rank each; how much slower each is than the first; software and rounds of each operation."""

    slowdowns: tuple[float, ...]
    step_s: float
    rate_bps: float
    delay_s: float
    o: float
    c: int
    every: int

    def serial_s(self, byte_count: float) -> float:
        return 8 * byte_count / self.rate_bps

    def first_steps(self, words: str, steps: int, **fields: Any) -> Simulated:
        """Simulate the first steps of a job."""
        of = job(
            words, sites=len(self.slowdowns), step_s=self.step_s, slowdowns=dict(enumerate(self.slowdowns)),
            rate_bps=self.rate_bps, delay_s=self.delay_s, library=plain(self.c, self.o),
            **{"elements": ELEMENTS, "layers": 12} | fields,
        )  # fmt: skip
        assert of.twin.mistakes() == [], words
        processes = {name: first_steps(it, steps) for name, it in of.twin.processes().items()}
        return simulate(processes, of.costs, cycle=None, site="s0")


class Lane:
    """One direction of a fiber: first in, first out."""

    def __init__(self, it: Given) -> None:
        self.given, self.free_s = it, 0.0

    def arrival(self, ready_s: float, byte_count: float) -> float:
        self.free_s = max(self.free_s, ready_s + self.given.o) + self.given.serial_s(byte_count)
        return self.free_s + self.given.c * self.given.delay_s


def given_sites(least: int = 2, most: int = 4, slow: bool = True) -> st.SearchStrategy[Given]:
    slower = st.sampled_from([1.0, 1.2, 2.0]) if slow else st.just(1.0)
    return st.builds(
        Given,
        slowdowns=st.lists(slower, min_size=least - 1, max_size=most - 1).map(lambda it: (1.0, *it)),
        step_s=st.floats(0.01, 10),
        rate_bps=st.floats(1e5, 1e10),
        delay_s=st.floats(0, 0.5),
        o=st.sampled_from([0.0, 1e-3, 0.3]),
        c=st.integers(1, 6),
        every=st.integers(1, 12),
    )


def streaming_s(it: Given, fragments: int, overlap: int, steps: int) -> float:
    """Return when the first site ends its last step; a fragment is sent when the last site has computed its step."""
    sites = len(it.slowdowns)
    share = 1.0 if sites == 2 else 2 * (sites - 1) / sites
    clock, lane = [0.0] * sites, Lane(it)
    lands: dict[int, float] = defaultdict(float)
    for step in range(1, steps + 1):
        clock = [now_s + it.step_s * slow for now_s, slow in zip(clock, it.slowdowns, strict=True)]
        for fragment in range(fragments):
            offset = int(it.every * fragment / fragments + 0.5) % it.every  # halves up
            if step % it.every == offset:
                # Layers p, p + P, ... of twelve.
                size = len(range(fragment, 12, fragments)) / 12 * BYTES
                arrives_s = lane.arrival(max(clock), share * size)
                lands[step + overlap] = max(lands[step + overlap], arrives_s)
                if not overlap:  # the sites wait for one after the other
                    clock = [max(now_s, arrives_s) for now_s in clock]
        clock = [max(now_s, lands[step]) for now_s in clock]
    return clock[0]


@settings(max_examples=30)
@given(given_sites(), st.integers(1, 12), st.integers(0, 11))
@example(Given((1.0, 1.0), 0.8, 5e6, 0.0, 0.0, 1, 5), 3, 3)
@example(Given((1.0, 2.0, 1.0), 0.8, 5e6, 0.1, 1e-3, 4, 10), 12, 2)
@example(Given((1.0, 1.0), 1.0, 1e5, 0.0, 0.0, 1, 3), 1, 0)
def test_fragments_land_as_plain_loops_say(it: Given, fragments: int, overlap: int) -> None:
    overlap, steps = min(overlap, it.every - 1), 4 * it.every + 1
    found = it.first_steps(f"streaming-diloco:every={it.every},fragments={fragments},overlap={overlap}", steps)
    steps = found.steps  # equal steps at the end are simulated together, so they may be one more
    assert found.step_s * steps == pytest.approx(streaming_s(it, fragments, overlap, steps), rel=1e-9)


@settings(max_examples=20)
@given(given_sites(2, 2), st.integers(1, 4))
def test_fragments_travel_to_a_site_and_back(it: Given, overlap: int) -> None:
    """One fragment in H steps: up and down follow one another, each over its own direction of the fiber."""
    every, steps = it.every + overlap, 4 * (it.every + overlap) + overlap
    clock, lands = [0.0, 0.0], dict[int, float]()
    up, down = Lane(it), Lane(it)
    for step in range(1, steps + 1):
        clock = [now_s + it.step_s * slow for now_s, slow in zip(clock, it.slowdowns, strict=True)]
        if step % every == 0:
            lands[step + overlap] = down.arrival(up.arrival(max(clock), BYTES), BYTES)
        clock = [max(now_s, lands.get(step, 0.0)) for now_s in clock]
    found = it.first_steps(f"streaming-diloco:every={every},fragments=1,overlap={overlap},aggregate_at=s0", steps)
    assert found.step_s * steps == pytest.approx(clock[0], rel=1e-9)


def rounds_s(it: Given, window: int, rounds: int) -> float:
    """Return when the first site, which is the server's, ends its last round."""
    sites = range(len(it.slowdowns))
    lanes = [(Lane(it), Lane(it)) for _ in sites]
    begun, back = [0.0] * len(sites), list[list[float]]()
    for number in range(rounds):
        done = [begun[site] + it.every * it.step_s * it.slowdowns[site] for site in sites]
        answers = [done[0]]
        for site in sites[1:]:
            push, answer = lanes[site]
            answers.append(answer.arrival(push.arrival(done[site], BYTES), BYTES))
        back.append(answers)
        answered_s = max(back[number - window]) if number >= window else 0.0
        begun = [max(now_s, answered_s) for now_s in done]
    return begun[0]


@settings(max_examples=30)
@given(given_sites(), st.integers(0, 4))
def test_pushes_are_answered_as_plain_loops_say(it: Given, window: int) -> None:
    sites = len(it.slowdowns)
    found = it.first_steps(f"async-diloco:every={it.every},staleness={(window + 1) * sites - 1}", 12 * it.every)
    assert found.step_s * 12 * it.every == pytest.approx(rounds_s(it, window, 12), rel=1e-9)


def test_a_slow_site_holds_asynchronous_sites_back() -> None:
    of = job("async-diloco:every=10,staleness=5", slowdowns={1: 1.5}, rate_bps=1e15)
    found = of.simulate()
    assert found.utilization == pytest.approx(1 / 1.5, rel=1e-6)
    assert found.parts.total_s == pytest.approx(0.5, rel=1e-6)


def passes_s(it: Given, stages: int, count: int, in_flight: list[int], message: float) -> float:
    """Return the time of a step of a pipeline: each stage does its passes in order, each once its input is there."""
    order: list[list[tuple[str, int]]] = []
    for most in in_flight:
        forward = backward = 0
        order.append([])
        while backward < count:
            if forward < count and forward - backward < most:
                order[-1].append(("forward", forward))
                forward += 1
            else:
                order[-1].append(("backward", backward))
                backward += 1
    there: dict[tuple[str, int, int], float] = {}
    lanes = {(stage, name): Lane(it) for stage in range(stages) for name in ("forward", "backward")}
    clock, done = [0.0] * stages, [0] * stages
    while any(len(left) > at for left, at in zip(order, done, strict=True)):
        for stage in range(stages):
            while done[stage] < len(order[stage]):
                name, micro = order[stage][done[stage]]
                needs = stage > 0 if name == "forward" else stage < stages - 1
                if needs and (name, stage, micro) not in there:
                    break
                clock[stage] = max(clock[stage], there.get((name, stage, micro), 0.0))
                clock[stage] += it.step_s / count * (1 / 3 if name == "forward" else 2 / 3)
                onward = stage + (1 if name == "forward" else -1)
                there[name, onward, micro] = lanes[stage, name].arrival(clock[stage], message)
                done[stage] += 1
    return clock[0]


@table(
    "words, in_flight",
    {
        "all forward, then all back": ("schedule=gpipe", lambda stage, stages, count: count),
        "as many as there are": ("schedule=1f1b", lambda stage, stages, count: count),
        "one forward, one back": ("schedule=1f1b,in_flight=3", lambda stage, stages, count: min(count, stages - stage)),
    },
)
@settings(max_examples=20)
@given(it=given_sites(3, 3, slow=False), count=st.sampled_from([1, 2, 4, 6, 12]))
def test_passes_follow_one_another_as_plain_loops_say(words: str, in_flight: Any, it: Given, count: int) -> None:
    fields = {"tensors": gpt_tensors(3), "layers": 3, "tokens": 4 * 64}
    message = 4 * 4 * 64 * 3 / count * 96  # the windows of three ranks in so many micro-batches, 96 values a token
    found = it.first_steps(f"pipeline:stages=3,{words},micro_batches={count}", 3, **fields)
    expected = passes_s(it, 3, count, [in_flight(stage, 3, count) for stage in range(3)], message)
    assert found.step_s == pytest.approx(expected, rel=1e-9)


@settings(max_examples=20)
@given(given_sites(2, 2), st.integers(1, 6), st.integers(2, 3))
def test_buckets_pass_a_site_one_by_one_in_three_stages(it: Given, buckets: int, ranks: int) -> None:
    """Scattered inside, exchanged, gathered inside: of each stage inside a site one bucket at a time."""
    of = job(
        f"hierarchical:buckets={buckets}", ranks=ranks, elements=ELEMENTS, step_s=it.step_s,
        slowdowns=dict(enumerate(it.slowdowns)), rate_bps=it.rate_bps, delay_s=it.delay_s, library=plain(it.c, it.o),
    )  # fmt: skip
    clock, lane = 0.0, Lane(it)
    for _ in range(3):
        scattered, gathered = [0.0, 0.0], [0.0, 0.0]
        for bucket in range(buckets):
            for site, slow in enumerate(it.slowdowns):
                ready_s = clock + it.step_s * slow * (1 / 3 + 2 / 3 * (bucket + 1) / buckets)
                scattered[site] = max(scattered[site], ready_s) + it.o
            arrives_s = lane.arrival(max(scattered), BYTES / buckets)
            gathered = [max(one_s, arrives_s) + it.o for one_s in gathered]
        clock, before_s = max(gathered), clock
    assert of.simulate().step_s == pytest.approx(clock - before_s, rel=1e-9)
