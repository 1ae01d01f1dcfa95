"""The fidelity certificate: what every fiber was measured to do before a job was started on it.

The error of a direction is measured - target - bare, where *bare* is the same path with a zero-delay redirect in place
of the emulator: what remains is the emulator's own. It is judged by the minimum (what the fiber can do) and by the
median (what it does); never by the maximum, which belongs to the host's scheduler.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from testbed.core.evidence.record import Fields, mapping, number, sequence, text, texts

__all__ = [
    "RATE_TOLERANCE",
    "Certificate",
    "DirectionCertificate",
    "LinkCertificate",
    "RateCertificate",
    "Spread",
    "build",
    "build_direction",
    "judge_direction",
    "tolerance_s",
]

RATE_TOLERANCE = 0.05
"""A rate may be off by this share of its target: a TCP probe of a second cannot tell more on a loaded host."""

_SIGMAS = 4.9
"""Half width of the loss interval: a two-sided 1e-6, so that a thousand certifications do not fail by chance."""


@dataclass(frozen=True)
class Spread:
    """Minimum, median and 99th percentile of a sample, in the sample's unit."""

    min: float
    median: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread | None:
        """None for an empty sample. The percentile is the nearest rank, so it is always a value that was measured."""
        if not samples:
            return None
        ordered = sorted(samples)
        return cls(ordered[0], statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1])

    @classmethod
    def from_dict(cls, fields: Fields) -> Spread | None:
        low, median, p99 = (number(fields, key) for key in ("min", "median", "p99"))
        return None if low is None or median is None or p99 is None else cls(low, median, p99)


@dataclass(frozen=True)
class RateCertificate:
    target_bps: float
    measured_bps: float
    tolerance: float = RATE_TOLERANCE

    @property
    def ok(self) -> bool:
        return abs(self.measured_bps - self.target_bps) <= self.tolerance * self.target_bps


@dataclass(frozen=True)
class DirectionCertificate:
    """One direction, ``link:site``. Times are one way, in seconds; ``measured`` is None when no probe came."""

    direction: str
    target_s: float
    measured: Spread | None
    bare: Spread | None
    tolerance_s: float
    probes: int
    lost: int
    rate: RateCertificate | None = None
    why: tuple[str, ...] = ()
    """What is wrong, in sentences; empty when nothing is."""

    @property
    def ok(self) -> bool:
        return not self.why

    @property
    def error_min_s(self) -> float | None:
        return None if not self.measured or not self.bare else self.measured.min - self.target_s - self.bare.min

    @property
    def error_median_s(self) -> float | None:
        return None if not self.measured or not self.bare else self.measured.median - self.target_s - self.bare.median

    def to_dict(self) -> dict[str, object]:
        return {
            "direction": self.direction,
            "target_s": self.target_s,
            "measured_s": asdict(self.measured) if self.measured else None,
            "bare_s": asdict(self.bare) if self.bare else None,
            "error_s": {"min": self.error_min_s, "median": self.error_median_s},
            "tolerance_s": self.tolerance_s,
            "probes": self.probes,
            "lost": self.lost,
            "rate": asdict(self.rate) if self.rate else None,
            "verdict": "ok" if self.ok else "bad",
            "why": list(self.why),
        }

    @classmethod
    def from_dict(cls, fields: Fields) -> DirectionCertificate:
        rate = mapping(fields, "rate")
        target_bps, measured_bps = number(rate, "target_bps"), number(rate, "measured_bps")
        why = texts(fields, "why")
        if not why and text(fields, "verdict") != "ok":
            why = ("its verdict is not ok",)
        target = number(fields, "target_s") or 0.0
        limit = number(fields, "tolerance_s")
        return cls(
            direction=text(fields, "direction"),
            target_s=target,
            measured=Spread.from_dict(mapping(fields, "measured_s")),
            bare=Spread.from_dict(mapping(fields, "bare_s")),
            tolerance_s=tolerance_s(target) if limit is None else limit,
            probes=int(number(fields, "probes") or 0),
            lost=int(number(fields, "lost") or 0),
            rate=None
            if target_bps is None or measured_bps is None
            else RateCertificate(target_bps, measured_bps, number(rate, "tolerance") or RATE_TOLERANCE),
            why=why,
        )


@dataclass(frozen=True)
class LinkCertificate:
    name: str
    km: float
    directions: tuple[DirectionCertificate, ...]

    @property
    def ok(self) -> bool:
        return bool(self.directions) and all(direction.ok for direction in self.directions)

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "km": self.km, "directions": [each.to_dict() for each in self.directions]}

    @classmethod
    def from_dict(cls, fields: Fields) -> LinkCertificate:
        return cls(
            name=text(fields, "name"),
            km=number(fields, "km") or 0.0,
            directions=tuple(
                DirectionCertificate.from_dict(each)
                for each in sequence(fields, "directions")
                if isinstance(each, Mapping)
            ),
        )


