"""A certificate as words and a table that fits in 80 columns; nothing here prints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from testbed.cli.tables import Row, table, verdict
from testbed.core.units import format_delay, format_probability, format_rate

if TYPE_CHECKING:
    from rich.table import Table

    from testbed.core.certification.certificate import Certificate
    from testbed.core.certification.link_certificate import Check, DirectionCertificate, LinkCertificate, RoundTrip
    from testbed.core.topology.model import Link, Topology

MOST_LINKS = 12
"""Of more links each has one line, with the worst of what was measured of it."""
MOST_NOTES = 4

JUDGED = "delay, RTT, jitter, loss, bursts, order, duplicates, corruption, rate"


def links_measured(topology: Topology, certificate: Certificate | None) -> Table:
    """The table after ``up`` and ``certify``: what each direction was to do, and what it was measured to do."""
    measured = {link.name: link for link in certificate.links} if certificate else {}
    rows: list[Row] = []
    for link in topology.links:
        found = measured.get(link.name)
        if found is None or not found.directions:
            rows.append([link.name, format_delay(link.delay_s, 4), "-", "-", "-", "-", verdict("not measured")])
        elif len(topology.links) > MOST_LINKS:
            rows.append(_in_one_line(link, found))
        else:
            rows += _line_by_line(found)
    heads = ("fiber", "target", "error", "jitter", "lost", "rate", "verdict")
    return table(heads, rows, right=("target", "error", "jitter", "lost"))


def _line_by_line(found: LinkCertificate) -> Iterator[Row]:
    for each in found.directions:
        yield [
            each.direction.replace(":", " → "),
            format_delay(each.target_s, 4),
            _error(each),
            _jitter(each.check("jitter")),
            _lost(each),
            _rate([each]),
            verdict("ok" if each.ok else "bad"),
        ]
    if found.rtt is not None:
        trip = found.rtt
        told = "bad" if trip.why else "ok" if trip.measured else "not measured"
        yield [f"{found.name}, RTT", format_delay(trip.target_s, 4), _error(trip), "", "", "", verdict(told)]


def _in_one_line(link: Link, found: LinkCertificate) -> Row:
    ways = found.directions
    lost, sent = sum(each.lost for each in ways), sum(each.probes for each in ways)
    jitter = max((it for each in ways if (it := each.check("jitter"))), key=lambda it: it.measured or 0.0, default=None)
    return [
        link.name,
        format_delay(link.delay_s, 4),
        max((_error(each) for each in ways), key=lambda it: abs(float(it.split()[0])) if it != "-" else -1.0),
        _jitter(jitter),
        f"{lost} of {sent}",
        _rate(ways),
        verdict("ok" if found.ok else "bad"),
    ]


def _error(way: DirectionCertificate | RoundTrip) -> str:
    return "-" if way.error_median_s is None else f"{way.error_median_s * 1e6:+.1f} us"


def _jitter(check: Check | None) -> str:
    if check is None or check.measured is None:
        return "-"
    measured = f"{check.measured * 1e6:.1f} us"
    return f"{measured} of {format_delay(check.target, 3)}" if check.target else measured


def _lost(way: DirectionCertificate) -> str:
    check = way.check("loss")
    if check is None or not check.target:
        return f"{way.lost} of {way.probes}"
    share = "-" if check.measured is None else format_probability(check.measured, 3)
    return f"{share} of {format_probability(check.target, 3)}"


def _rate(ways: Sequence[DirectionCertificate]) -> str:
    """The lowest; without a check of it there is no limit, unless nothing at all was seen of the direction."""
    checks = [check for each in ways if (check := each.check("rate"))]
    if not checks:
        return "unlimited" if any(each.measured for each in ways) else "-"
    measured = [check.measured for check in checks if check.measured is not None]
    return format_rate(min(measured), 4) if measured else "-"


def footnote(certificate: Certificate) -> str:
    """What is judged, what the columns mean, and what the machine did meanwhile."""
    bare = [each.bare.median for link in certificate.links for each in link.directions if each.bare]
    path = f" ({format_delay(max(bare), 3)})" if bare else ""
    around = "nothing goes around the fibers" if certificate.around_ok else certificate.around_why
    took = "" if certificate.took_s is None else f", measured in {certificate.took_s:.1f} s"
    return (
        f"Judged: {JUDGED}.\n"
        f"error = median - target - the same path without delay{path}; jitter too.\n"
        f"CPU {certificate.headroom.free:.0%} free{took}; {around}."
    )


def notes(certificate: Certificate) -> Sequence[str]:
    """What could not be told, the first of it."""
    said = [f"note: {note}" for note in certificate.notes]
    more = len(said) - MOST_NOTES
    return said if more <= 0 else [*said[:MOST_NOTES], f"note: {more} more; see them all with --json"]
