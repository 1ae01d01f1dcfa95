"""Table of all series exported by the keeper of an observed lab: name, kind, labels and help text.

Names follow https://prometheus.io/docs/practices/naming/. ``link`` and ``site`` together are the direction that leaves
``site`` over ``link``. ``agents/testbed_agents/recording/metrics.py`` has the series of agents; docs/observability.md
explains both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["Series"]

Kind = Literal["counter", "gauge", "histogram", "info"]


@dataclass(frozen=True)
class Series:
    """One series; ``name`` as queried, including ``_total`` and ``_info``, for a histogram without ``_bucket``."""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()


_DIRECTION = ("link", "site")

FIBER_PACKETS: Final = Series("testbed_fiber_packets_total", "counter", "Packets delivered.", _DIRECTION)
FIBER_SEGMENTS: Final = Series(
    "testbed_fiber_segments_total", "counter", "MTU segments delivered, as on a real wire.", _DIRECTION
)
FIBER_BYTES: Final = Series("testbed_fiber_bytes_total", "counter", "Bytes of Ethernet frames delivered.", _DIRECTION)
FIBER_DROPPED: Final = Series(
    "testbed_fiber_dropped_packets_total", "counter", "Segments lost, by cause.", (*_DIRECTION, "cause")
)
FIBER_CORRUPTED: Final = Series(
    "testbed_fiber_corrupted_packets_total", "counter", "Segments delivered with a flipped bit.", _DIRECTION
)
FIBER_DUPLICATED: Final = Series(
    "testbed_fiber_duplicated_packets_total", "counter", "Segments delivered twice.", _DIRECTION
)
FIBER_HELD_BACK: Final = Series(
    "testbed_fiber_held_back_packets_total",
    "counter",
    "Segments reordered: delayed until later ones overtook.",
    _DIRECTION,
)
FIBER_QUEUE: Final = Series("testbed_fiber_queue_bytes", "gauge", "Bytes in the queue.", _DIRECTION)
FIBER_LATENESS: Final = Series(
    "testbed_fiber_lateness_seconds", "histogram", "Delay of packets beyond their due time.", _DIRECTION
)
FIBER_DELAY: Final = Series("testbed_fiber_delay_seconds", "gauge", "One-way delay without faults.", _DIRECTION)
FIBER_RATE: Final = Series("testbed_fiber_rate_bits_per_second", "gauge", "Line rate without faults.", _DIRECTION)

LINK_UP: Final = Series("testbed_link_up", "gauge", "Whether the site's gateway has a carrier.", _DIRECTION)
LINK_CARRIER_CHANGES: Final = Series(
    "testbed_link_carrier_changes_total", "counter", "Carriers lost and regained.", _DIRECTION
)
TRANSMITTED: Final = Series(
    "testbed_transmit_bytes_total", "counter", "Bytes sent by an interface.", ("site", "node", "interface")
)
RECEIVED: Final = Series(
    "testbed_receive_bytes_total", "counter", "Bytes received by an interface.", ("site", "node", "interface")
)

RANK_UP: Final = Series("testbed_rank_up", "gauge", "Whether the rank's process is alive.", ("site", "node", "rank"))
FAULT_ACTIVE: Final = Series("testbed_fault_active", "gauge", "Active faults.", ("type", "target"))
FAULTS: Final = Series("testbed_faults_total", "counter", "Faults injected since the lab came up.", ("type",))

CERTIFIED: Final = Series("testbed_certified", "gauge", "Whether all fibers are within tolerance.")
CERTIFICATE_NOISY: Final = Series(
    "testbed_certificate_noisy_host", "gauge", "Whether the host delayed packets while the fibers were measured."
)
CERTIFICATE_TIME: Final = Series(
    "testbed_certificate_timestamp_seconds", "gauge", "Unix time at which the fibers were measured."
)
CERTIFICATE_OK: Final = Series(
    "testbed_certificate_within_tolerance",
    "gauge",
    "Whether the direction is within tolerance; absent where it was not measurable.",
    _DIRECTION,
)
CERTIFICATE_ERROR: Final = Series(
    "testbed_certificate_delay_error_seconds",
    "gauge",
    "Median delay minus target, and minus the baseline where it is not calibrated.",
    _DIRECTION,
)
CERTIFICATE_TOLERANCE: Final = Series(
    "testbed_certificate_tolerance_seconds", "gauge", "Largest delay error within tolerance.", _DIRECTION
)

EMULATOR_UP: Final = Series("testbed_emulator_up", "gauge", "Whether the emulator is alive.")
EMULATOR_INFO: Final = Series(
    "testbed_emulator_info", "info", "Emulator of the fibers.", ("emulator", "scheduling", "version")
)
EMULATOR_CPU: Final = Series("testbed_emulator_cpu_seconds_total", "counter", "CPU time of the emulator's process.")
KEEPER_CPU: Final = Series("testbed_keeper_cpu_seconds_total", "counter", "CPU time of the keeper, including scrapes.")
