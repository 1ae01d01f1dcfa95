"""The verb ``audit``: the shared-risk audit of a topology (SRLG), on paper and by measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

import testbed.host.linux.invocation as invocation
from testbed.cli import console, tables, verb
from testbed.cli.console import Note, Shown
from testbed.cli.options import (
    AsJson,
    LabOptions,
    Overrides,
    TopologyArgument,
    default,
    quantity,
    read_overrides,
)
from testbed.cli.verb import Result
from testbed.core.units import (
    format_delay,
    format_duration,
    format_number,
    format_probability,
    format_rate,
    parse_duration_s,
)
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.analysis.cut_impact import CutImpact
    from testbed.core.shared_risk.advice import Finding
    from testbed.core.shared_risk.audit import Audit, DuctCut, PairRisk
    from testbed.core.topology.model import Topology
    from testbed.lab.run.measured_audit import Measured

MOST_ROWS = 12
_STYLES = {
    **dict.fromkeys(("single point", "shared risk", "no failover"), tables.BAD),
    "shared power": tables.UNSURE,
}


@verb.verb(
    verb.LOOK,
    "testbed audit regional-ring",
    "testbed audit my.yaml --set links.north.protection=none",
    "testbed audit regional-ring --measure      # train in a lab and cut each duct in turn",
    "testbed audit regional-ring --measure --only river-bridge --hold 3s --json",
)
def audit(
    topology: TopologyArgument,
    set_: Overrides = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure what cutting each duct costs a training job.", show_default=False)
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="DUCT", help="With --measure: cut only this duct. May be repeated.")
    ] = None,
    hold: Annotated[
        float, quantity(parse_duration_s, metavar="TIME", help="With --measure: how long each duct is cut.", zero="")
    ] = default("5s"),
    *,
    lab: LabOptions,
    as_json: AsJson = False,
) -> Result:
    """Find links that look diverse but share a duct, single points of failure, and the cost of each duct's cut.

    Every duct, link, gateway and power domain fails once on paper, ducts also in pairs. With --measure, bring up a lab,
    train a job and cut each duct in turn; Ctrl-C keeps what was measured. Exit status: 0 whatever the findings, which
    are yours to judge; 2 if the file has mistakes; 3 if the lab failed.
    """
    from testbed.core.shared_risk import advice
    from testbed.core.shared_risk import audit as core
    from testbed.host.files import catalog

    described = catalog.load_topology(topology, read_overrides(set_))
    if (only or lab.name) and not measure:
        raise UserError(f"--{'only' if only else 'name'} needs --measure")
    audited = core.audit(described)
    findings = advice.findings(described, audited)

    def data() -> dict[str, Any]:
        return {**tables.plain(audited), "findings": tables.plain(findings)}

    result = Result(data=data, tables=_on_paper(audited, findings, described.scale))
    if not measure:
        return result
    if not as_json:
        verb.show(result, as_json)  # before the hours of measurement
    return _measured(described, only or [], hold, lab, data)


def _measured(
    topology: Topology, only: list[str], hold_s: float, lab: LabOptions, data: Callable[[], dict[str, Any]]
) -> Result:
    from testbed.lab.run import measured_audit

    with console.progress() as progress:
        measured = measured_audit.measure(topology, only=only, hold_s=hold_s, progress=progress, **vars(lab))
    return Result(
        data=lambda: {**data(), "measured": measured_audit.to_dict(measured)},
        tables=_measurements(measured),
        status={"interrupted": 130, "failed": 3}.get(measured.status, 0),
    )


def _on_paper(audited: Audit, findings: tuple[Finding, ...], scale: float) -> Iterator[Shown]:
    from testbed.core.physics import full_scale

    yield from (table for table in (_pairs(audited), _ducts(audited)) if table.row_count)
    if findings:
        yield _findings(findings)
    else:
        clear = "no risks found: no single failure and no pair of duct cuts separates sites"
        yield Text(clear, style=tables.GOOD)
    yield Note("capacities add up all fibers, at the lab's scaled rates; routing may use fewer")
    if sentence := full_scale.sentence((pair.capacity_bps for pair in audited.pairs), scale):
        yield Note(sentence)


def _measurements(measured: Measured) -> Iterator[Shown]:
    rows: list[tables.Row] = [
        [
            impact.duct,
            ", ".join(impact.links),
            format_duration(impact.lasted_s, 2),
            _number(impact.steps_per_s_before),
            _number(impact.steps_per_s_during),
            "-" if impact.goodput is None else format_probability(impact.goodput, 2),
            _gap(impact),
            _recovery(impact),
        ]
        for impact in measured.impacts
    ]
    heads = ("duct cut", "links", "for", "steps/s before", "during", "kept", "longest gap", "recovery after heal")
    if rows:
        yield tables.table(heads, rows, right=heads[2:], title="Measured")
    if measured.left:
        yield Text(f"not cut: {', '.join(measured.left)}", style=tables.UNSURE)
    if measured.why:
        yield Text(f"{measured.status}: {measured.why}", style=tables.BAD)
    if measured.directory is not None:
        yield Note(f"full report: {invocation.command('report', str(measured.directory))}")


def _number(value: float | None) -> str:
    return "-" if value is None else format_number(value, 3)


def _gap(impact: CutImpact) -> str:
    """Return the longest gap, which is at least that if training did not come back."""
    if impact.longest_gap_s is None:
        return "-"
    return f"{'>= ' if impact.gap_open else ''}{format_duration(impact.longest_gap_s, 3)}"


def _recovery(impact: CutImpact) -> Text:
    if not impact.came_back:
        return Text("never", style=tables.BAD)
    return Text("-" if impact.back_after_end_s is None else format_duration(impact.back_after_end_s, 3))


def _findings(findings: tuple[Finding, ...]) -> Table:
    rows: list[tables.Row] = [
        [Text(finding.risk, style=_STYLES.get(finding.risk, "")), f"{finding.what}\nfix: {finding.do}"]
        for finding in findings[:MOST_ROWS]
    ]
    return tables.table(("risk", "finding and fix"), rows, title=_title("Findings", len(rows), len(findings)))


def _pairs(audited: Audit) -> Table:
    worst = sorted(
        audited.pairs, key=lambda pair: (pair.worst_rtt_s is not None, -(pair.worst_rtt_s or 0) / pair.rtt_s)
    )
    rows: list[tables.Row] = [_pair(pair) for pair in worst[:MOST_ROWS]]
    heads = ("sites", "link-disjoint", "duct-disjoint", "RTT", "RTT, worst cut", "capacity", "left, worst cut")
    which = "pairs of sites" if audited.all_pairs else "directly linked pairs of sites"
    title = _title("Between sites", len(rows), len(audited.pairs), which)
    return tables.table(heads, rows, right=heads[1:], title=title)


def _pair(pair: PairRisk) -> tables.Row:
    diverse = f"{'' if pair.duct_disjoint.exact else 'at least '}{pair.duct_disjoint.count}"
    return [
        " - ".join(pair.between),
        str(pair.link_disjoint),
        Text(diverse, style=tables.BAD if pair.duct_disjoint.count < min(2, pair.link_disjoint) else ""),
        format_delay(pair.rtt_s, 4),
        _after(pair.worst_rtt_s).append(f" ({pair.worst_duct})", style="dim"),
        format_rate(pair.capacity_bps, 4),
        f"{format_rate(pair.worst_capacity_bps, 4) if pair.worst_capacity_bps else '0'} ({pair.narrowest_duct})",
    ]


def _ducts(audited: Audit) -> Table:
    worst = sorted(audited.ducts, key=lambda cut: (-cut.separated_pairs, cut.capacity_left, -len(cut.lost)))
    rows: list[tables.Row] = [_duct(cut) for cut in worst[:MOST_ROWS]]
    heads = ("duct cut", "dark", "on protection path", "pairs separated", "worst detour", "RTT", "capacity left")
    title = _title("After cutting one duct", len(rows), len(worst), "ducts")
    return tables.table(heads, rows, right=("pairs separated", "capacity left"), title=title)


def _duct(cut: DuctCut) -> tables.Row:
    detour = cut.detours[0] if cut.detours else None
    rtt = Text("-")
    if detour is not None:
        rtt = Text(f"{format_delay(detour.rtt_before_s, 4)} → ").append_text(_after(detour.rtt_after_s))
    return [
        cut.duct,
        ", ".join(cut.lost) or "-",
        ", ".join(cut.switched) or "-",
        str(cut.separated_pairs),
        "-" if detour is None else " - ".join(detour.between),
        rtt,
        format_probability(cut.capacity_left, 3),
    ]


def _after(rtt_s: float | None) -> Text:
    return Text("none", style=tables.BAD) if rtt_s is None else Text(format_delay(rtt_s, 4))


def _title(heading: str, shown: int, of: int, what: str = "") -> str:
    if shown == of:
        return heading
    return f"{heading}: the worst {shown} of {of}{' ' + what if what else ''}"
