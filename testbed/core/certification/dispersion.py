"""The rate of a bottleneck from the dispersion of packet trains: bytes over the time between two packets of a train.

A train that enters a queue faster than it leaves is spread by the bottleneck (Dovrolis et al., "What do packet
dispersion techniques measure?", INFOCOM 2001, section III). Each rate is that of a *pair*: two packets of one busy
period of the queue, both sent on time, far enough apart. Delays between the two do not matter: a stall of the host is
followed by a burst, and neither changes the number of bytes that passed.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["FEWEST_PAIRS", "LEAST_APART_S", "TrainArrival", "pair_rates_bps", "rate_bps"]

LEAST_APART_S: Final = 4e-3
"""Least distance of the packets of a pair at the target's rate: a lateness of 50 us is 1.25 % of it. In a shorter
train, which is as long as the machine can send, it is half of the train."""

FEWEST_PAIRS: Final = 5
"""Minimum number of pairs for a rate; with fewer the rate is not measurable."""

_HEAD_SHARE: Final = 0.1
"""Share of a train that is left out at its head: it has the wake-up latency of the forwarding process."""
_MOST_EDGE_SHARE: Final = 0.25
"""Share of a train that is left out for jitter, at most, at either end."""


class TrainArrival(NamedTuple):
    """Bits that arrived together: when, how many on the wire, whether on time, and in which busy period."""

    at_s: float
    bits: float
    on_time: bool = True
    period: int = 0


def pair_rates_bps(
    arrivals: Sequence[TrainArrival], target_bps: float, edge_s: float = 0.0, last_bits: float | None = None
) -> tuple[float, ...]:
    """Return the rates of the pairs of a train, in bit/s; empty if it has none.

    Args:
        arrivals: of one train, in any order; those of the same instant left together.
        target_bps: the expected rate, at which a pair is :data:`LEAST_APART_S` apart. (A train too fast to last that
            long is far above it.)
        edge_s: how long the jitter of a path takes to settle; as much is left out at either end.
        last_bits: only so many bits at the end of the train are used; None: all but the head.
    """
    instants: dict[float, TrainArrival] = {}
    for arrival in arrivals:
        same = instants.get(arrival.at_s)
        instants[arrival.at_s] = arrival if same is None else same._replace(bits=same.bits + arrival.bits)
    train = [instants[at_s] for at_s in sorted(instants)]
    if len(train) < 3:
        return ()
    passed, total = [], 0.0
    for arrival in train:
        total += arrival.bits
        passed.append(total)
    # All in bits, not in seconds: a tail that the scheduler held up would stretch the train.
    span_s = 2.0 * (train[_at(passed, 0.75 * total)].at_s - train[_at(passed, 0.25 * total)].at_s)
    edge = min(edge_s / span_s if span_s > 0 else 0.0, _MOST_EDGE_SHARE) * total
    skipped = max(edge, _HEAD_SHARE * total)
    if last_bits is not None and last_bits < total:
        skipped = max(edge, total - last_bits)
    first, last = _at(passed, skipped), _at(passed, total - edge)
    half = (passed[last] - passed[first]) / 2.0
    least = LEAST_APART_S * target_bps if LEAST_APART_S * target_bps <= 2.0 * half else half
    usable = [index for index in range(first, last + 1) if train[index].on_time]
    # Half a train apart where possible, because the error of a rate falls with the distance.
    rates = _rates(train, passed, usable, max(half, least))
    return rates if len(rates) >= FEWEST_PAIRS else _rates(train, passed, usable, least)


def _rates(
    train: Sequence[TrainArrival], passed: Sequence[float], usable: Sequence[int], apart_bits: float
) -> tuple[float, ...]:
    """Return the rates of the pairs with at least ``apart_bits`` between them, one for each first packet."""
    sums = [passed[index] for index in usable]
    rates = []
    for place, begin in enumerate(usable):
        after = bisect_left(sums, sums[place] + apart_bits, place + 1)
        if after < len(usable) and train[usable[after]].period == train[begin].period:
            end = usable[after]
            rates.append((passed[end] - passed[begin]) / (train[end].at_s - train[begin].at_s))
    return tuple(rates)


def _at(passed: Sequence[float], bits: float) -> int:
    """Return the index of the instant at which so many bits had arrived."""
    return min(bisect_left(passed, bits), len(passed) - 1)


def rate_bps(rates: Sequence[float]) -> float | None:
    """Return the median of the pairs' rates; None with fewer than :data:`FEWEST_PAIRS`."""
    return statistics.median(rates) if len(rates) >= FEWEST_PAIRS else None
