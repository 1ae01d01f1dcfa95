"""A certificate in sentences, for a reader who does not know its columns."""

from __future__ import annotations

from testbed.core.certification.certificate import Certificate
from testbed.core.certification.fabric_certificate import FabricCertificate
from testbed.core.certification.link_certificate import DirectionCertificate, QuantityCheck
from testbed.core.physics.full_scale import stands_for
from testbed.core.units import format_delay, format_rate

__all__ = ["sentences"]

_MOST_NAMED = 3


def sentences(certificate: Certificate, scale: float = 1.0) -> tuple[str, ...]:
    """Return what was found of all fibers together; nothing of what was not measured.

    ``scale`` is the topology's: rates are followed by what they stand for.
    """
    directions = [direction for link in certificate.links for direction in link.directions if direction.measured]
    if not directions:
        return ()
    return tuple(
        sentence
        for sentence in (
            _verdict(certificate),
            _noise(certificate),
            _delay(directions),
            _lost(directions),
            _rate(directions, scale),
            *(_fabric(fabric, scale) for fabric in certificate.fabrics),
        )
        if sentence
    )


def _verdict(certificate: Certificate) -> str:
    bad = [link.name for link in certificate.links if not link.ok]
    unmeasured = [link.name for link in certificate.links if link.unmeasured]
    count = len(certificate.links)
    if not bad and unmeasured:
        return f"{len(unmeasured)} of {count} links could not be measured on this host: {_named(unmeasured)}."
    if not bad:
        links = {1: "The link behaves", 2: "Both links behave"}.get(count, f"All {count} links behave")
        return f"{links} as the topology asks."
    does = "does" if len(bad) == 1 else "do"
    return f"{len(bad)} of {count} links {does} not behave as the topology asks: {_named(bad)}."


def _named(links: list[str]) -> str:
    unlisted = len(links) - _MOST_NAMED
    return ", ".join(links[:_MOST_NAMED]) + (f" and {unlisted} more" if unlisted > 0 else "")


def _noise(certificate: Certificate) -> str:
    """Return the noise of the host as a sentence; empty if the host is quiet."""
    note = certificate.noise_note
    return f"{note[:1].upper()}{note[1:]}." if note else ""


def _delay(directions: list[DirectionCertificate]) -> str:
    measured = [direction for direction in directions if direction.error_median_s is not None]
    if not measured:
        return ""
    worst = max(measured, key=lambda direction: abs(direction.error_median_s or 0.0) / direction.tolerance_s)
    error_s = worst.error_median_s or 0.0
    late = "late" if error_s >= 0 else "early"
    allowed = f"{format_delay(worst.tolerance_s, 3)} are allowed"
    return f"Median packets are at most {format_delay(abs(error_s), 3)} {late}; {allowed} ({_arrow(worst)})."


def _lost(directions: list[DirectionCertificate]) -> str:
    clean = [direction for direction in directions if not _target(direction.check("loss"))]
    lost, sent = sum(direction.lost for direction in clean), sum(direction.probes for direction in clean)
    if not sent:
        return ""
    where = "" if len(clean) == len(directions) else " where none shall be"
    if not lost:
        return f"None of {sent:,} packets was lost{where}."
    return f"{lost:,} of {sent:,} packets {'was' if lost == 1 else 'were'} lost{where}."


def _rate(directions: list[DirectionCertificate], scale: float) -> str:
    checks = [
        check for direction in directions if (check := direction.check("rate")) and check.measured and check.target
    ]
    if not checks:
        return ""
    worst = min(checks, key=lambda check: (check.measured or 0.0) / (check.target or 1.0))
    asked = stands_for(worst.target, scale)
    target = asked.replace(" for ", ", which stands for ", 1)
    return f"The slowest direction carries {format_rate(worst.measured or 0.0, 3)} of {target}."


def _fabric(fabric: FabricCertificate, scale: float) -> str:
    ports, core = fabric.measured(core=False), fabric.measured(core=True)
    if not ports:
        return f"The fabric of {fabric.site} was not measured."
    asked = min(fabric.rate_bps, fabric.core_bps)
    target = stands_for(asked, scale).replace(" for ", ", which stands for ", 1)
    summary = f"The slowest port of the fabric of {fabric.site} carries {format_rate(min(ports), 3)} of {target}"
    if core:
        target = stands_for(fabric.core_bps, scale).replace(" for ", ", which stands for ", 1)
        summary += f"; its core carries {format_rate(core[0], 3)} of {target}"
    return f"{summary}."


def _target(check: QuantityCheck | None) -> float:
    return (check.target or 0.0) if check else 0.0


def _arrow(direction: DirectionCertificate) -> str:
    return direction.direction.replace(":", " → ")
