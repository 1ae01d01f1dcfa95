"""Certificate, fidelity under load and scale model as tables for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.core.certification.certificate import CERTIFIED, NOISY, NOT_MEASURABLE, OUTSIDE, Certificate
from testbed.core.certification.certificate_text import sentences
from testbed.core.certification.link_certificate import (
    NOT_TOLD,
    RATE_TOLERANCE,
    DirectionCertificate,
    LinkCertificate,
    QuantityCheck,
    RoundTrip,
)
from testbed.core.physics import full_scale
from testbed.core.report import formats, meanings
from testbed.core.report.blocks import Block, Bullets, Details, Heading, Legend, Section, Table, Text
from testbed.core.report.sections.fidelity_section import Fidelity, Machine
from testbed.core.topology.model import Topology
from testbed.core.units import format_number, format_percent

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["checks_table", "load_table", "meaning", "noise", "section", "segmentation", "table"]

_LEAD = (
    "Error = measured − target − baseline (the same path with zero delay). Lateness = sent − due, measured in the"
    " emulator while the job ran."
)
Row = tuple[str, ...]

_TITLES = {
    CERTIFIED: "Certified before the job",
    NOISY: "Certified before the job, on a noisy host",
    OUTSIDE: "Outside tolerance before the job",
    NOT_MEASURABLE: "Not measurable on this host before the job",
}
_HEAD = (
    *("fiber", "target us", "median us", "error us, min / median", "± us"),
    *("taken off us", "jitter us", "lost", "rate", "verdict"),
)
_CHECKS_HEAD = ("fiber", "quantity", "expected", "measured", "accepted", "verdict", "why")
_LOAD_HEAD = ("direction", "packets", "late us, median / p99", "longest queue", "dropped by the emulator", "verdict")


def title(certificate: Certificate) -> str:
    return _TITLES[certificate.verdict]


def noise(certificate: Certificate | None) -> str:
    """Return a sentence on a host that was noisy when the fibers were certified; else empty."""
    if certificate is None or not certificate.noisy:
        return ""
    return f"When the fibers were measured, this was a {certificate.noise_note}."


def table(certificate: Certificate, scale: float = 1.0) -> Table:
    """The certificate, direction by direction; ``scale`` is the topology's, for what a rate stands for."""
    return Table(_HEAD, tuple(_rows(certificate, scale)), "Certificate", range(1, 9), verdicts=9)


def _rows(certificate: Certificate, scale: float) -> Iterator[Row]:
    """A row per direction, and one per round trip below those of its link."""
    for link in certificate.links:
        for direction in link.directions:
            jitter, rate = direction.check("jitter"), direction.rate
            yield (
                direction.direction,
                *_times(direction, direction.tolerance_s),
                formats.microseconds(direction.taken_off_s) if direction.taken_off_s else "",
                formats.microseconds(jitter.measured if jitter else None),
                f"{formats.count(direction.lost)} of {formats.count(direction.probes)}",
                _rate(rate.measured_bps if rate else None, scale),
                _told(direction),
            )
        if link.rtt:
            verdict = _told(link.rtt) if link.rtt.measured or not link.rtt.ok else formats.UNKNOWN
            yield (_trip(link), *_times(link.rtt, link.rtt.tolerance_s), "", "", "", "", verdict)


def _rate(measured_bps: float | None, scale: float) -> str:
    full = full_scale.at_full_scale(measured_bps, scale, 3)
    return f"{formats.bits_per_s(measured_bps)} for {full}" if full else formats.bits_per_s(measured_bps)


def _told(measurement: DirectionCertificate | RoundTrip) -> str:
    return {"ok": "certified", "bad": "outside tolerance"}.get(measurement.verdict, measurement.verdict)


