"""What every fiber emulator can do, whichever mechanism it has: its protocol, its records, and one that does nothing.

An emulator is made by a constructor of its own (``Fiberd.start``) over ends that exist already in the plant. It never
makes, names or removes interfaces: drivers do.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from testbed.core.physics.impairment import Direction, Impairment
from testbed.errors import LabError

__all__ = [
    "DROP_CAUSES",
    "DirectionStats",
    "Emulator",
    "EmulatorInfo",
    "NoopEmulator",
    "refuse_impossible",
    "refuse_unknown",
]

DROP_CAUSES = ("loss", "corrupt", "size", "queue", "memory", "transmit", "receive", "down")
"""Why a segment was lost: by chance, by Ethernet's check after flipped bits (netem counts those as loss), queue full,
memory cap, refused by the egress, missed by the ingress, end down."""


@dataclass(frozen=True)
class DirectionStats:
    """Counters of one direction since the emulator started. All but the gauges only grow.

    Attributes:
        packets: delivered at the egress, a GSO super-packet counting once.
        segments: delivered, in MTU segments as they would be on a real wire.
        bytes: delivered L2 frame bytes, the headers of every segment included, without preamble, FCS and gap.
        drops: MTU segments by cause, every one of :data:`DROP_CAUSES` (``receive`` counts packets of the kernel).
        queue_bytes: gauge; wire bytes that wait for their turn at the rate.
        in_flight_packets: gauge; packets that wait or are on their way.
        corrupted, duplicated, held_back: delivered with a flipped bit, delivered twice, held back by ``reorder``, in
            MTU segments; None where the emulator does not count them.
        lateness_bounds_s: upper bounds of the lateness histogram, ascending.
        lateness_counts: packets whose lateness (sent - due) was at most that bound and above the one before; one
            more entry than bounds, the last for everything later.
    """

    direction: str
    packets: int = 0
    segments: int = 0
    bytes: int = 0
    drops: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(DROP_CAUSES, 0))
    queue_bytes: int = 0
    in_flight_packets: int = 0
    corrupted: int | None = None
    duplicated: int | None = None
    held_back: int | None = None
    lateness_bounds_s: tuple[float, ...] = ()
    lateness_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class EmulatorInfo:
    """``name`` as in ``--emulator``; ``scheduling`` as a certificate prints it, like "SCHED_FIFO 40, spin 60 us"."""

    name: str
    scheduling: str


def refuse_impossible(changes: Mapping[str, Impairment]) -> None:
    """Raise LabError for what no emulator can do, naming each direction and value, before anything is touched."""
    wrong = [f"{name}: {finding}" for name, impairment in changes.items() for finding in impairment.findings()]
    if wrong:
        raise LabError("; ".join(wrong))


def refuse_unknown(names: Iterable[str], directions: Collection[str]) -> None:
    """Raise LabError for a direction that the emulator was not started with."""
    for name in names:
        if name not in directions:
            raise LabError(f"the emulator has no direction named '{name}'")


class Emulator(Protocol):
    """Impairs the directions that it was started with. All methods may be called from any thread."""

    @property
    def info(self) -> EmulatorInfo: ...

    @property
    def pid(self) -> int | None:
        """The emulating process, or None where the kernel does it."""

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        """Replace the impairment of each direction named; nothing in flight is lost or reordered.

        Args:
            changes: by direction.
            flush: of these, what is under way in them is lost at the same moment; no port loses its carrier.

        Raises:
            LabError: no such direction, an impossible value, or the emulator is gone or silent.
        """

    def stats(self) -> tuple[DirectionStats, ...]:
        """One record per direction, in the order they were started in. Raises LabError as :meth:`set` does."""

    def segmented(self) -> tuple[str, ...]:
        """Names of the directions whose sender sends MTU-sized packets only, segmentation offload off, so that chance
        has a say over each; none where the emulator takes super-packets apart by itself."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the emulator is gone. Its exit status (negative: killed by that signal), or None after
        ``timeout_s`` seconds; None as a timeout waits for ever."""

    def stop(self) -> None:
        """Take both ends of every fiber down and end. Does nothing the second time."""


class NoopEmulator:
    """Forwards nothing and remembers what it was told: for dry runs and for tests of everything above it."""

    info = EmulatorInfo("noop", "none")
    pid: int | None = None

    def __init__(self, directions: Sequence[Direction]) -> None:
        self.impairments = {direction.name: direction.impairment for direction in directions}
        self._stopped = False

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        refuse_unknown([*changes, *flush], self.impairments)
        self.impairments.update(changes)

    def stats(self) -> tuple[DirectionStats, ...]:
        return tuple(DirectionStats(name) for name in self.impairments)

    def segmented(self) -> tuple[str, ...]:
        return ()

    def wait(self, timeout_s: float | None = None) -> int | None:
        if self._stopped or timeout_s is None:
            return 0  # there is no process that could be waited for
        time.sleep(timeout_s)
        return None

    def stop(self) -> None:
        self._stopped = True
