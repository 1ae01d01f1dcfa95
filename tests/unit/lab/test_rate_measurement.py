"""What the emulator's counters say of packet trains: starved, or beside other traffic; on counters made up here."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.certification.judge import DirectionSample, judge_direction
from testbed.core.physics.impairment import Impairment
from testbed.lab import rate_measurement
from testbed.lab.emulator_counters import Counters

MTU, COUNT, TRAINS, TARGET = 1500, 100, 20, 0.8e9
FRAME = MTU + 14
SENT = COUNT * TRAINS
BEFORE = Counters(0, 0, 0.0, (), (), segments=7, bytes=7 * FRAME, dropped=0, duplicated=0)


def passed(**changes: Any) -> Counters:
    """The counters after the trains, which nothing else has crossed."""
    clean = dataclasses.replace(BEFORE, emptied=TRAINS, segments=7 + SENT, bytes=(7 + SENT) * FRAME)
    return dataclasses.replace(clean, **changes)


def sample(after: Counters, rate_bps: float, before: Counters = BEFORE, duplicate: float = 0.0) -> Any:
    """The sample of trains that arrive at this rate."""
    bits = 8.0 * (FRAME + 24)
    train: Any = SimpleNamespace(mtu=MTU, count=COUNT, frame_bits=bits)
    plan = rate_measurement._Plan("north:west", train, TRAINS, 0.0, Impairment(rate_bps=TARGET, duplicate=duplicate))
    arrivals = [(number * bits / rate_bps, bits) for number in range(COUNT)]
    passages: Any = [SimpleNamespace(arrivals=arrivals, queued_bytes=None, handed_bps=2e9) for _ in range(TRAINS)]
    return rate_measurement._sample(plan, passages, before, after, 1)


@pytest.mark.parametrize("gaps", [1, 3, 500])
def test_a_rate_that_is_right_is_never_refused_for_gaps(gaps: int) -> None:
    found = sample(passed(emptied=TRAINS + gaps), 800.1e6)
    assert found.bps == pytest.approx(800.1e6)
    assert f"the queue ran empty {gaps} times" in found.starved, "so it is measured again"
    target, bare = Impairment(delay_s=200e-6, rate_bps=TARGET), [20e-6] * 100
    seen = DirectionSample([220e-6] * 100, bare, 100, rate_bps=found.bps, rate_tries=3, rate_starved=found.starved)
    judged = judge_direction("north:west", target, seen)
    check = judged.check("rate")
    assert check is not None and check.verdict == "ok" and not judged.why


def test_gaps_explain_a_rate_that_is_too_low() -> None:
    assert "the queue ran empty 3 times" in sample(passed(emptied=TRAINS + 3), 0.7e9).starved
    assert sample(passed(), 0.7e9).starved == "", "wrong, and nothing proves a gap"


def test_packets_of_others_that_find_the_queue_empty_are_no_gaps_of_the_trains() -> None:
    beside = passed(emptied=TRAINS + 40, segments=7 + SENT + 40, bytes=(7 + SENT) * FRAME + 40 * 66)
    found = sample(beside, 0.7e9)
    assert found.starved == ""
    assert found.beside == pytest.approx(40 * 66 / (SENT * FRAME))
    more = dataclasses.replace(beside, emptied=TRAINS + 45)
    assert "the queue ran empty 5 times" in sample(more, 0.7e9).starved


def test_lost_and_duplicated_packets_of_the_trains_are_not_taken_for_others() -> None:
    lost = passed(segments=7 + SENT - 30, bytes=(7 + SENT - 30) * FRAME, dropped=30)
    assert sample(lost, 0.7e9).beside == 0.0
    twice = passed(segments=7 + SENT + 50, bytes=(7 + SENT + 50) * FRAME, duplicated=50)
    assert sample(twice, 0.7e9).beside == 0.0
    uncounted = dataclasses.replace(twice, duplicated=None)
    assert sample(uncounted, 0.7e9, dataclasses.replace(BEFORE, duplicated=None), 50 / SENT).beside == pytest.approx(0)