def _times(measurement: DirectionCertificate | RoundTrip, tolerance_s: float) -> Row:
    return (
        formats.microseconds(measurement.target_s),
        formats.microseconds(measurement.measured.median if measurement.measured else None),
        f"{formats.microseconds(measurement.error_min_s)} / {formats.microseconds(measurement.error_median_s)}",
        formats.microseconds(tolerance_s),
    )


def checks_table(certificate: Certificate, scale: float = 1.0) -> Table | None:
    """Every quantity of every fiber, the range that was accepted, and the verdict."""
    rows = _check_rows(certificate, scale)
    return Table.of(_CHECKS_HEAD, rows, "Every quantity of the certificate", (2, 3, 4), verdicts=5)


def _check_rows(certificate: Certificate, scale: float) -> Iterator[Row]:
    for fabric in certificate.fabrics:
        for rate in fabric.rates:
            ends = [_rate(share * rate.target_bps, scale) for share in (1 - RATE_TOLERANCE, 1 + RATE_TOLERANCE)]
            yield (
                f"fabric of {fabric.site}, {rate.path}",
                "rate",
                _rate(rate.target_bps, scale),
                _rate(rate.measured_bps, scale),
                " to ".join(ends),
                NOT_TOLD if rate.verdict == "inconclusive" else rate.verdict,
                full_scale.in_text(rate.why or rate.note, scale),
            )
    for link in certificate.links:
        for name, check in _checks(link):
            accepted = formats.UNKNOWN
            if check.low is not None or check.high is not None:
                low, high = _value(check, check.low, scale), _value(check, check.high, scale)
                accepted = low if low == high else f"{low} to {high}"
            target, measured = _value(check, check.target, scale), _value(check, check.measured, scale)
            why = full_scale.in_text(check.why, scale)
            yield name, check.what, target, measured, accepted, check.shown_verdict, why


def _checks(link: LinkCertificate) -> Iterator[tuple[str, QuantityCheck]]:
    for direction in link.directions:
        for check in direction.checks:
            yield direction.direction, check
    for check in link.rtt.checks if link.rtt else ():
        yield _trip(link), check


def _trip(link: LinkCertificate) -> str:
    between = link.rtt is not None and link.rtt.between == "nodes"
    return f"{link.name}, node to node" if between else f"{link.name}, round trip"


def meaning(certificate: Certificate) -> str:
    """Return a sentence on what calibration takes off; empty for a lab that is not calibrated."""
    off = [
        direction.taken_off_s for link in certificate.links for direction in link.directions if direction.taken_off_s
    ]
    if not off:
        return ""
    least, most = formats.microseconds(min(off)), formats.microseconds(max(off))
    return (
        f"Calibration takes {least if least == most else f'{least} to {most}'} us off the delays of"
        f" {len(off)} directions, so that two nodes see the fiber's delay; these are measured from node to node, and"
        " their error is the median less the target. A row node to node is the RTT less that inside a site."
    )


def _value(check: QuantityCheck, value: float | None, scale: float) -> str:
    if value is None:
        return formats.UNKNOWN
    kind = check.what.partition(",")[0]
    if kind in ("delay", "RTT", "jitter"):
        return formats.duration(value)
    if kind == "rate":
        return _rate(value, scale)
    if kind == "burst":
        return f"{format_number(value, 3)} packets"
    if 0 < value < 1e-4:
        return f"{value:.3g}".replace("e-0", "e-")
    return format_percent(value, 3)


def load_table(directions: Sequence[Fidelity]) -> Table | None:
    """What each direction did while the job ran."""
    return Table.of(_LOAD_HEAD, _load_rows(directions), "Fidelity under load", (1, 2, 3, 4), verdicts=5)


def _load_rows(directions: Sequence[Fidelity]) -> Iterator[Row]:
    for direction in directions:
        queue = direction.queue_bytes_most
        yield (
            direction.direction,
            formats.count(direction.packets),
            f"{formats.microseconds(direction.median_s)} / {formats.microseconds(direction.p99_s)}",
            formats.UNKNOWN if queue is None else f"{format_number(queue / 1e3, 3)} kB",
            formats.count(direction.own_drops),
            f"{direction.verdict}: {direction.why}" if direction.why else direction.verdict,
        )


