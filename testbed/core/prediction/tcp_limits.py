"""What TCP allows one connection, and a connection that was idle. Pure; seconds, bits, bits per second.

=============  ==========================================  =====================================================
limit          computed as                                 source
=============  ==========================================  =====================================================
window         W / RTT                                     RFC 9293, 3.8.6; RFC 7323
random loss    MSS / RTT x sqrt(3 / 2p), Reno              Mathis et al., CCR 27(3), 1997; CUBIC recovers faster
after idle     rounds of RTT from 10 segments, doubling    RFC 6928; RFC 5681, 4.1 (restart window)
=============  ==========================================  =====================================================

These limits do not follow the similarity of rates and distances: the window in packets is what it is at any scale.
"""

from __future__ import annotations

import math

from testbed.core.physics import validity
from testbed.core.prediction.network import MSS_BYTES

__all__ = ["LEAST_RTO_S", "cold_start_s", "loss_limit_bps", "usable_rate_bps", "window_limit_bps"]

LEAST_RTO_S = 0.2
"""TCP's retransmission timeout is at least that on Linux (RTO_MIN); so long must a connection idle to start slowly."""


def window_limit_bps(window_bytes: float, rtt_s: float) -> float:
    """Return the payload rate of one connection with that window; infinite without a round trip.

    >>> window_limit_bps(6e6, 10e-3) / 1e9  # tcp_rmem's usual 6 MB over 1000 km
    4.8
    """
    return window_bytes * 8 / rtt_s if rtt_s else math.inf


def loss_limit_bps(loss: float, rtt_s: float, mss_bytes: int = MSS_BYTES) -> float:
    """Return the payload rate of one Reno connection under a random ``loss`` of packets; infinite without loss.

    >>> round(loss_limit_bps(1e-4, 10e-3) / 1e6)
    142
    """
    if not loss or not rtt_s:
        return math.inf
    return validity.loss_window(loss) * mss_bytes * 8 / rtt_s


def usable_rate_bps(
    rate_bps: float, rtt_s: float, *, connections: int = 1, window_bytes: float = math.inf, loss: float = 0.0
) -> float:
    """Return the payload rate that ``connections`` connections reach together on a path of ``rate_bps``."""
    one = min(window_limit_bps(window_bytes, rtt_s), loss_limit_bps(loss, rtt_s))
    return min(rate_bps, connections * one)


def cold_start_s(rate_bps: float, rtt_s: float, payload_bits: float) -> float:
    """Return the seconds that slow start adds to a transfer on a connection that was idle.

    >>> cold_start_s(1e9, 0.0, 8e6)
    0.0
    """
    segment_bits = MSS_BYTES * 8
    rounds = validity.rounds(rate_bps * rtt_s / segment_bits, max(1.0, payload_bits / segment_bits))
    return rounds * rtt_s
