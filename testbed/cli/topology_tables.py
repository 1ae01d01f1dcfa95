"""Tables of a topology: its values with their origins, and what is derived from them; nothing here prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from testbed.cli.tables import Row, table, verdict
from testbed.core.units import (
    format_delay,
    format_duration,
    format_length,
    format_number,
    format_percent,
    format_probability,
    format_rate,
    format_size,
)

if TYPE_CHECKING:
    from testbed.core.physics.validity import Finding
    from testbed.core.prediction.topology_ways import Way
    from testbed.core.topology.model import Link, Site, Topology
    from testbed.core.topology.survey import Survey


def topology_facts(topology: Topology) -> list[dict[str, object]]:
    """Return derived facts of each link, for ``show --json``."""
    from testbed.core.physics import full_scale

    return [
        {
            "link": link.name,
            "between": list(link.between),
            "km": link.length_m / 1e3,
            "one_way_delay_s": link.delay_s,
            "rtt_s": link.rtt_s,
            "rate_bps": link.rate_bps,
            "real_rate_bps": full_scale.full_rate_bps(link.rate_bps, topology.scale),
            "queue_bytes": link.queue_bytes,
            "in_flight_bytes": round(link.rate_bps * link.delay_s / 8),
        }
        for link in topology.links
    ]


def full_scale_facts(topology: Topology) -> dict[str, object]:
    """Return the scale and each link's rate here and at full scale, for the JSON of ``up`` and ``certify``."""
    from testbed.core.physics import full_scale

    rates = {link.name: full_scale.full_rate_bps(link.rate_bps, topology.scale) for link in topology.links}
    return {"scale": topology.scale, "full_scale_rate_bps": rates}


def physics(topology: Topology) -> Table:
    from testbed.core.physics import full_scale

    rows: list[Row] = [
        [
            link.name,
            " - ".join(link.between),
            format_length(link.length_m),
            format_delay(link.delay_s, 4),
            format_delay(link.rtt_s, 4),
            format_rate(link.rate_bps, 4),
            full_scale.at_full_scale(link.rate_bps, topology.scale) or format_rate(link.rate_bps),
            format_size(link.queue_bytes, 3),
        ]
        for link in topology.links
    ]
    heads = ["link", "between", "length", "one way", "RTT", "rate", "real rate", "queue"]
    if topology.scale == 1:  # each rate stands for itself
        column = heads.index("real rate")
        heads.pop(column)
        rows = [[*row[:column], *row[column + 1 :]] for row in rows]
    return table(heads, rows, title="Derived", right=heads[2:])


def interfaces(topology: Topology) -> list[Table]:
    """Return a table of the interfaces that are called otherwise than what they lead to; none if there are none."""
    from testbed.core.topology.interface_names import LONGEST

    grouped: dict[str, list[str]] = {}
    for short, full in topology.interfaces.short.items():
        grouped.setdefault(_named(topology, full), []).append(short)
    rows: list[Row] = [[name, ", ".join(_first_and_last(short))] for name, short in grouped.items()]
    heads = ("name", "interfaces")
    title = f"Interfaces of names above {LONGEST} characters"
    return [table(heads, rows, title=title)] if rows else []


def _named(topology: Topology, full: str) -> str:
    """Return the link or site that the interface ``full`` belongs to."""
    names = [*(link.name for link in topology.links), *(site.name for site in topology.sites)]
    return max((name for name in names if full == name or full.startswith(f"{name}-")), key=len)


def _first_and_last(names: Sequence[str]) -> list[str]:
    return list(names) if len(names) <= 4 else [*names[:2], "…", *names[-2:]]


MOST_PAIRS = 10

MOST_LINKS_LISTED, MOST_LISTED = 6, 80
"""Links of a topology named in a row, and their characters; more are counted."""


def links_in_short(topology: Topology) -> str:
    """Return the links with their lengths in km, or how many there are and from how long to how long."""
    links = topology.links
    listed = ", ".join(f"{link.name} {link.length_m / 1e3:g} km" for link in links)
    if len(links) <= MOST_LINKS_LISTED and len(listed) <= MOST_LISTED:
        return listed
    least, most = (f"{end(link.length_m for link in links) / 1e3:g}" for end in (min, max))
    return f"{len(links)} links of {least} km" if least == most else f"{len(links)} links of {least} to {most} km"


def surveyed(survey: Survey) -> list[Table]:
    """Return the tables of ``show`` beyond delays: optics of each link, round trips of sites."""
    return [shown for shown in (_optics(survey), _pairs(survey)) if shown.row_count]


def _optics(survey: Survey) -> Table:
    rows: list[Row] = [
        [
            link.link,
            link.radius_class,
            link.optics,
            format_length(link.margin_m),
            str(link.spans - 1),
            str(link.regenerators),
            format_size(link.real_bandwidth_delay_bytes, 3),
        ]
        for link in survey.links
    ]
    heads = ("link", "class", "optics", "reach margin", "amplifiers", "regenerators", "rate x RTT, real")
    return table(heads, rows, title="Optics", right=heads[3:])