def headroom(certificate: Certificate | None, host: Machine) -> str:
    """Return the machine's CPU headroom before and during the job; empty if neither is known."""
    parts = []
    if certificate is not None and certificate.took_s is not None:
        parts.append(f"{formats.share(certificate.headroom.free)} while it was certified")
    if host.cpu_headroom is not None:
        least = ""
        if host.cpu_headroom_least is not None and host.cpu_headroom_least < host.cpu_headroom:
            # Less than nothing is impossible: in the busiest twentieth of the time there was none.
            none = host.cpu_headroom_least < 0.0005
            least = f" (5 % of the time {'none' if none else f'at most {formats.share(host.cpu_headroom_least)}'})"
        parts.append(f"{formats.share(host.cpu_headroom)} at the median while the job ran{least}")
    return f"CPU headroom: {', '.join(parts)}." if parts else ""


def summary(certificate: Certificate, topology: Topology | None) -> str:
    """Return what the certificate found, in sentences, and what the lab's rates stand for at full scale."""
    return " ".join((*sentences(certificate), stands_for(topology))).strip()


def stands_for(topology: Topology | None) -> str:
    """Return a sentence on the rates of the links at full scale; empty at scale 1, or without a topology."""
    return full_scale.sentence((link.rate_bps for link in topology.links), topology.scale) if topology else ""


def findings(certificate: Certificate, scale: float = 1.0) -> tuple[str, ...]:
    """Return what is outside tolerance, in sentences."""
    return tuple(full_scale.in_text(why, scale) for why in certificate.why)


def notes(certificate: Certificate) -> tuple[str, ...]:
    """Return the certificate's caveats as sentences, without the noise of the host, which leads :func:`summary`."""
    return tuple(f"Note: {note}." for note in certificate.notes if note != certificate.noise_note)


def segmentation(certificate: Certificate) -> str:
    """Return what segmented super-packets into MTU-sized ones; empty if the certificate does not say."""
    by: dict[str, list[str]] = {}
    for link in certificate.links:
        for direction in link.directions:
            by.setdefault(direction.segmentation, []).append(direction.direction)
    if set(by) == {"emulator"}:
        return f"{certificate.emulator} segments super-packets itself: random impairments apply to MTU-sized packets."
    if "sender" in by:
        return (
            f"Segmentation offload is off at the sender of {', '.join(by['sender'])}: random impairments apply to"
            " MTU-sized packets."
        )
    return (
        "No random impairment of single packets is configured, so segmentation offload stays on."
        if set(by) == {"none"}
        else ""
    )


def section(report: Report) -> Section | None:
    certificate, load = report.certificate, load_table(report.fidelity)
    shown = table(certificate, report.scale) if certificate else None
    return Section.of(
        "Fidelity",
        *(_certificate_blocks(certificate, report) if certificate else ()),
        Text("Nothing was measured.", "") if not (certificate or load) else None,
        Heading("Under load") if load else None,
        load,
        Text(headroom(certificate, report.machine)),
        Legend(meanings.legend(shown, load)),
        lead=_LEAD,
    )


def _certificate_blocks(certificate: Certificate, report: Report) -> Iterator[Block]:
    yield Heading(title(certificate))
    yield Text(summary(certificate, report.topology), "in-words")
    yield table(certificate, report.scale)
    yield from (Text(finding, "finding") for finding in findings(certificate, report.scale))
    around = "No path around the fiber was found." if certificate.around_ok else certificate.around_why
    sentences = (around, meaning(certificate), segmentation(certificate))
    yield Text(" ".join(filter(None, sentences)), "lead" if certificate.around_ok else "banner")
    yield Bullets(notes(certificate))
    yield Details(checks_table(certificate, report.scale), "Every quantity: expected, measured, and the accepted range")
