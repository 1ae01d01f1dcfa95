"""Rounds and hidden delays of gloo against its rings, message by message."""

from __future__ import annotations

import math

import pytest
from builders.tables import table
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.prediction.library_costs import GLOO, gloo_hidden_s, gloo_messages, gloo_rounds

SEGMENT = 2**20


def ring_s(ranks: int, phases: list[int], message_s: float, delay_s: float) -> float:
    """Return the time of a ring in which each rank sends ``phases`` messages of ``message_s`` to the next one.

    Two buffers receive at a time: a message is sent once the notice has come that its buffer is ready, which the
    receiver writes when it has taken the message two before. Then it occupies the link and travels.
    """
    now = [0.0] * ranks  # when each rank has all of the phase before
    for count in phases:
        taken = [[0.0] * count for _ in range(ranks)]
        link = list(now)
        for message in range(count):
            for rank in range(ranks):
                there = (rank + 1) % ranks
                receives_s = now[there] if message < 2 else taken[there][message - 2]
                has_s = now[rank] if message < 2 else taken[rank][message - 2]  # what it passes on came two before
                link[rank] = max(link[rank], receives_s + delay_s, has_s) + message_s
                taken[there][message] = link[rank] + delay_s
        now = [max(it) for it in taken]
    return max(now)


def messages(kind: str, ranks: int, byte_count: float) -> list[int]:
    """Return the messages of a rank in each phase: two segments at least of a chunk, at most 1 MiB in each."""
    if kind == "all_gather":
        return [2 * (ranks - 1)]
    each = (ranks - 1) * max(2, math.ceil(math.ceil(byte_count / SEGMENT) / ranks))
    return [each, each]


RINGS = {"summed": "all_reduce", "scattered": "reduce_scatter", "gathered": "all_gather"}


@table("kind", RINGS)
@settings(max_examples=30)
@given(ranks=st.integers(2, 12), mib=st.sampled_from([0.004, 0.5, 3.0, 17.0, 64.0, 130.0]), share=st.floats(0.001, 100))
def test_a_ring_takes_what_its_messages_take(kind: str, ranks: int, mib: float, share: float) -> None:
    """``share``: of a message's delay in the time that the link needs for it."""
    byte_count, delay_s = mib * SEGMENT, 1e-3
    phases = messages(kind, ranks, byte_count)
    message_s = delay_s * share
    serial_s = sum(phases) * message_s
    hidden_s = gloo_hidden_s(kind, ranks, byte_count, serial_s, delay_s)
    predicted_s = gloo_rounds(kind, ranks, byte_count) * delay_s + serial_s - hidden_s
    assert predicted_s == pytest.approx(ring_s(ranks, phases, message_s, delay_s), rel=0.02)


@table("kind", RINGS)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("mib", [0.004, 2.5, 64.0])
def test_rounds_are_the_delays_of_small_messages(kind: str, ranks: int, mib: float) -> None:
    phases = messages(kind, ranks, mib * SEGMENT)
    found = gloo_rounds(kind, ranks, mib * SEGMENT)
    assert found == pytest.approx(ring_s(ranks, phases, 0.0, 1.0))
    assert (len(phases), phases[0]) == gloo_messages(kind, ranks, mib * SEGMENT)


@table(
    "kind, ranks, mib, rounds",
    {
        "a ring of two, twice round": ("all_reduce", 2, 1.0, 4),
        "a ring of four, twice round": ("all_reduce", 4, 1.0, 12),
        "many segments a rank": ("all_reduce", 4, 64.0, 96),
        "once round": ("all_gather", 4, 1.0, 6),
        "a message whose receipt is posted": ("send", 2, 1.0, 1),
        "a tree of two": ("broadcast", 2, 1.0, 2),
        "a tree of eight": ("broadcast", 8, 1.0, 4),
        "all at once": ("all_to_all", 8, 1.0, 2),
    },
)
def test_rounds_by_hand(kind: str, ranks: int, mib: float, rounds: float) -> None:
    assert gloo_rounds(kind, ranks, mib * SEGMENT) == rounds


@settings(max_examples=30)
@given(
    st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"]),
    st.integers(2, 40), st.floats(1, 1e9), st.floats(0, 100), st.floats(0, 1),
)  # fmt: skip
def test_no_more_is_hidden_than_there_is(
    kind: str, ranks: int, byte_count: float, serial_s: float, delay_s: float
) -> None:
    hidden_s = gloo_hidden_s(kind, ranks, byte_count, serial_s, delay_s)
    rounds = gloo_rounds(kind, ranks, byte_count)
    assert 0 <= hidden_s <= rounds * delay_s + 1e-9
    assert kind not in ("all_to_all", "broadcast", "send") or hidden_s == 0.0
    cost = GLOO.cost(kind, ranks, byte_count, beside=False, crosses=True)
    assert cost.rounds == rounds and cost.software_s > 0 and cost.lane == 1.0
    assert GLOO.cost(kind, ranks, 2 * byte_count, beside=False, crosses=True).software_s > cost.software_s
