"""The verb ``audit``: the shared-risk audit of a topology (SRLG), on paper and by measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

import testbed.host.linux.invocation as invocation
from testbed.cli import console, tables, verb
from testbed.cli.verb import (
    AllowUncertified,
    AsJson,
    Driver,
    Emulator,
    LabNameToMake,
    Overrides,
    RunsFolder,
    Strict,
    TopologyArgument,
    Wait,
)
from testbed.core.units import format_delay, format_duration, format_number, format_probability, format_rate
from testbed.errors import UserError

if TYPE_CHECKING:
    from testbed.core.analysis.cut_impact import CutImpact
    from testbed.core.shared_risk.advice import Finding
    from testbed.core.shared_risk.audit import Audit, DuctCut, PairRisk
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
    hold: Annotated[str, typer.Option(metavar="TIME", help="With --measure: how long each duct is cut.")] = "5s",
    name: LabNameToMake = None,
    runs: RunsFolder = None,
    driver: Driver = "auto",
    emulator: Emulator = "auto",
    strict: Strict = False,
    allow_uncertified: AllowUncertified = False,
    wait: Wait = False,
    as_json: AsJson = False,
) -> int:
    """Find links that look diverse but share a duct, single points of failure, and the cost of each duct's cut.

    Every duct, link, gateway and power domain fails once on paper, ducts also in pairs. With --measure, bring up a lab,
    train a job and cut each duct in turn; Ctrl-C keeps what was measured. Exit status: 0 whatever the findings, which
    are yours to judge; 2 if the file has mistakes; 3 if the lab failed.
    """
    from testbed.core.shared_risk import advice
    from testbed.core.shared_risk import audit as core
    from testbed.host.files import catalog

    wanted = catalog.load_topology(topology, verb.read_overrides(set_))
    hold_s = verb.read_duration_s(hold, "--hold") or 0.0
    if (only or name) and not measure:
        raise UserError(f"--{'only' if only else 'name'} needs --measure")
    found = core.audit(wanted)
    findings = advice.findings(wanted, found)
    if not as_json:
        _show(found, findings, wanted.scale)
    measured = None
    if measure:
        from testbed.lab.run import measured_audit as lab

        with console.progress() as progress:
            measured = lab.measure(
                wanted,
                only=only or (),
                hold_s=hold_s,
                name=name,
                runs=runs,
                driver=driver,
                emulator=emulator,
                strict=strict,
                allow_uncertified=allow_uncertified,
                wait=wait,
                progress=progress,
            )
    if as_json:
        plain = {} if measured is None else {"measured": lab.to_dict(measured)}
        console.show_json({**tables.plain(found), "findings": tables.plain(findings), **plain})
    elif measured is not None:
        _show_measured(measured)
    return {"interrupted": 130, "failed": 3}.get(measured.status, 0) if measured else 0


def _show(found: Audit, findings: tuple[Finding, ...], scale: float) -> None:
    from testbed.core.physics import full_scale

    for each in (_pairs(found), _ducts(found)):
        if each.row_count:
            console.show(each)
    if findings:
        console.show(_findings(findings))
    else:
        clear = "no risks found: no single failure and no pair of duct cuts separates sites"
        console.show(Text(clear, style=tables.GOOD))
    console.say("capacities add up all fibers, at the lab's scaled rates; routing may use fewer", style="dim")
    if said := full_scale.sentence((pair.capacity_bps for pair in found.pairs), scale):
        console.say(said, style="dim")


def _show_measured(measured: Measured) -> None:
    rows: list[tables.Row] = [
        [
            it.duct,
            ", ".join(it.links),
            format_duration(it.lasted_s, 2),
            _number(it.steps_per_s_before),
            _number(it.steps_per_s_during),
            "-" if it.goodput is None else format_probability(it.goodput, 2),
            _gap(it),
            _back(it),
        ]
        for it in measured.impacts
    ]
    heads = ("duct cut", "links", "for", "steps/s before", "during", "kept", "longest gap", "recovery after heal")
    if rows:
        console.show(tables.table(heads, rows, right=heads[2:], title="Measured"))
    if measured.left:
        console.show(Text(f"not cut: {', '.join(measured.left)}", style=tables.UNSURE))
    if measured.why:
        console.show(Text(f"{measured.status}: {measured.why}", style=tables.BAD))
    if measured.directory is not None:
        console.say(f"full report: {invocation.command('report', str(measured.directory))}", style="dim")


def _number(value: float | None) -> str:
    return "-" if value is None else format_number(value, 3)


def _gap(it: CutImpact) -> str:
    """Return the longest gap, which is at least that if training did not come back."""
    return "-" if it.longest_gap_s is None else f"{'>= ' if it.gap_open else ''}{format_duration(it.longest_gap_s, 3)}"


def _back(it: CutImpact) -> Text:
    if not it.came_back:
        return Text("never", style=tables.BAD)
    return Text("-" if it.back_after_end_s is None else format_duration(it.back_after_end_s, 3))


def _findings(findings: tuple[Finding, ...]) -> Table:
    rows: list[tables.Row] = [
        [Text(it.risk, style=_STYLES.get(it.risk, "")), f"{it.what}\nfix: {it.do}"] for it in findings[:MOST_ROWS]
    ]
    return tables.table(("risk", "finding and fix"), rows, title=_title("Findings", len(rows), len(findings)))


def _pairs(found: Audit) -> Table:
    worst = sorted(found.pairs, key=lambda it: (it.worst_rtt_s is not None, -(it.worst_rtt_s or 0) / it.rtt_s))
    rows: list[tables.Row] = [_pair(it) for it in worst[:MOST_ROWS]]
    heads = ("sites", "link-disjoint", "duct-disjoint", "RTT", "RTT, worst cut", "capacity", "left, worst cut")
    which = "pairs of sites" if found.all_pairs else "directly linked pairs of sites"
    title = _title("Between sites", len(rows), len(found.pairs), which)
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


def _ducts(found: Audit) -> Table:
    worst = sorted(found.ducts, key=lambda it: (-it.separated_pairs, it.capacity_left, -len(it.lost)))
    rows: list[tables.Row] = [_duct(it) for it in worst[:MOST_ROWS]]
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
