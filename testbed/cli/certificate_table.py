"""A certificate as a table that fits in 80 columns, with notes; nothing here prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.cli.tables import Row, table, verdict
from testbed.core.units import format_delay, format_probability, format_rate

if TYPE_CHECKING:
    from rich.table import Table

    from testbed.core.certification.certificate import Certificate
    from testbed.core.certification.link_certificate import (
        DirectionCertificate,
        LinkCertificate,
        QuantityCheck,
        RoundTrip,
    )
    from testbed.core.topology.model import Link, Topology

MOST_LINKS = 12
"""With more links than this, each link gets one row, with the worst of its measurements."""
MOST_NOTES = 4
WIDTH = 79
"""Width of the sentences below the table, in characters."""

_HEADS = ("fiber", "target", "error", "jitter", "lost", "rate", "verdict")
_RIGHT = ("target", "error", "jitter", "lost")

LEGEND = (
    "target: delay asked for, one way. jitter: spread of delays. lost: of those sent.\n"
    "rate: bits per second that arrived. not told: too few packets to decide.\n"
    "not measured: the host delayed too many packets."
)
JUDGED = "delay, RTT, jitter, loss, bursts, order, duplicates, corruption, rate"


def links_measured(topology: Topology, certificate: Certificate | None) -> Table:
    """Return the table shown after ``up`` and ``certify``: target and measurement of each direction."""
    measured = {link.name: link for link in certificate.links} if certificate else {}
    rows: list[Row] = []
    for link in topology.links:
        link_certificate = measured.get(link.name)
        if link_certificate is None or not link_certificate.directions:
            rows.append([link.name, format_delay(link.delay_s, 4), "-", "-", "-", "-", verdict("not measured")])
        elif len(topology.links) > MOST_LINKS:
            rows.append(_in_one_line(link, link_certificate))
        else:
            rows += _line_by_line(link_certificate)
    return table(_HEADS, rows, right=_RIGHT)


def refused(certificate: Certificate) -> Table:
    """Return the table of the first :data:`MOST_LINKS` links outside tolerance, for a refusal.

    If no link is outside tolerance, it has those that were not measurable.
    """
    bad = [link for link in certificate.links if not link.ok]
    shown = bad or [link for link in certificate.links if link.unmeasured]
    rows = [row for link in shown[:MOST_LINKS] for row in _line_by_line(link)]
    if len(shown) > MOST_LINKS:
        rows.append([f"{len(shown) - MOST_LINKS} more", "", "", "", "", "", verdict("bad" if bad else "not measured")])
    return table(_HEADS, rows, right=_RIGHT)


def _line_by_line(link_certificate: LinkCertificate) -> Iterator[Row]:
    for direction in link_certificate.directions:
        yield [
            direction.direction.replace(":", " → "),
            format_delay(direction.target_s, 4),
            _error(direction),
            _jitter(direction.check("jitter")),
            _lost(direction),
            _rate([direction]),
            verdict(direction.verdict),
        ]
    if link_certificate.rtt is not None:
        trip = link_certificate.rtt
        word = trip.verdict if trip.measured or not trip.ok else "not measured"
        name = f"{link_certificate.name}, {'nodes' if _nodes(trip) else 'RTT'}"
        yield [name, format_delay(trip.target_s, 4), _error(trip), "", "", "", verdict(word)]


def _in_one_line(link: Link, link_certificate: LinkCertificate) -> Row:
    both = link_certificate.directions
    lost, sent = sum(direction.lost for direction in both), sum(direction.probes for direction in both)
    jitter = max(
        (check for direction in both if (check := direction.check("jitter"))),
        key=lambda check: check.measured or 0.0,
        default=None,
    )
    return [
        link.name,
        format_delay(link.delay_s, 4),
        max(
            (_error(direction) for direction in both),
            key=lambda error: abs(float(error.split()[0])) if error != "-" else -1.0,
        ),
        _jitter(jitter),
        f"{lost} of {sent}",
        _rate(both),
        verdict(link_certificate.verdict),
    ]


def _error(measured: DirectionCertificate | RoundTrip) -> str:
    return "-" if measured.error_median_s is None else f"{measured.error_median_s * 1e6:+.1f} us"


def _jitter(check: QuantityCheck | None) -> str:
    if check is None or check.measured is None:
        return "-"
    measured = f"{check.measured * 1e6:.1f} us"
    return f"{measured} of {format_delay(check.target, 3)}" if check.target else measured


def _lost(direction: DirectionCertificate) -> str:
    check = direction.check("loss")
    if check is None or not check.target:
        return f"{direction.lost} of {direction.probes}"
    share = "-" if check.measured is None else format_probability(check.measured, 3)
    return f"{share} of {format_probability(check.target, 3)}"


def _rate(directions: Sequence[DirectionCertificate]) -> str:
    """Return the lowest rate; without a rate check "unlimited", or "-" if nothing of the directions was measured."""
    checks = [check for direction in directions if (check := direction.check("rate"))]
    if not checks:
        return "unlimited" if any(direction.measured for direction in directions) else "-"
    measured = [check.measured for check in checks if check.measured is not None]
    return format_rate(min(measured), 4) if measured else "-"


def footnote(certificate: Certificate, scale: float = 1.0) -> str:
    """Say the result in words, what is checked and what the columns mean, and the host's load during the measurement.

    ``scale`` is the topology's, for what a rate stands for.
    """
    from testbed.core.certification import certificate_text

    sentences = "".join(f"{textwrap.fill(line, WIDTH)}\n" for line in certificate_text.sentences(certificate, scale))
    around = "no path bypasses the fibers" if certificate.around_ok else certificate.around_why
    duration = "" if certificate.took_s is None else f", measured in {certificate.took_s:.1f} s"
    checked = f"{LEGEND}\nChecked: {JUDGED}.\n{_meaning(certificate)}"
    return f"{sentences}{checked}CPU {certificate.headroom.free:.0%} free{duration}; {around}."


def _meaning(certificate: Certificate) -> str:
    """Say what the error is, and what was taken off the delays."""
    directions = [direction for link in certificate.links for direction in link.directions]
    lines = []
    if off := [direction.taken_off_s for direction in directions if direction.taken_off_s]:
        rtts = [link.rtt.bare.median for link in certificate.links if link.rtt and link.rtt.bare and _nodes(link.rtt)]
        lines.append("error = measured median - target, from node to node.")
        if rtts:
            inside = format_delay(max(rtts), 3)
            lines.append(f"nodes = RTT from node to node - RTT inside a site ({inside}).")
        low, high = (f"{off_s * 1e6:.1f}" for off_s in (min(off), max(off)))
        whose = (
            "all delays" if len(off) == len(directions) else f"the delays of {len(off)} of {len(directions)} directions"
        )
        lines.append(f"taken off {whose}: {low if low == high else f'{low} to {high}'} us (calibration).")
    bare = [direction.bare.median for direction in directions if direction.bare and direction.between != "nodes"]
    if bare:
        what = "not calibrated: error" if off else "error"
        lines.append(f"{what} = measured median - target - baseline; jitter likewise.")
        lines.append(f"baseline: {format_delay(max(bare), 3)} over a zero-delay redirect.")
    return "".join(f"{line}\n" for line in lines)


def _nodes(measured: DirectionCertificate | RoundTrip) -> bool:
    return measured.between == "nodes"


def notes(certificate: Certificate) -> Sequence[str]:
    """Return the first notes on what could not be determined; the noise of the host is in the footnote."""
    lines = [f"note: {note}" for note in certificate.notes if note != certificate.noise_note]
    omitted = len(lines) - MOST_NOTES
    return lines if omitted <= 0 else [*lines[:MOST_NOTES], f"note: {omitted} more; --json prints all notes"]
