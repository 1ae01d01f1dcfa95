"""Render values as tables and as plain JSON data; nothing here prints."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from testbed.cli import job_words
from testbed.cli.cell import Cell
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
    from testbed.core.analysis.host_noise import NoiseSummary
    from testbed.core.faults.fault_kind import FaultKind
    from testbed.core.physics.validity import Finding
    from testbed.core.prediction.topology_ways import Way
    from testbed.core.report.document import Report
    from testbed.core.topology.model import Link, Site, Topology
    from testbed.core.topology.survey import Survey
    from testbed.host.doctor import Check
    from testbed.keeper.protocol import DirectionInForce
    from testbed.lab.api import LabStatus, LabSummary, RunSummary

Row = list[str | Text]

GOOD, BAD, UNSURE = "green", "bold red", "yellow"
_STYLES = {
    **dict.fromkeys(
        ("ok", "up", "yes", "pass", "certified", "training", "waiting", "finished", "viable", "holds"), GOOD
    ),
    **dict.fromkeys(
        ("bad", "down", "no", "fail", "does not hold", "missing", "degraded", "dead", "failed", "not viable"), BAD
    ),
    **dict.fromkeys(
        (
            "limited",
            "unknown",
            "building",
            "kept",
            "interrupted",
            "running",
            "costly",
            "biased",
            "stopped",
            "stopping",
            "lost",
            "noisy host",
            "certified, noisy host",
        ),
        UNSURE,
    ),
    "another user's": UNSURE,
    **dict.fromkeys(("not told", "not measured", "certified, noisy host", "not measurable on this host now"), UNSURE),
    "outside tolerance": BAD,
}


def verdict(word: str) -> Text:
    """Return a verdict in its colour."""
    return Text(word, style=_STYLES.get(word, ""))


def table(heads: Sequence[str], rows: Iterable[Row], *, right: Sequence[str] = (), title: str = "") -> Table:
    """Build a table; ``right`` names the right-aligned (numeric) columns. Text wraps and is never truncated."""
    made = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for head in heads:
        made.add_column(head, justify="right" if head in right else "left", overflow="fold", no_wrap=False)
    for row in rows:
        made.add_row(*map(Cell.of, row))
    return made


# ---- topology


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
        at = heads.index("real rate")
        heads.pop(at)
        rows = [[*row[:at], *row[at + 1 :]] for row in rows]
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


def survey(found: Survey) -> list[Table]:
    """Return the tables of ``show`` beyond delays: optics of each link, round trips of sites."""
    made = [_optics(found), _pairs(found)]
    return [each for each in made if each.row_count]


def _optics(found: Survey) -> Table:
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
        for link in found.links
    ]
    heads = ("link", "class", "optics", "reach margin", "amplifiers", "regenerators", "rate x RTT, real")
    return table(heads, rows, title="Optics", right=heads[3:])


def _pairs(found: Survey) -> Table:
    pairs = sorted(found.pairs, key=lambda pair: -pair.rtt_floor_s)
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
    title = f"Between sites: {found.radius_class}{left_out}"
    return table(("sites", "path", "length", "least RTT"), rows, title=title, right=("length", "least RTT"))


def ways(found: Sequence[Way], gradient_bytes: float, compute_s: float) -> Table:
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
        for way in found
    ]
    title = (
        f"Training strategies: {format_size(gradient_bytes)} of gradients per step at full scale,"
        f" {format_duration(compute_s)} of compute"
    )
    heads = ("strategy", "exchange every", "exposed per step", "share of step", "verdict", "rate for 90 %")
    right = ("exchange every", "exposed per step", "share of step", "rate for 90 %")
    return table(heads, rows, title=title, right=right)


def validity(found: Sequence[Finding], scale: float) -> list[Table]:
    """Return a row per quantity and verdict, for the fiber with the largest bias; then the reasons of the biases."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        groups.setdefault((finding.quantity, finding.verdict), []).append(finding)
    rows: list[Row] = []
    reasons: list[Row] = []
    for (quantity, word), alike in groups.items():
        worst = max(alike, key=lambda it: it.error)
        biased = word != "holds" and worst.direction
        off = format_probability(worst.error, 2) if worst.error <= 1 else f"{format_number(worst.error + 1, 3)} times"
        size = f"{worst.direction}, {off}" if biased else "-"
        rows.append([quantity, verdict(word), size, worst.fiber if biased else "-", str(len(alike))])
        if biased:
            reasons.append([quantity, worst.reason + (f". Fix: {worst.change}" if worst.change else "")])
    title = f"Validity of scale {scale:g}, for the training agents' model"
    made = [table(("quantity", "verdict", "worst bias", "on", "fibers"), rows, title=title, right=("fibers",))]
    if reasons:
        made.append(table(("bias of", "reason"), reasons))
    return made


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
    section, _, rest = key.partition(".")
    name, _, field = rest.rpartition(".")
    if not rest:
        return f"{topology.scale:g}" if key == "scale" else str(getattr(topology, key, "-"))
    if section == "sites" and field == "fabric":
        return _fabric(topology, topology.site(name))
    if section == "sites":
        return str(getattr(topology.site(name), field, "-"))
    if section == "links":
        name, _, field = rest.partition(".")
        link = topology.link(name)
        return _impair_value(topology, link, field) if "." in field else _link_value(topology, link, field)
    lengths = {duct.name: duct.length_m for duct in topology.ducts}
    return format_length(lengths[rest]) if rest in lengths else "-"


