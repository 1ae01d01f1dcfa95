"""Certificate, fidelity under load and scale model as tables for the page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from testbed.core.certification.certificate import CERTIFIED, NOISY, NOT_MEASURABLE, OUTSIDE, Certificate
from testbed.core.certification.in_words import sentences
from testbed.core.certification.link_certificate import (
    NOT_TOLD,
    RATE_TOLERANCE,
    Check,
    DirectionCertificate,
    LinkCertificate,
    RoundTrip,
)
from testbed.core.fields import Fields, number, text
from testbed.core.physics import full_scale
from testbed.core.records.run_info import RunInfo
from testbed.core.report import formats
from testbed.core.report.report_table import Table
from testbed.core.report.sections.fidelity_section import Fidelity, Machine
from testbed.core.topology.model import Topology
from testbed.core.units import format_number, format_percent

__all__ = [
    "checks_table",
    "findings",
    "headroom",
    "in_words",
    "load_table",
    "meaning",
    "noise",
    "notes",
    "scale",
    "segmentation",
    "stands_for",
    "table",
    "title",
    "validity_lead",
    "validity_table",
]

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
_VALIDITY_HEAD = ("fiber", "quantity", "here", "at full scale", "verdict", "why, and what helps")
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
        for each in link.directions:
            jitter, rate = each.check("jitter"), each.rate
            yield (
                each.direction,
                *_times(each, each.tolerance_s),
                formats.microseconds(each.taken_off_s) if each.taken_off_s else "",
                formats.microseconds(jitter.measured if jitter else None),
                f"{formats.count(each.lost)} of {formats.count(each.probes)}",
                _rate(rate.measured_bps if rate else None, scale),
                _told(each),
            )
        if link.rtt:
            told = _told(link.rtt) if link.rtt.measured or not link.rtt.ok else formats.UNKNOWN
            yield (_trip(link), *_times(link.rtt, link.rtt.tolerance_s), "", "", "", "", told)


def _rate(measured_bps: float | None, scale: float) -> str:
    full = full_scale.at_full_scale(measured_bps, scale, 3)
    return f"{formats.bits_per_s(measured_bps)} for {full}" if full else formats.bits_per_s(measured_bps)


def _told(each: DirectionCertificate | RoundTrip) -> str:
    return {"ok": "certified", "bad": "outside tolerance"}.get(each.verdict, each.verdict)


def _times(each: DirectionCertificate | RoundTrip, tolerance_s: float) -> Row:
    return (
        formats.microseconds(each.target_s),
        formats.microseconds(each.measured.median if each.measured else None),
        f"{formats.microseconds(each.error_min_s)} / {formats.microseconds(each.error_median_s)}",
        formats.microseconds(tolerance_s),
    )


def checks_table(certificate: Certificate, scale: float = 1.0) -> Table | None:
    """Every quantity of every fiber, the range that was accepted, and the verdict."""
    rows = _check_rows(certificate, scale)
    return Table.of(_CHECKS_HEAD, rows, "Every quantity of the certificate", (2, 3, 4), verdicts=5)


def _check_rows(certificate: Certificate, scale: float) -> Iterator[Row]:
    for fabric in certificate.fabrics:
        for each in fabric.rates:
            ends = [_rate(share * each.target_bps, scale) for share in (1 - RATE_TOLERANCE, 1 + RATE_TOLERANCE)]
            yield (
                f"fabric of {fabric.site}, {each.path}",
                "rate",
                _rate(each.target_bps, scale),
                _rate(each.measured_bps, scale),
                " to ".join(ends),
                NOT_TOLD if each.verdict == "inconclusive" else each.verdict,
                full_scale.in_text(each.why or each.note, scale),
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


def _checks(link: LinkCertificate) -> Iterator[tuple[str, Check]]:
    for each in link.directions:
        for check in each.checks:
            yield each.direction, check
    for check in link.rtt.checks if link.rtt else ():
        yield _trip(link), check


def _trip(link: LinkCertificate) -> str:
    between = link.rtt is not None and link.rtt.between == "nodes"
    return f"{link.name}, node to node" if between else f"{link.name}, round trip"


def meaning(certificate: Certificate) -> str:
    """Return a sentence on what calibration takes off; empty for a lab that is not calibrated."""
    off = [each.taken_off_s for link in certificate.links for each in link.directions if each.taken_off_s]
    if not off:
        return ""
    least, most = formats.microseconds(min(off)), formats.microseconds(max(off))
    return (
        f"Calibration takes {least if least == most else f'{least} to {most}'} us off the delays of"
        f" {len(off)} directions, so that two nodes see the fiber's delay; these are measured from node to node, and"
        " their error is the median less the target. A row node to node is the RTT less that inside a site."
    )


def _value(check: Check, value: float | None, scale: float) -> str:
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


def load_table(found: Sequence[Fidelity]) -> Table | None:
    """What each direction did while the job ran."""
    return Table.of(_LOAD_HEAD, _load_rows(found), "Fidelity under load", (1, 2, 3, 4), verdicts=5)


def _load_rows(found: Sequence[Fidelity]) -> Iterator[Row]:
    for each in found:
        queue = each.queue_bytes_most
        yield (
            each.direction,
            formats.count(each.packets),
            f"{formats.microseconds(each.median_s)} / {formats.microseconds(each.p99_s)}",
            formats.UNKNOWN if queue is None else f"{format_number(queue / 1e3, 3)} kB",
            formats.count(each.own_drops),
            f"{each.verdict}: {each.why}" if each.why else each.verdict,
        )


def validity_table(run: RunInfo) -> Table | None:
    """The quantities that scaling biases; None if nothing is scaled."""
    return Table.of(_VALIDITY_HEAD, _validity_rows(run), "Scale model", (2, 3))


def _validity_rows(run: RunInfo) -> Iterator[Row]:
    for fiber, each in _worst(run):
        if text(each, "verdict") != "holds":
            why = "; ".join(it for it in (text(each, "reason"), text(each, "change")) if it)
            bias = " ".join(it for it in (text(each, "verdict"), text(each, "direction")) if it)
            amounts = (_amount(number(each, key), text(each, "unit")) for key in ("lab", "real"))
            yield (fiber, text(each, "quantity"), *amounts, bias, why)


def _worst(run: RunInfo) -> Iterator[tuple[str, Fields]]:
    """Return each quantity once, as it is on the fiber with the largest bias: the reasons of the others are the same,
    with other numbers."""
    groups: dict[tuple[str, str, str], list[Fields]] = {}
    for each in run.validity:
        key = (text(each, "quantity"), text(each, "verdict"), text(each, "direction"))
        groups.setdefault(key, []).append(each)
    for alike in groups.values():
        worst = max(alike, key=lambda it: number(it, "error") or 0.0)
        fiber = text(worst, "fiber")
        yield (f"{fiber}, the worst of {len(alike)}" if len(alike) > 1 else fiber), worst


def validity_lead(run: RunInfo) -> str:
    """Return a sentence about how much of the scale model holds; empty if it was not checked."""
    if not run.validity:
        return ""
    quantities = {text(each, "quantity") for each in run.validity}
    biased = {text(each, "quantity") for each in run.validity if text(each, "verdict") != "holds"}
    return (
        f"Rates and payloads are divided by the scale, latency is not: {len(quantities - biased)} of {len(quantities)}"
        " quantities hold unchanged on every fiber."
    )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return formats.UNKNOWN
    return formats.duration(value) if unit == "s" else f"{format_number(value, 3)} {unit}"


def headroom(certificate: Certificate | None, host: Machine) -> str:
    """Return the machine's CPU headroom before and during the job; empty if neither is known."""
    said = []
    if certificate is not None and certificate.took_s is not None:
        said.append(f"{formats.share(certificate.headroom.free)} while it was certified")
    if host.cpu_headroom is not None:
        least = ""
        if host.cpu_headroom_least is not None and host.cpu_headroom_least < host.cpu_headroom:
            # Less than nothing is impossible: in the busiest twentieth of the time there was none.
            none = host.cpu_headroom_least < 0.0005
            least = f" (5 % of the time {'none' if none else f'at most {formats.share(host.cpu_headroom_least)}'})"
        said.append(f"{formats.share(host.cpu_headroom)} at the median while the job ran{least}")
    return f"CPU headroom: {', '.join(said)}." if said else ""


