"""The host's logs while packets are sent: stalls of the cores, and the emulator's record of the packets."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from testbed.core.certification.host_log import Crossing, HostLog, Leg
from testbed.host.lab_folder import LabFolder
from testbed.host.measure import probing
from testbed.host.measure.probing import Arrival, Prober
from testbed.keeper import client, protocol

__all__ = ["PacketLog", "monotonic_offset_s", "split_by_host"]


class PacketLog:
    """Context manager that logs stalls and the packets of this process in a lab."""

    def __init__(self, lab: LabFolder) -> None:
        self._lab = lab
        self._crossings: dict[tuple[str, int], Crossing] | None = None

    def __enter__(self) -> Self:
        self._began_t = time.monotonic()
        self._first_stall = client.keeper(self._lab).stalls(since=protocol.NEWEST_STALL)["next"]
        client.keeper(self._lab).record_packets(nonce=probing.NONCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client.keeper(self._lab).record_packets()

    def read(self) -> HostLog:
        """Return the logs so far, without packets in flight. Raises LabError."""
        recorded = client.keeper(self._lab).record_packets(nonce=probing.NONCE)
        if recorded["supported"]:
            crossings = self._crossings = self._crossings or {}
            for direction, mark, _, due_ns, sent_ns, period, _ in recorded["packets"]:
                # The first copy of a duplicate counts, as for arrivals.
                crossings.setdefault((direction, mark), Crossing(due_ns * 1e-9, sent_ns * 1e-9, period))
        stalls = client.keeper(self._lab).stalls(since=self._first_stall)
        return HostLog.of(
            [(core, start_t, length_s) for core, start_t, length_s in stalls["stalls"]] if stalls["watching"] else None,
            self._crossings,
            time.monotonic() - self._began_t,
            os.cpu_count() or 1,
        )


def split_by_host(
    log: HostLog, prober: Prober, arrivals: Iterable[Arrival], crossed: Sequence[Leg]
) -> tuple[list[Arrival], list[Arrival]]:
    """Return the arrivals of a prober's packets that the host did not delay, and those that it delayed.

    ``crossed`` are the directions that the packets cross, in their order. Only the first arrival of a packet counts.
    """
    offset_s = monotonic_offset_s()
    kept: dict[int, Arrival] = {}
    delayed: dict[int, Arrival] = {}
    for arrival in arrivals:
        if arrival.number in kept or arrival.number in delayed:
            continue
        departure = prober.departures[arrival.number]
        before_t, after_t = (ns * 1e-9 + offset_s for ns in (departure.before_ns, departure.after_ns))
        packet = probing.mark(prober.identity, arrival.number)
        (delayed if log.delays(before_t, after_t, packet, crossed) else kept)[arrival.number] = arrival
    return list(kept.values()), list(delayed.values())


def monotonic_offset_s() -> float:
    """Return what to add to a time of the Unix clock, in seconds, to get the same moment of CLOCK_MONOTONIC."""
    pairs = []
    for _ in range(5):
        before = time.monotonic_ns()
        unix = time.time_ns()
        after = time.monotonic_ns()
        pairs.append((after - before, (before + after) // 2 - unix))
    return min(pairs)[1] * 1e-9
