"""The certificate of one link as a value: measurements of each direction and of the round trip.

A calibrated direction (``core/physics/calibration.py``) is measured from node to node; its error is measured - target.
Another one is measured from gateway to gateway; its error is measured - target - baseline, where the baseline (*bare*)
is the same path with a zero-delay redirect in place of the emulator: the error is the emulator's own. ``judge.py``
judges; docs/certificate.md justifies its tolerances.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from testbed.core.certification.spread import Spread
from testbed.core.fields import Fields, number, text, texts
from testbed.core.json_record import Derived, JsonRecord, Key, Or

__all__ = [
    "NOT_MEASURED",
    "NOT_TOLD",
    "RATE_TOLERANCE",
    "Check",
    "DirectionCertificate",
    "LinkCertificate",
    "RateCertificate",
    "RoundTrip",
    "Tries",
    "tolerance_s",
]

RATE_TOLERANCE = 0.05
"""A rate may be off by this share of its target: a packet train is no more precise on a loaded host."""


NOT_TOLD = "not told"
"""Verdict where nothing is outside tolerance, but too little was observed to say ok."""


NOT_MEASURED = "not measured"
"""Verdict where nothing is outside tolerance, but the host delayed too many packets to judge a quantity."""


def tolerance_s(target_s: float) -> float:
    """Largest error of a one-way delay that certifies: 50 us, or 2 % of a long fiber's delay."""
    return max(50e-6, 0.02 * target_s)


def _known_verdict(fields: Fields, key: str) -> str:
    """Return the verdict on a quantity; a missing or unknown one counts against the lab."""
    verdict = text(fields, key)
    return verdict if verdict in ("ok", "inconclusive", "unmeasured") else "bad"


@dataclass(frozen=True)
class Check(JsonRecord):
    """One quantity: target, measured value and accepted range.

    ``target``, ``measured`` and the ends of the accepted range, ``low`` and ``high``, are in SI units: seconds, shares
    (0..1), packets, bits per second. ``measured`` of a delay is less the baseline already. ``verdict`` is ok, bad,
    inconclusive (shown as "not told") or unmeasured (shown as "not measured": the host delayed too many packets);
    ``why`` is a sentence on what is wrong, or on what could not be decided.
    ``would_tell`` is the number of packets that would decide it; None where it is decided, or no number would.
    """

    what: Annotated[str, Or("")]
    target: float | None
    measured: float | None
    low: float | None = None
    high: float | None = None
    verdict: Annotated[str, Derived(_known_verdict)] = "ok"
    why: str = ""
    would_tell: int | None = None

    @property
    def shown_verdict(self) -> str:
        """The verdict as a word for people."""
        return {"inconclusive": NOT_TOLD, "unmeasured": NOT_MEASURED}.get(self.verdict, self.verdict)