@dataclass(frozen=True)
class Certificate:
    """All links of a lab, and that nothing goes around them. ``taken_unix_s`` is wall-clock time."""

    lab: str
    topology: str
    taken_unix_s: float
    emulator: str
    links: tuple[LinkCertificate, ...]
    around_ok: bool
    around_why: str
    cpu_busy: float
    host: Fields = field(default_factory=dict)

    @property
    def certified(self) -> bool:
        return not self.why

    @property
    def why(self) -> tuple[str, ...]:
        """Every reason against the lab, in sentences; empty when it is certified."""
        reasons = [f"{each.direction}: {why}" for link in self.links for each in link.directions for why in each.why]
        reasons += [f"{link.name}: was not measured" for link in self.links if not link.directions]
        if not self.links:
            reasons.append("no link was measured")
        if not self.around_ok:
            reasons.append(self.around_why or "there is a way around the fiber")
        return tuple(reasons)

    def __str__(self) -> str:
        """The verdict, and a line per direction: target and median in us, and what is wrong with it."""
        lines = [f"{self.lab}: " + ("certified" if self.certified else "outside tolerance: " + "; ".join(self.why))]
        for each in (each for link in self.links for each in link.directions):
            median = "not measured" if each.measured is None else f"measured {each.measured.median * 1e6:.1f} us"
            lines.append(f"  {each.direction}: target {each.target_s * 1e6:.1f} us, {median}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, object]:
        return {
            "version": 1,
            "lab": self.lab,
            "topology": self.topology,
            "taken_unix_s": self.taken_unix_s,
            "emulator": self.emulator,
            "verdict": "certified" if self.certified else "outside tolerance",
            "why": list(self.why),
            "links": [link.to_dict() for link in self.links],
            "around": {"ok": self.around_ok, "why": self.around_why},
            "cpu_busy": self.cpu_busy,
            "host": dict(self.host),
        }

    @classmethod
    def from_dict(cls, fields: Fields) -> Certificate:
        """Read back ``to_dict``; what is missing counts against the lab, never for it."""
        around = mapping(fields, "around")
        return cls(
            lab=text(fields, "lab"),
            topology=text(fields, "topology"),
            taken_unix_s=number(fields, "taken_unix_s") or 0.0,
            emulator=text(fields, "emulator"),
            links=tuple(
                LinkCertificate.from_dict(each) for each in sequence(fields, "links") if isinstance(each, Mapping)
            ),
            around_ok=around.get("ok") is True,
            around_why=text(around, "why"),
            cpu_busy=number(fields, "cpu_busy") or 0.0,
            host=mapping(fields, "host"),
        )


def tolerance_s(target_s: float) -> float:
    """Largest error of a one-way delay that certifies: 50 us, or 2 % of a long fiber's delay."""
    return max(50e-6, 0.02 * target_s)


def judge_direction(
    target_s: float,
    measured: Spread | None,
    bare: Spread | None,
    *,
    tolerance: float,
    sent: int,
    lost: int,
    loss_target: float = 0.0,
    rate: RateCertificate | None = None,
) -> tuple[str, ...]:
    """What is wrong with a direction, in sentences; empty when it certifies. Times in seconds, loss 0..1 per packet."""
    why: list[str] = []
    if measured is None:
        why.append("no probe came through")
    elif bare is None:
        why.append("the bare path was not measured, so the error is unknown")
    else:
        for word, value, floor in (("minimum", measured.min, bare.min), ("median", measured.median, bare.median)):
            error = value - target_s - floor
            if abs(error) > tolerance:
                why.append(
                    f"its {word} delay is {abs(error) * 1e6:.0f} us too {'long' if error > 0 else 'short'}"
                    f" (tolerance {tolerance * 1e6:.0f} us)"
                )
        expected = sent * loss_target
        spread = _SIGMAS * math.sqrt(expected * (1.0 - loss_target)) + (1.0 if loss_target else 0.0)
        if abs(lost - expected) > spread:
            why.append(f"{lost} of {sent} probes were lost, where {expected:.0f} were to be")
    if rate is not None and not rate.ok:
        why.append(
            f"its rate is {rate.measured_bps / 1e6:.1f} Mb/s,"
            f" more than {rate.tolerance:.0%} off {rate.target_bps / 1e6:g} Mb/s"
        )
    return tuple(why)


def build_direction(
    direction: str,
    target_s: float,
    samples_s: Sequence[float],
    bare_s: Sequence[float],
    sent: int,
    rate_target_bps: float,
    rate_measured_bps: float | None,
    loss_target: float = 0.0,
) -> DirectionCertificate:
    """Judge one direction from one-way delays.

    Args:
        direction: ``link:site``.
        target_s: what the topology asks for, one way.
        samples_s: one-way delays of the probes that came through, in seconds.
        bare_s: the same over the same path with a zero-delay redirect.
        sent: probes that were sent; those without a sample were lost.
        rate_target_bps: bits per second; 0 means unlimited, and is not judged.
        rate_measured_bps: None when the rate was not measured, and then it is not judged.
        loss_target: probability that a packet is lost, 0..1.
    """
    measured, bare = Spread.of(samples_s), Spread.of(bare_s)
    lost = max(0, sent - len(samples_s))
    limit = tolerance_s(target_s)
    rate = None
    if rate_measured_bps is not None and rate_target_bps > 0:
        rate = RateCertificate(rate_target_bps, rate_measured_bps)
    why = judge_direction(
        target_s, measured, bare, tolerance=limit, sent=sent, lost=lost, loss_target=loss_target, rate=rate
    )
    return DirectionCertificate(direction, target_s, measured, bare, limit, sent, lost, rate, why)


def build(
    lab: str,
    topology: str,
    emulator: str,
    links: Sequence[LinkCertificate],
    around_ok: bool,
    around_why: str,
    cpu_busy: float,
    host: Mapping[str, object],
    taken_unix_s: float,
) -> Certificate:
    """Put the measured links together; ``around_ok`` says that nothing was found to go around the fiber."""
    return Certificate(lab, topology, taken_unix_s, emulator, tuple(links), around_ok, around_why, cpu_busy, dict(host))