def in_words(certificate: Certificate, topology: Topology | None) -> str:
    """Return what the certificate found, in sentences, and what the lab's rates stand for at full scale."""
    return " ".join((*sentences(certificate), stands_for(topology))).strip()


def scale(topology: Topology | None) -> float:
    """Return the scale of a run's topology; 1, at which nothing is said, where the run has none."""
    return topology.scale if topology else 1.0


def stands_for(topology: Topology | None) -> str:
    """Return a sentence on the rates of the links at full scale; empty at scale 1, or without a topology."""
    return full_scale.sentence((it.rate_bps for it in topology.links), topology.scale) if topology else ""


def findings(certificate: Certificate, scale: float = 1.0) -> tuple[str, ...]:
    """Return what is outside tolerance, in sentences."""
    return tuple(full_scale.in_text(why, scale) for why in certificate.why)


def notes(certificate: Certificate) -> tuple[str, ...]:
    """Return the certificate's caveats as sentences, without the noise of the host, which leads :func:`in_words`."""
    return tuple(f"Note: {note}." for note in certificate.notes if note != certificate.noise_note)


def segmentation(certificate: Certificate) -> str:
    """Return what segmented super-packets into MTU-sized ones; empty if the certificate does not say."""
    by: dict[str, list[str]] = {}
    for link in certificate.links:
        for each in link.directions:
            by.setdefault(each.segmentation, []).append(each.direction)
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
