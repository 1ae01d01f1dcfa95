"""Exchanges that go on beside the backward pass, bucket by bucket. Pure.

A bucket is ready when the backward pass has computed it. It starts when one of q slots of the library is free, costs o
of software, takes the lane for s / K, and holds its slot until it has arrived, c d after that. For any number of
operations in flight and without software the last bucket arrives at the greater of

    T/3 + 2T/3 + s/K + c d    (the last bucket is ready last, and finds the lane free)
    T/3 + 2T/(3K) + s + c d   (the lane is busy from the first bucket on)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from testbed.core.prediction.predicted_outcome import Exposed

__all__ = ["FORWARD_SHARE", "Sent", "send_in_order"]

FORWARD_SHARE: Final = 1 / 3
"""Share of the forward pass in a step: 2 N of 6 N operations a token (Kaplan et al., arXiv:2001.08361)."""


@dataclass(frozen=True)
class Sent:
    """An operation's times in seconds: data ready, software done, last bit sent, last bit arrived."""

    ready_s: float
    software_until_s: float
    sent_s: float
    arrived_s: float

    def exposed(self, since_s: float) -> Exposed:
        """Return the wait for this operation from ``since_s`` on, by part."""
        if self.arrived_s <= since_s:
            return Exposed()
        return Exposed.during(since_s, self.arrived_s, self.ready_s, self.software_until_s, self.sent_s)


def send_in_order(
    ready_s: Sequence[float], serial_s: float, propagation_s: float, software_s: float, in_flight: int | None
) -> tuple[Sent, ...]:
    """Return the times of equal operations whose data is ready at ``ready_s``, ascending, on a lane that is free.

    Args:
        serial_s: time of one operation on the lane; propagation_s: from its last bit sent to arrived.
        software_s: work of the library before each; in_flight: its slots, or None for any number.
    """
    lane_free_s = 0.0
    slots: list[float] = []  # when each operation in flight gives its slot back
    sent = []
    for ready in ready_s:
        start = ready
        if in_flight is not None and len(slots) == in_flight:
            start = max(start, heapq.heappop(slots))
        software_until = start + software_s
        lane_free_s = max(software_until, lane_free_s) + serial_s
        arrived = lane_free_s + propagation_s
        heapq.heappush(slots, arrived)
        sent.append(Sent(ready, software_until, lane_free_s, arrived))
    return tuple(sent)
