"""The host's logs while packets are sent: stalls of the cores, and the emulator's record of the packets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from testbed.core.analysis.wire.fidelity import OWN_DROPS
from testbed.core.certification.host_log import Crossing, HostLog, Leg
from testbed.host.lab_folder import LabFolder
from testbed.host.linux.cpu_load import wait_until_free
from testbed.host.measure import probing
from testbed.host.measure.probing import Arrival, Prober
from testbed.keeper import client, protocol

__all__ = ["TRIES", "Counters", "PacketLog", "monotonic_offset_s", "read_counters", "split_by_host", "tries"]


LONGEST_WAITS_S: Final = (0.0, 1.0, 3.0)
"""Longest wait before each try. Other programs seldom use the cores for longer when they start or end; a longer wait
does not help against other guests of the hardware."""

TRIES: Final = len(LONGEST_WAITS_S)
"""How often a quantity is measured at most."""

Tell = Callable[[str], None]


def tries(tell: Tell) -> Iterator[int]:
    """Yield 1 to :data:`TRIES`; wait before each but the first until cores are free, and ``tell`` it."""
    for attempt, most_s in enumerate(LONGEST_WAITS_S, start=1):
        if most_s:
            tell(f"waiting for free cores, at most {most_s:.0f} s")
            wait_until_free(most_s)
        yield attempt


@dataclass(frozen=True)
class Counters:
    """Counters of one direction.

    ``own_drops`` are the emulator's own failures; ``emptied`` is None where it does not count (netem), ``queued_bytes``
    what is queued now.

    ``segments`` (packets of at most the MTU) and ``bytes`` (L2) were delivered, ``duplicated`` of them twice (None: not
    counted); ``dropped`` were not, for any cause.
    """

    own_drops: int
    emptied: int | None
    queued_bytes: float
    segments: int = 0
    bytes: int = 0
    dropped: int = 0
    duplicated: int | None = None


def read_counters(lab: LabFolder) -> dict[str, Counters]:
    """Return the counters of all directions. Raises LabError."""
    return {
        direction["direction"]: Counters(
            own_drops=sum(direction["drops"].get(cause, 0) for cause in OWN_DROPS),
            emptied=direction.get("emptied"),  # a keeper of an older version does not know it
            queued_bytes=direction["queue_bytes"],
            segments=direction["segments"],
            bytes=direction["bytes"],
            dropped=sum(direction["drops"].values()),
            duplicated=direction.get("duplicated"),
        )
        for direction in client.keeper(lab).stats()["directions"]
    }


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