_NOTHING = Spread(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class RateCertificate(JsonRecord):
    target_bps: float
    measured_bps: float
    tolerance: Annotated[float, Or(RATE_TOLERANCE)] = RATE_TOLERANCE

    @property
    def ok(self) -> bool:
        return abs(self.measured_bps - self.target_bps) <= self.tolerance * self.target_bps


@dataclass(frozen=True)
class Tries(JsonRecord):
    """How often delay (with jitter) and rate were measured: again only where the host delayed too many packets."""

    delay: Annotated[int, Or(1)] = 1
    rate: Annotated[int, Or(1)] = 1


class _Judged(JsonRecord):
    """What directions and round trips have in common."""

    target_s: float
    measured: Spread | None
    bare: Spread | None
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is outside tolerance; what could not be told does not count against it."""
        return self.verdict != "bad"

    @property
    def verdict(self) -> str:
        """``ok`` only if every quantity is; ``bad`` if one is outside tolerance; else not measured, or not told."""
        if getattr(self, "why", ()):
            return "bad"
        if self.unmeasured:
            return NOT_MEASURED
        return NOT_TOLD if any(check.verdict == "inconclusive" for check in self.checks) else "ok"

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why quantities are not measurable on this host, as sentences."""
        return tuple(check.why for check in self.checks if check.verdict == "unmeasured")

    @property
    def subtracted(self) -> Spread | None:
        """What the error subtracts beside the target; None if it was not measured."""
        return self.bare

    @property
    def error_min_s(self) -> float | None:
        less = self.subtracted
        return None if not self.measured or not less else self.measured.min - self.target_s - less.min

    @property
    def error_median_s(self) -> float | None:
        less = self.subtracted
        return None if not self.measured or not less else self.measured.median - self.target_s - less.median

    @property
    def inconclusive(self) -> tuple[str, ...]:
        """What could not be decided, as sentences."""
        return tuple(check.why for check in self.checks if check.verdict == "inconclusive" and check.why)

    def check(self, what: str) -> Check | None:
        return next((check for check in self.checks if check.what == what), None)

    @property
    def error_s(self) -> dict[str, float | None]:
        return {"min": self.error_min_s, "median": self.error_median_s}


def _tolerance_s(fields: Fields, key: str) -> float:
    limit_s = number(fields, key)
    return tolerance_s(number(fields, "target_s") or 0.0) if limit_s is None else limit_s


def _why(fields: Fields, key: str) -> tuple[str, ...]:
    """Return what is wrong; without a known verdict, a direction counts against the lab."""
    why = texts(fields, key)
    return why or (() if text(fields, "verdict") in ("ok", NOT_TOLD, NOT_MEASURED) else ("verdict is not ok",))


@dataclass(frozen=True)
class DirectionCertificate(_Judged):
    """One direction, ``link:site``. Times are one way, in seconds; ``measured`` is None when no probe arrived.

    ``between`` says where delays were measured: ``nodes`` or ``gateways``. ``taken_off_s`` is what calibration takes
    off the direction's delays; 0: not calibrated. ``bare`` is the baseline path, which the error of a direction between
    nodes does not subtract.

    ``probes`` and ``lost`` count packets of all sizes. ``segmentation`` says what splits a sender's super-packets into
    MTU-sized ones before random effects apply: ``emulator``, ``sender`` (its offload is off), or ``none`` (there are no
    random effects).
    """

    WRITTEN: ClassVar = ("error_s", "verdict", "starved")

    direction: Annotated[str, Or("")]
    target_s: Annotated[float, Or(0.0)]
    measured: Annotated[Spread | None, Key("measured_s")]
    bare: Annotated[Spread | None, Key("bare_s")]
    tolerance_s: Annotated[float, Derived(_tolerance_s)]
    probes: Annotated[int, Or(0)]
    lost: Annotated[int, Or(0)]
    rate: RateCertificate | None = None
    checks: tuple[Check, ...] = ()
    segmentation: str = ""
    why: Annotated[tuple[str, ...], Derived(_why)] = ()
    """What is wrong, as sentences; empty when nothing is."""
    tries: Tries = Tries()
    taken_off_s: float = 0.0
    between: Annotated[str, Or("gateways")] = "gateways"

    @property
    def repeated(self) -> tuple[str, ...]:
        """What was measured more than once, as sentences."""
        tries = (("delay and jitter", self.tries.delay), ("rate", self.tries.rate))
        return tuple(
            f"{what} measured {number} times, because the host delayed packets" for what, number in tries if number > 1
        )

    @property
    def subtracted(self) -> Spread | None:
        return _NOTHING if self.between == "nodes" else self.bare

    @property
    def early(self) -> str:
        """A sentence if a packet arrived at the far node sooner than the fiber's delay; empty if none did."""
        jitter = self.check("jitter")
        if self.between != "nodes" or self.measured is None or (jitter is not None and jitter.target):
            return ""
        early_s = self.target_s - self.measured.min
        return f"a packet was {early_s * 1e6:.1f} us early from node to node" if early_s > 0 else ""

    @property
    def starved(self) -> bool:
        return bool(self.unmeasured)


@dataclass(frozen=True)
class RoundTrip(_Judged):
    """Echoes over both directions of a link, answered by the kernel of the far gateway or node. Times in seconds.

    ``between`` as in a direction; ``bare`` is the RTT of the baseline between gateways, inside a site between nodes.
    """

    WRITTEN: ClassVar = ("error_s",)

    target_s: float
    measured: Annotated[Spread | None, Key("measured_s")]
    bare: Annotated[Spread | None, Key("bare_s")]
    tolerance_s: Annotated[float, Or(0.0)]
    probes: Annotated[int, Or(0)]
    unanswered: Annotated[int, Or(0)]
    checks: tuple[Check, ...] = ()
    between: Annotated[str, Or("gateways")] = "gateways"

    @property
    def why(self) -> tuple[str, ...]:
        return tuple(check.why for check in self.checks if check.verdict == "bad")


@dataclass(frozen=True)
class LinkCertificate(JsonRecord):
    name: Annotated[str, Or("")]
    km: Annotated[float, Or(0.0)]
    directions: Annotated[tuple[DirectionCertificate, ...], Or(())]
    rtt: RoundTrip | None = None

    @property
    def ok(self) -> bool:
        return bool(self.directions) and not self.why

    @property
    def why(self) -> tuple[str, ...]:
        """Every reason against the link, prefixed with the name of the direction or of the link."""
        if not self.directions:
            return (f"{self.name}: was not measured",)
        reasons = [f"{direction.direction}: {why}" for direction in self.directions for why in direction.why]
        return (*reasons, *(f"{self.name}: {why}" for why in (self.rtt.why if self.rtt else ())))

    @property
    def verdict(self) -> str:
        """The worst verdict of its directions and its round trip: bad, not measured, not told, ok."""
        verdicts = [direction.verdict for direction in self.directions] + ([self.rtt.verdict] if self.rtt else [])
        if not self.ok:
            return "bad"
        return next((verdict for verdict in (NOT_MEASURED, NOT_TOLD) if verdict in verdicts), "ok")

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """Why quantities are not measurable on this host, prefixed with the name of the direction or of the link."""
        reasons = [f"{direction.direction}: {why}" for direction in self.directions for why in direction.unmeasured]
        return (*reasons, *(f"{self.name}: {why}" for why in (self.rtt.unmeasured if self.rtt else ())))

    @property
    def repeated(self) -> tuple[str, ...]:
        return tuple(f"{direction.direction}: {what}" for direction in self.directions for what in direction.repeated)

    @property
    def early(self) -> tuple[str, ...]:
        return tuple(f"{direction.direction}: {direction.early}" for direction in self.directions if direction.early)

    @property
    def inconclusive(self) -> tuple[str, ...]:
        undecided = [f"{direction.direction}: {why}" for direction in self.directions for why in direction.inconclusive]
        return (*undecided, *(f"{self.name}: {why}" for why in (self.rtt.inconclusive if self.rtt else ())))
