"""The certificate of one link as a value: measurements of each direction and of the round trip.

A calibrated direction (``core/physics/calibration.py``) is measured from node to node; its error is measured - target.
Another one is measured from gateway to gateway; its error is measured - target - baseline, where the baseline (*bare*)
is the same path with a zero-delay redirect in place of the emulator: the error is the emulator's own. ``judge.py``
judges; docs/certificate.md justifies its tolerances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from testbed.core.certification.spread import Spread
from testbed.core.fields import Fields, mapping, number, sequence, text, texts

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


@dataclass(frozen=True)
class Check:
    """One quantity: target, measured value and accepted range.

    ``target``, ``measured`` and the ends of the accepted range, ``low`` and ``high``, are in SI units: seconds, shares
    (0..1), packets, bits per second. ``measured`` of a delay is less the baseline already. ``verdict`` is ok, bad,
    inconclusive (shown as "not told") or unmeasured (shown as "not measured": the host delayed too many packets);
    ``why`` is a sentence on what is wrong, or on what could not be decided.
    ``would_tell`` is the number of packets that would decide it; None where it is decided, or no number would.
    """

    what: str
    target: float | None
    measured: float | None
    low: float | None = None
    high: float | None = None
    verdict: str = "ok"
    why: str = ""
    would_tell: int | None = None

    @property
    def shown_verdict(self) -> str:
        """The verdict as a word for people."""
        return {"inconclusive": NOT_TOLD, "unmeasured": NOT_MEASURED}.get(self.verdict, self.verdict)

    @classmethod
    def from_dict(cls, fields: Fields) -> Check:
        target, measured, low, high = (number(fields, key) for key in ("target", "measured", "low", "high"))
        verdict = text(fields, "verdict")
        known = verdict if verdict in ("ok", "inconclusive", "unmeasured") else "bad"
        packets = number(fields, "would_tell")
        would_tell = None if packets is None else int(packets)
        return cls(text(fields, "what"), target, measured, low, high, known, text(fields, "why"), would_tell)


_NOTHING = Spread(0.0, 0.0, 0.0)


def _checks(fields: Fields) -> tuple[Check, ...]:
    return tuple(Check.from_dict(each) for each in sequence(fields, "checks") if isinstance(each, Mapping))


def _finite(checks: Iterable[Check]) -> list[dict[str, object]]:
    """Convert to JSON, which has no infinity: no limit becomes null."""
    return [
        {key: None if value in (float("inf"), float("-inf")) else value for key, value in asdict(check).items()}
        for check in checks
    ]


@dataclass(frozen=True)
class RateCertificate:
    target_bps: float
    measured_bps: float
    tolerance: float = RATE_TOLERANCE

    @property
    def ok(self) -> bool:
        return abs(self.measured_bps - self.target_bps) <= self.tolerance * self.target_bps


@dataclass(frozen=True)
class Tries:
    """How often delay (with jitter) and rate were measured: again only where the host delayed too many packets."""

    delay: int = 1
    rate: int = 1

    @classmethod
    def from_dict(cls, fields: Fields) -> Tries:
        """Read back; an older certificate, which does not have it, measured all once."""
        return cls(int(number(fields, "delay") or 1), int(number(fields, "rate") or 1))


class _Judged:
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

    def _times(self) -> dict[str, object]:
        return {
            "target_s": self.target_s,
            "measured_s": asdict(self.measured) if self.measured else None,
            "bare_s": asdict(self.bare) if self.bare else None,
            "error_s": {"min": self.error_min_s, "median": self.error_median_s},
        }


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

    direction: str
    target_s: float
    measured: Spread | None
    bare: Spread | None
    tolerance_s: float
    probes: int
    lost: int
    rate: RateCertificate | None = None
    checks: tuple[Check, ...] = ()
    segmentation: str = ""
    why: tuple[str, ...] = ()
    """What is wrong, as sentences; empty when nothing is."""
    tries: Tries = Tries()
    taken_off_s: float = 0.0
    between: str = "gateways"

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

    def to_dict(self) -> dict[str, object]:
        return {
            "direction": self.direction,
            **self._times(),
            "tolerance_s": self.tolerance_s,
            "probes": self.probes,
            "lost": self.lost,
            "rate": asdict(self.rate) if self.rate else None,
            "checks": _finite(self.checks),
            "segmentation": self.segmentation,
            "taken_off_s": self.taken_off_s,
            "between": self.between,
            "verdict": self.verdict,
            "why": list(self.why),
            "tries": asdict(self.tries),
            "starved": bool(self.unmeasured),
        }

    @classmethod
    def from_dict(cls, fields: Fields) -> DirectionCertificate:
        rate = mapping(fields, "rate")
        target_bps, measured_bps = number(rate, "target_bps"), number(rate, "measured_bps")
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
            checks=_checks(fields),
            segmentation=text(fields, "segmentation"),
            why=_why(fields),
            tries=Tries.from_dict(mapping(fields, "tries")),
            taken_off_s=number(fields, "taken_off_s") or 0.0,
            between=text(fields, "between") or "gateways",
        )


@dataclass(frozen=True)
class RoundTrip(_Judged):
    """Echoes over both directions of a link, answered by the kernel of the far gateway or node. Times in seconds.

    ``between`` as in a direction; ``bare`` is the RTT of the baseline between gateways, inside a site between nodes.
    """

    target_s: float
    measured: Spread | None
    bare: Spread | None
    tolerance_s: float
    probes: int
    unanswered: int
    checks: tuple[Check, ...] = ()
    between: str = "gateways"

    @property
    def why(self) -> tuple[str, ...]:
        return tuple(check.why for check in self.checks if check.verdict == "bad")

    def to_dict(self) -> dict[str, object]:
        return {
            **self._times(),
            "tolerance_s": self.tolerance_s,
            "probes": self.probes,
            "unanswered": self.unanswered,
            "between": self.between,
            "checks": _finite(self.checks),
        }

    @classmethod
    def from_dict(cls, fields: Fields) -> RoundTrip | None:
        """Return None for a certificate without a round trip."""
        target = number(fields, "target_s")
        if target is None:
            return None
        return cls(
            target,
            Spread.from_dict(mapping(fields, "measured_s")),
            Spread.from_dict(mapping(fields, "bare_s")),
            number(fields, "tolerance_s") or 0.0,
            int(number(fields, "probes") or 0),
            int(number(fields, "unanswered") or 0),
            _checks(fields),
            text(fields, "between") or "gateways",
        )


@dataclass(frozen=True)
class LinkCertificate:
    name: str
    km: float
    directions: tuple[DirectionCertificate, ...]
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

    def to_dict(self) -> dict[str, object]:
        return {
            "name": self.name,
            "km": self.km,
            "directions": [each.to_dict() for each in self.directions],
            "rtt": self.rtt.to_dict() if self.rtt else None,
        }

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
            rtt=RoundTrip.from_dict(mapping(fields, "rtt")),
        )


def _why(fields: Fields) -> tuple[str, ...]:
    why = texts(fields, "why")
    undecided = ("ok", NOT_TOLD, NOT_MEASURED)
    return ("verdict is not ok",) if not why and text(fields, "verdict") not in undecided else why
