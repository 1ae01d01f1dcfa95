"""The protocol of a fiber emulator, and its records.

Each emulator has its own constructor (``Fiberd.start``), which takes interfaces that exist already in the plant. It
never creates, names or removes interfaces: drivers do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from testbed.core.physics.impairment import Impairment
from testbed.errors import LabError

__all__ = [
    "DROP_CAUSES",
    "DirectionStats",
    "Emulator",
    "EmulatorInfo",
    "PacketRecord",
    "RecordedPacket",
    "is_process",
    "outlives_keeper",
    "refuse_impossible",
    "refuse_unknown",
]

DROP_CAUSES = ("loss", "corrupt", "size", "queue", "memory", "transmit", "receive", "down")
"""Causes of a lost segment: random loss, frame check after flipped bits (netem counts those as loss), larger than the
limit, queue full, memory cap, refused by the egress, missed by the ingress, end down."""


_PROCESSES: Final = frozenset({"fiberd"})
_OF_THE_KERNEL: Final = frozenset({"netem"})


def is_process(emulator: str) -> bool:
    """Whether an emulator of this name is a process, which shares the cores with what it is measured with, and divides
    super-packets into segments itself."""
    return emulator in _PROCESSES


def outlives_keeper(emulator: str) -> bool:
    """Whether an emulator of this name still forwards packets when the keeper that started it has ended."""
    return emulator in _OF_THE_KERNEL


@dataclass(frozen=True)
class DirectionStats:
    """Counters of one direction since the emulator started, monotonic except for the gauges.

    Attributes:
        packets: delivered at the egress; a GSO super-packet counts once.
        segments: delivered MTU segments, as on a real wire.
        bytes: delivered L2 frame bytes, including the headers of every segment, without preamble, FCS and gap.
        drops: lost MTU segments by cause, with every key of :data:`DROP_CAUSES` (``receive`` counts packets).
        queue_bytes: gauge; wire bytes queued for the rate limit.
        in_flight_packets: gauge; packets queued or under way.
        corrupted, duplicated, held_back: MTU segments delivered with a flipped bit, delivered twice, or delayed by
            ``reorder``; None if the emulator does not count them.
        emptied: packets that found the queue of the rate limit empty: packets sent back to back without a gap add one,
            and each time that the sender let the queue run empty meanwhile adds another; None if not counted.
        lateness_bounds_s: upper bounds of the lateness histogram, ascending.
        lateness_counts: packets per bucket of lateness (sent - due); one more entry than bounds, for everything later.
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
    emptied: int | None = None
    lateness_bounds_s: tuple[float, ...] = ()
    lateness_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class RecordedPacket:
    """A measuring packet that crossed a direction; times in ns of CLOCK_MONOTONIC.

    Attributes:
        mark: the 40 bits that identify the packet; of the first segment of a super-packet.
        arrival_ns: when the kernel received it at the fiber.
        due_ns: when it was due to leave the fiber.
        sent_ns: when the call that sent it had returned, so that a stall within the call counts.
        period: busy period of the queue; equal for packets between which the queue never ran empty.
        segments: MTU segments that it represents.
    """

    direction: str
    mark: int
    arrival_ns: int
    due_ns: int
    sent_ns: int
    period: int
    segments: int


@dataclass(frozen=True)
class PacketRecord:
    """The measuring packets recorded so far; ``lost`` counts those not recorded because the record was full."""

    packets: tuple[RecordedPacket, ...] = ()
    lost: int = 0


@dataclass(frozen=True)
class EmulatorInfo:
    """``name`` as in ``--emulator``; ``scheduling`` as printed in a certificate: "SCHED_FIFO 40, spin 60 us"."""

    name: str
    scheduling: str


def refuse_impossible(changes: Mapping[str, Impairment]) -> None:
    """Raise LabError for impossible values, naming each direction and value, before anything is changed."""
    wrong = [f"{name}: {finding}" for name, impairment in changes.items() for finding in impairment.findings()]
    if wrong:
        raise LabError("; ".join(wrong))


def refuse_unknown(names: Iterable[str], directions: Collection[str]) -> None:
    """Raise LabError for a direction that the emulator was not started with."""
    for name in names:
        if name not in directions:
            raise LabError(f"unknown direction '{name}': the emulator was not started with it")


class Emulator(Protocol):
    """Impairs the directions that it was started with. Thread-safe."""

    @property
    def info(self) -> EmulatorInfo: ...

    @property
    def pid(self) -> int | None:
        """The emulating process; None if the kernel emulates."""

    def set(self, changes: Mapping[str, Impairment], flush: Collection[str] = ()) -> None:
        """Replace the impairments of these directions; packets in flight are neither lost nor reordered.

        Args:
            changes: impairments by direction.
            flush: directions whose packets in flight are dropped at the same moment; no port loses its carrier.

        Raises:
            LabError: no such direction, an impossible value, or the emulator is gone or silent.
        """

    def differences(self, expected: Mapping[str, Impairment]) -> list[str]:
        """Read the values in force back; return one sentence per difference from ``expected``. Raises LabError as
        :meth:`set`."""

    def stats(self) -> tuple[DirectionStats, ...]:
        """Return one record per direction, in the order of the start. Raises LabError as :meth:`set`."""

    def record(self, nonce: int) -> PacketRecord | None:
        """Return the packets recorded so far, then record those with this nonce in their mark (0: none).

        Returns None where the emulator records no packets. Raises LabError as :meth:`set`.
        """

    def segmented(self) -> tuple[str, ...]:
        """Return the directions whose sender has segmentation offload off, so that random impairments apply to each MTU
        segment; none if the emulator splits super-packets itself."""

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait until the emulator ends; return its exit status (negative: killed by that signal), or None after
        ``timeout_s`` seconds. ``timeout_s`` None waits without limit."""

    def stop(self) -> None:
        """Take both ends of every fiber down and end. Idempotent."""