def _pairs(survey: Survey) -> Table:
    pairs = sorted(survey.pairs, key=lambda pair: -pair.rtt_floor_s)
    rows: list[Row] = [
        [
            " - ".join(pair.between),
            f"{pair.via[0]} … {pair.via[-1]}, {len(pair.via)} links" if len(pair.via) > 3 else ", ".join(pair.via),
            format_length(pair.length_m),
            format_delay(pair.rtt_floor_s, 4),
        ]
        for pair in pairs[:MOST_PAIRS]
    ]
    left_out = f", the farthest {MOST_PAIRS} of {len(pairs)}" if len(pairs) > MOST_PAIRS else ""
    title = f"Between sites: {survey.radius_class}{left_out}"
    return table(("sites", "path", "length", "least RTT"), rows, title=title, right=("length", "least RTT"))


def strategies(ways: Sequence[Way], gradient_bytes: float, compute_s: float) -> Table:
    """Return the table of ways of training that the fibers of a topology can sustain."""
    rows: list[Row] = [
        [
            way.name,
            str(way.every),
            format_duration(way.exposed_s, 3),
            format_percent(way.share, 2),
            verdict(way.verdict),
            "never" if way.rate_bps is None else format_rate(way.rate_bps, 3),
        ]
        for way in ways
    ]
    title = (
        f"Training strategies: {format_size(gradient_bytes)} of gradients per step at full scale,"
        f" {format_duration(compute_s)} of compute"
    )
    heads = ("strategy", "exchange every", "exposed per step", "share of step", "verdict", "rate for 90 %")
    right = ("exchange every", "exposed per step", "share of step", "rate for 90 %")
    return table(heads, rows, title=title, right=right)


def validity(findings: Sequence[Finding], scale: float) -> list[Table]:
    """Return a row per quantity and verdict, for the fiber with the largest bias; then the reasons of the biases."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.quantity, finding.verdict), []).append(finding)
    rows: list[Row] = []
    reasons: list[Row] = []
    for (quantity, word), alike in groups.items():
        worst = max(alike, key=lambda finding: finding.error)
        biased = word != "holds" and worst.direction
        off = format_probability(worst.error, 2) if worst.error <= 1 else f"{format_number(worst.error + 1, 3)} times"
        size = f"{worst.direction}, {off}" if biased else "-"
        rows.append([quantity, verdict(word), size, worst.fiber if biased else "-", str(len(alike))])
        if biased:
            reasons.append([quantity, worst.reason + (f". Fix: {worst.change}" if worst.change else "")])
    title = f"Validity of scale {scale:g}, for the training agents' model"
    tables = [table(("quantity", "verdict", "worst bias", "on", "fibers"), rows, title=title, right=("fibers",))]
    if reasons:
        tables.append(table(("bias of", "reason"), reasons))
    return tables


def values_with_origins(topology: Topology) -> list[tuple[str, str, str]]:
    """Return (dotted key, value with its unit, origin) of every value of the file and every default."""
    return [(key, _value(topology, key), origin) for key, origin in topology.origins.items()]


def origins(topology: Topology) -> Table:
    rows: list[Row] = [
        [key, value, Text(origin, style="dim" if origin == "default" else "")]
        for key, value, origin in values_with_origins(topology)
    ]
    return table(("key", "value", "origin"), rows, title=f"{topology.name}")


def _value(topology: Topology, key: str) -> str:
    section, _, below = key.partition(".")
    name, _, field = below.rpartition(".")
    if not below:
        return f"{topology.scale:g}" if key == "scale" else str(getattr(topology, key, "-"))
    if section == "sites" and field == "fabric":
        return _fabric(topology, topology.site(name))
    if section == "sites":
        return str(getattr(topology.site(name), field, "-"))
    if section == "links":
        name, _, field = below.partition(".")
        link = topology.link(name)
        return _impair_value(topology, link, field) if "." in field else _link_value(topology, link, field)
    lengths = {duct.name: duct.length_m for duct in topology.ducts}
    return format_length(lengths[below]) if below in lengths else "-"


def _fabric(topology: Topology, site: Site) -> str:
    from testbed.core.physics import full_scale

    port, core = (full_scale.written(bps, topology.scale) for bps in (site.fabric_bps, site.core_bps))
    return f"{port} a node; core {core}, oversubscription {site.oversubscription:g}"


def _impair_value(topology: Topology, link: Link, field: str) -> str:
    """Format ``impair.loss``, the value of directions without one of their own, or ``toward.west.loss``."""
    from testbed.core.physics import full_scale, parameters

    where, _, key = field.rpartition(".")
    toward = where.removeprefix("toward.")
    keys = {name: f"links.{link.name}.toward.{name.partition(':')[2]}.{key}" for name in link.directions}
    own = {name for name in link.directions if keys[name] in topology.origins}
    direction = f"{link.name}:{toward}" if where != "impair" else min(set(link.directions) - own or own)
    value = getattr(link.impairment(direction), parameters.PARAMETERS[key].field)
    return full_scale.written(value, topology.scale) if key == "rate" else parameters.text(key, value)


def _link_value(topology: Topology, link: Link, field: str) -> str:
    from testbed.core.physics import full_scale

    match field:
        case "between" | "via":
            return ", ".join(getattr(link, field))
        case "km":
            return f"{link.length_m / 1e3:g}"
        case "rate":
            return full_scale.written(link.rate_bps, topology.scale)
        case "buffer":
            return format_size(link.buffer_bytes)
        case "optics_latency":
            return format_delay(link.optics_latency_s)
        case "loss":
            return format_probability(link.loss)
        case "calibrate":
            return "true" if link.calibrate else "false"
        case "protection":
            from testbed.core.topology import link_protection

            return link_protection.text(link.protection, link.second_path)
        case _:
            return str(getattr(link, field, "-"))
