"""The fidelity certificate of a lab as a value: measurements of every link, and the judge's verdicts.

``link_certificate.py`` has the links. ``certificate.json`` is ``to_dict``; its version grows only when a field changes
its meaning, and fields are only added.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from testbed.core.certification.fabric_certificate import FabricCertificate
from testbed.core.certification.link_certificate import LinkCertificate
from testbed.core.fields import Fields
from testbed.core.json_record import JsonRecord, Key, Or
from testbed.core.units import format_delay

__all__ = ["CERTIFIED", "NOISY", "NOT_MEASURABLE", "OUTSIDE", "Certificate", "ConcurrentFault", "Headroom", "HostNoise"]

CERTIFIED = "certified"
NOISY = "certified, noisy host"
"""All fibers are within tolerance, and the host delays packets."""
OUTSIDE = "outside tolerance"
"""A fiber does not match the topology."""
NOT_MEASURABLE = "not measurable on this host now"
"""No fiber is outside tolerance, but the host delayed too many packets to judge a quantity."""

BUSY = 0.95
"""Share of all cores above which a machine measures itself rather than its fibers."""
MOST_REASONS = 6
"""Reasons that a refusal lists; the table has all of them."""
STOLEN = 0.1
"""Share of the cores' time taken by other guests of the same hardware above which the same is true."""


@dataclass(frozen=True)
class Headroom(JsonRecord):
    """CPU headroom during the measurement, as shares of all cores (0..1): ``free``, and ``stolen`` by other guests."""

    WRITTEN: ClassVar = ("trusted", "note")

    free: float
    stolen: float = 0.0

    @property
    def trusted(self) -> bool:
        return not self.note

    @property
    def note(self) -> str:
        """Why the measurement may not show the fibers alone; empty when it does."""
        if 1.0 - self.free >= BUSY:
            return f"the machine was {1 - self.free:.0%} busy during the measurement, which inflates these numbers"
        if self.stolen >= STOLEN:
            return (
                f"other guests took {self.stolen:.0%} of this machine's CPU time during the measurement,"
                " which inflates these numbers"
            )
        return ""


DELAYED_SHARE = 0.1
"""A host that delays a larger share of the small packets is noisy."""
STALLED_SHARE = 0.03
"""A host whose cores are stalled for a larger share of their time is noisy."""


@dataclass(frozen=True)
class HostNoise(JsonRecord):
    """Delays by the host while the fibers were measured.

    Attributes:
        packets, delayed: number of small packets that arrived, and of those that the host delayed by its logs.
        median_s, p99_s: delay of the delayed packets beyond the median of the others; None if none was delayed.
        stalls, longest_stall_s, stalled_share: number of stalls of the cores, the longest, and the share of the cores'
            time (0..1) in stalls; ``stalls`` is None if stalls are not logged.
    """

    packets: int = 0
    delayed: int = 0
    median_s: float | None = None
    p99_s: float | None = None
    stalls: int | None = None
    longest_stall_s: float = 0.0
    stalled_share: float = 0.0

    @property
    def is_noisy(self) -> bool:
        return self.stalled_share > STALLED_SHARE or self.delayed > DELAYED_SHARE * self.packets

    def note(self, stolen: float) -> str:
        """Return the noise in words; empty if the host is quiet.

        Args:
            stolen: share of the cores' time that other guests took meanwhile, 0..1.
        """
        if not self.is_noisy:
            return ""
        parts = []
        if self.delayed and self.median_s is not None and self.p99_s is not None:
            parts.append(
                f"it delayed {self.delayed / self.packets:.0%} of the small packets,"
                f" by {format_delay(max(0.0, self.median_s), 2)} at the median"
                f" and {format_delay(max(0.0, self.p99_s), 2)} at the 99th percentile"
            )
        if self.stalls:
            parts.append(
                f"its cores stalled {self.stalls} times, for {self.stalled_share:.1%} of the time and"
                f" {format_delay(self.longest_stall_s, 2)} at most, so a step takes about"
                f" {self.stalled_share / max(0.01, 1.0 - self.stalled_share):.0%} longer"
            )
        parts.append(f"other guests took {stolen:.1%} of the CPU time (steal)")
        return f"noisy host: {'; '.join(parts)}"


@dataclass(frozen=True)
class ConcurrentFault(JsonRecord):
    """A fault that was active during the measurement; ``links`` are those it affects, none for a fault of a rank."""

    name: Annotated[str, Or("")]
    links: tuple[str, ...] = ()