def _fabric(topology: Topology, site: Site) -> str:
    from testbed.core.physics import full_scale

    port, core = (full_scale.written(it, topology.scale) for it in (site.fabric_bps, site.core_bps))
    return f"{port} a node; core {core}, oversubscription {site.oversubscription:g}"


def _impair_value(topology: Topology, link: Link, field: str) -> str:
    """Format ``impair.loss``, the value of directions without one of their own, or ``toward.west.loss``."""
    from testbed.core.physics import full_scale, parameters

    where, _, key = field.rpartition(".")
    toward = where.removeprefix("toward.")
    own = {it for it in link.directions if f"links.{link.name}.toward.{it.partition(':')[2]}.{key}" in topology.origins}
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


# ---- labs, runs


def labs(found: Sequence[LabSummary], now_unix_s: float) -> Table:
    rows: list[Row] = [
        [
            lab.name,
            lab.topology,
            verdict(lab.state),
            str(lab.nodes or "?"),
            format_duration(max(0.0, round(now_unix_s - lab.since_unix_s)), 3),
        ]
        for lab in found
    ]
    return table(("lab", "topology", "state", "nodes", "uptime"), rows, right=("nodes", "uptime"))


def runs(found: Sequence[RunSummary]) -> Table:
    rows: list[Row] = [
        [
            run.name,
            run.topology,
            _moment(run.started_unix_s),
            run.state if run.pid is None else f"{run.state}, pid {run.pid}",
            verdict(run.verdict or "unknown"),
            str(run.path),
        ]
        for run in found
    ]
    return table(("run", "topology", "started", "state", "verdict", "folder"), rows)