@dataclass(frozen=True)
class Certificate(JsonRecord):
    """All links of a lab, and the check that nothing bypasses them.

    ``taken_unix_s`` is wall-clock time, ``took_s`` the duration of the measurement. ``cpu_busy`` and ``stolen`` are
    shares of all cores, 0..1, while delays were measured: busy, the measurement included, and taken by other guests.
    ``noise`` is the delay by the host. ``faults`` were active meanwhile. ``around_pairs`` pairs of sites were probed
    for a path around the fibers, in ``around_families`` of addresses, which took ``around_took_s``; 0 in certificates
    of older versions. ``around_unmeasured``: the host prevented a result of that check. ``fabrics`` has the sites with
    a rate of their fabric. On reading, a missing field counts against the lab, never for it.
    """

    WRITTEN: ClassVar = ("version", "verdict", "certified", "noisy", "notes", "headroom")
    version: ClassVar = 1

    lab: Annotated[str, Or("")]
    topology: Annotated[str, Or("")]
    taken_unix_s: Annotated[float, Or(0.0)]
    emulator: Annotated[str, Or("")]
    links: Annotated[tuple[LinkCertificate, ...], Or(())]
    around_ok: Annotated[bool, Key("around.ok"), Or(False)]
    around_why: Annotated[str, Key("around.why"), Or("")]
    cpu_busy: Annotated[float, Or(0.0)]
    host: Fields = field(default_factory=dict)
    thorough: bool = False
    took_s: float | None = None
    stolen: Annotated[float, Key("headroom.stolen")] = 0.0
    faults: tuple[ConcurrentFault, ...] = ()
    around_pairs: Annotated[int, Key("around.pairs")] = 0
    around_families: Annotated[tuple[str, ...], Key("around.families")] = ()
    around_took_s: Annotated[float | None, Key("around.took_s")] = None
    fabrics: Annotated[tuple[FabricCertificate, ...], Key("fabrics", omit_empty=True)] = ()
    noise: HostNoise = HostNoise()
    around_unmeasured: Annotated[bool, Key("around.unmeasured", omit_empty=True)] = False

    @property
    def verdict(self) -> str:
        """One of :data:`CERTIFIED`, :data:`NOISY`, :data:`OUTSIDE` and :data:`NOT_MEASURABLE`."""
        if self.why:
            return OUTSIDE
        if self.unmeasured:
            return NOT_MEASURABLE
        return NOISY if self.noisy else CERTIFIED

    @property
    def certified(self) -> bool:
        """Whether all fibers are within tolerance, also on a noisy host."""
        return not self.why and not self.unmeasured

    @property
    def noisy(self) -> bool:
        return self.noise.is_noisy

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why quantities are not measurable on this host, as sentences; empty if all could be judged."""
        reasons = [why for link in self.links for why in link.unmeasured]
        reasons += [why for fabric in self.fabrics for why in fabric.unmeasured]
        return (*reasons, *([self.around_why] if self.around_unmeasured else []))

    @property
    def why(self) -> tuple[str, ...]:
        """Every reason against the lab, as sentences; empty when it is certified."""
        reasons = [why for link in self.links for why in link.why]
        reasons += [why for fabric in self.fabrics for why in fabric.why]
        if not self.links:
            reasons.append("no link was measured")
        if not self.around_ok and not self.around_unmeasured:
            reasons.append(self.around_why or "a path bypasses the fiber")
        # Also a fault too slight to be measured: the lab was not in its healthy state.
        reasons += [f"{', '.join(fault.links)}: fault {fault.name} is active" for fault in self.faults if fault.links]
        return tuple(reasons)

    @property
    def refusal(self) -> str:
        """Why the lab is refused, and the remedy; for labs that are not certified, or noisy with ``strict``."""
        why = self.noise_note
        if self.why:
            why = f"the lab is outside tolerance: {_shortened(self.why)}"
        elif self.unmeasured:
            why = f"the lab is not measurable on this host now: {_shortened(self.unmeasured)}"
        return f"{why}\n{self.remedy}"

    @property
    def remedy(self) -> str:
        """What to do if the lab is refused."""
        if self.why:
            return "correct the topology, or continue with --allow-uncertified"
        if self.unmeasured:
            return (
                f"the CPU was {self.headroom.free:.0%} free: stop other programs and try again, use a larger scale,"
                " or continue with --allow-uncertified"
            )
        return "try again when the host is quiet, or without --strict"

    @property
    def headroom(self) -> Headroom:
        return Headroom(1.0 - self.cpu_busy, self.stolen)

    @property
    def noise_note(self) -> str:
        """The noise of the host in words; empty if it is quiet."""
        return self.noise.note(self.stolen)

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not count against the lab, but limits the trust in the numbers: sentences."""
        undecided = [why for link in self.links for why in link.inconclusive]
        concurrent = [
            f"fault {fault.name} was active, which affects no fiber" for fault in self.faults if not fault.links
        ]
        repeated = [what for link in self.links for what in link.repeated]
        early = [note for link in self.links for note in link.early]
        inside = [note for fabric in self.fabrics for note in fabric.notes]
        host = [note for note in (self.noise_note, self.headroom.note) if note]
        return (*host, *self.unmeasured, *concurrent, *early, *repeated, *undecided, *inside)

    def __str__(self) -> str:
        """Format the verdict, and a line per direction: target and median in us, and what is wrong with it."""
        reasons = "; ".join(self.why or self.unmeasured)
        lines = [f"{self.lab}: {self.verdict}" + (f": {reasons}" if reasons else "")]
        for direction in (direction for link in self.links for direction in link.directions):
            median = (
                "not measured" if direction.measured is None else f"measured {direction.measured.median * 1e6:.1f} us"
            )
            lines.append(f"  {direction.direction}: target {direction.target_s * 1e6:.1f} us, {median}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return what ``certificate.json`` has."""
        written = super().to_dict()
        written["noise"] |= {"noisy": self.noisy, "note": self.noise_note}
        return written | {"why": list(self.why or self.unmeasured)}


def _shortened(reasons: tuple[str, ...]) -> str:
    shown = "; ".join(reasons[:MOST_REASONS])
    return shown if len(reasons) <= MOST_REASONS else f"{shown}; and {len(reasons) - MOST_REASONS} more"