def _moment(unix_s: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s else "-"


def status(found: LabStatus) -> list[Table]:
    from testbed.core.physics import full_scale

    link_rows: list[Row] = [
        [
            link.name,
            f"{link.km:g}",
            _carriers(link.carrier),
            verdict(link.verdict),
            full_scale.in_text(", ".join(link.phases or link.faults) or "-", found.scale),
            "  ".join(f"→ {name.rpartition(':')[2]} {count}" for name, count in link.packets.items()) or "-",
            str(link.drops),
        ]
        for link in found.links
    ]
    rank_rows: list[Row] = [
        [
            str(rank.rank),
            rank.node,
            rank.site,
            verdict(rank.state),
            "-" if rank.step is None else str(rank.step),
            "-" if rank.train_loss is None else f"{rank.train_loss:.3f}",
            ", ".join(rank.phases or rank.faults) or "-",
        ]
        for rank in found.ranks
    ]
    made = [table(("link", "km", "carrier", "verdict", "faults", "packets", "drops"), link_rows, right=("km", "drops"))]
    if in_force_rows := [
        row for link in found.links for it in link.in_force if (row := _in_force(it, found.scale)) is not None
    ]:
        made.append(table(("direction", "in force", "by", "masked"), in_force_rows))
    if rank_rows:
        made.append(
            table(
                ("rank", "node", "site", "state", "step", "train_loss", "faults"),
                rank_rows,
                right=("rank", "step", "train_loss"),
            )
        )
    return made


def _in_force(found: DirectionInForce, scale: float) -> Row | None:
    """Return a direction's values that the link does not make alone; None if there are none."""
    from testbed.core.physics import full_scale

    values = [it for it in found["values"] if it["by"] != ["link"]]
    if not values and not found["dark_by"]:
        return None
    lines = [("dark", found["dark_by"])] if found["dark_by"] else []
    lines += [(f"{it['key']} {it['text']}", it["by"]) for it in values]
    masked = [f"{it['key']} of {it['fault']}" for it in found["masked"]]
    return [
        found["direction"],
        "\n".join(full_scale.in_text(text, scale) for text, _ in lines),
        "\n".join(" + ".join(by) for _, by in lines),
        "\n".join(masked) or "-",
    ]


def status_line(lab: LabStatus) -> Text:
    line = Text(f"{lab.name}: ").append_text(verdict(lab.state))
    line.append(f" for {format_duration(round(lab.uptime_s), 3)}, topology {lab.topology}")
    line.append(f", driver {lab.driver or '?'}, emulator {lab.emulator or '?'}")
    if lab.prometheus:
        line.append(", with Prometheus")
    if lab.noisy:
        line.append(", ").append("noisy", style=UNSURE)
    if lab.links and not lab.why:
        line.append(f"\n  {_in_words(lab)}")
    for why in lab.why:
        line.append(f"\n  {why}", style=BAD)
    for job in lab.jobs:
        line.append(f"\n  {job_words.line(job)}", style=UNSURE if job.state == "stopping" else "")
    for waits in (*lab.waits, *lab.captures):
        line.append(f"\n  {waits}", style=UNSURE)
    if lab.noise is not None and lab.noise.noisy:
        share, longest = format_percent(lab.noise.stalled_share), format_duration(lab.noise.longest_s, 2)
        stalled = f"{share} of the time, {longest} at most"
        period = "since it came up" if lab.young else "in the last minute"
        line.append(f"\n  {period} the host's cores stalled {stalled}", style=UNSURE)
    return line


def _in_words(found: LabStatus) -> str:
    """Return the state of links and ranks in a sentence, for a reader who does not know the columns."""
    dark = [link.name for link in found.links if not all(link.carrier.values())]
    lit = len(found.links) - len(dark)
    said = [f"{lit} of {len(found.links)} links carry light at both ends" if dark else "all links carry light"]
    faulty = {fault for link in found.links for fault in link.faults}
    faulty |= {fault for rank in found.ranks for fault in rank.faults}
    said.append(f"{len(faulty)} fault{'s' if len(faulty) > 1 else ''} in force" if faulty else "no fault is in force")
    if at_work := [rank for rank in found.ranks if rank.state == "training"]:
        steps = [rank.step for rank in at_work if rank.step is not None]
        said.append(f"{len(at_work)} of {len(found.ranks)} ranks train" + (f", at step {min(steps)}" if steps else ""))
    elif found.ranks:
        said.append(f"{len(found.ranks)} ranks, none trains")
    return f"{'; '.join(said)}."


STATUS_LEGEND = (
    "carrier: whether each site's gateway sees light. verdict: of the last certificate. packets: sent toward each site"
    " since the lab came up. drops: packets lost on the link, for any cause, cuts and configured loss included."
)


def status_notes(found: LabStatus) -> list[str]:
    """Return the lines below the tables of ``status``: full scale, and the meaning of the columns."""
    from testbed.core.physics import full_scale

    said = full_scale.sentence((link.rate_bps for link in found.links if link.rate_bps), found.scale)
    return [line for line in (*found.fabrics, said, STATUS_LEGEND if found.links else "") if line]


def _carriers(carrier: Mapping[str, bool]) -> Text:
    line = Text()
    for site, lit in carrier.items():
        line.append(f"{site} ").append_text(verdict("up" if lit else "down")).append(" ")
    line.rstrip()
    return line


def faults(kinds: Iterable[FaultKind]) -> Table:
    """Build a table of two columns: a third would be too narrow on a terminal of 80."""
    rows: list[Row] = []
    for kind in kinds:
        text = Text(kind.summary)
        text.append(f"\ntarget: {kind.targets}", style="dim")
        for key, meaning in kind.parameters.items():
            text.append(f"\n{key}: ", style="cyan").append(meaning, style="default")
        rows.append([kind.name, text])
    made = table(("fault", "effect, target and parameters"), rows)
    made.columns[0].no_wrap = True
    made.show_lines = True
    return made


# ---- report, doctor


def answers(report: Report) -> Table:
    """Return the verdict of a run, one row per question."""
    rows: list[Row] = [
        [
            each.question,
            verdict(each.answer),
            "\n".join([each.text, *(f"{number}. {line}" for number, line in enumerate(each.lines, 1))]),
        ]
        for each in report.answers
    ]
    made = table(("", "", ""), rows)
    made.show_header = False
    return made


def noise(summary: NoiseSummary | None) -> list[Text]:
    """Return a line on a noisy host; no line if the host is quiet."""
    from testbed.core.report import noise_section

    sentence = noise_section.sentence(summary)
    return [Text(sentence, style=UNSURE)] if sentence else []


def rank_seconds(report: Report) -> str:
    """Return goodput and the classes of rank-seconds that it is made from in a line; empty if nothing is known."""
    from testbed.core.report import run_page
    from testbed.core.report.sections import rank_seconds_section

    told = rank_seconds_section.sentence(report.rank_seconds)
    return told if not told or report.goodput is None else f"goodput {run_page.goodput(report)}; {told}"


def offer(report: Report) -> str:
    """Return how the steps of a launched program could be read, if its output has any; empty otherwise."""
    from testbed.core.report.sections import program_section

    return program_section.summary(report.program) if report.program else ""


def declared(report: Report) -> str:
    """Return declared against measured compute of a run in a line; empty for real compute."""
    from testbed.core.report.sections import declared_section

    return declared_section.sentence(report.declared)


def prediction(report: Report) -> str:
    """Return prediction and residual of a run in a line, or why there is none; empty for a program."""
    from testbed.core.report.sections import prediction_section

    return prediction_section.sentence(report.prediction, report.unpredicted)


def checks(found: Sequence[Check]) -> Table:
    return table(("check", "state", "detail"), [[check.name, _state(check), check.detail] for check in found])


def fixes(found: Sequence[Check]) -> list[str]:
    """Return a line with the fix of each check that has one. Not part of the table, which would fold commands."""
    lacking = [check for check in found if check.fix]
    width = max((len(check.name) for check in lacking), default=0)
    return [f"  {check.name:<{width}}   {check.fix}" for check in lacking]


def _state(check: Check) -> Text:
    return verdict(check.state) if check.needed or check.state == "ok" else Text(check.state, style=UNSURE)


def plain(value: Any) -> Any:
    """Convert a dataclass, or a sequence of them, to JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value
