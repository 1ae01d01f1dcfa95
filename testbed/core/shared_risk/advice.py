"""Turn the result of an audit into findings with advice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from testbed.core.shared_risk.audit import Audit, PairRisk, SinglePoint
from testbed.core.topology.model import Topology

__all__ = ["Finding", "findings"]

MOST_NAMED = 4


@dataclass(frozen=True)
class Finding:
    """A finding: ``what`` was found, and what to ``do`` about it.

    ``risk`` is ``single point``, ``shared risk``, ``no failover``, ``shared power`` or ``second failure``.
    """

    risk: str
    what: str
    do: str


def findings(topology: Topology, report: Audit) -> tuple[Finding, ...]:
    """Return the findings of ``found``, the audit of ``topology``, the worst first."""
    return (
        *_single_points(report),
        *_shared(report),
        *_protected(topology),
        *_no_failover(topology, report),
        *_power(topology, report),
        *_second_failures(report),
    )


def _single_points(report: Audit) -> Iterator[Finding]:
    for point in report.single_points:
        apart = " from ".join(_names(island) for island in (point.islands[-1], point.islands[0]))
        islands = f", {len(point.islands)} islands in total" if len(point.islands) > 2 else ""
        yield Finding("single point", f"{_failure(point)} separates {apart}{islands}", _mend(point, report))


def _failure(point: SinglePoint) -> str:
    return {
        "duct": f"one cut of {point.name}",
        "link": f"a failure at an end of {point.name}, which a second path cannot bypass,",
        "gateway": f"loss of {point.name}",
        "power": f"an outage of {point.name}",
    }[point.kind]


def _mend(point: SinglePoint, report: Audit) -> str:
    ends = f"{point.islands[-1][0]} and {point.islands[0][0]}"
    match point.kind:
        case "duct":
            cut = next(duct_cut for duct_cut in report.ducts if duct_cut.duct == point.name)
            protect = f", or protect {cut.lost[0]} by a second path outside it" if cut.lost else ""
            return f"connect {ends} by a link that avoids {point.name}{protect}"
        case "link":
            return f"connect {ends} by a second link"
        case "gateway":
            return f"connect {ends} by a link that does not end at {point.name}"
        case _:
            return f"connect {ends} by a link to no site on {point.name}, or feed one of them from another power domain"


def _shared(report: Audit) -> Iterator[Finding]:
    lost = {cut.duct: cut.lost for cut in report.ducts}
    for risk in report.shared:
        if len(lost[risk.duct]) < 2:
            continue  # links with a second path switch to it
        others = [pair for pair in report.pairs if _looks_diverse(pair) and {*pair.via} & {*risk.links}]
        why = "separates sites" if risk.separates else "one dig cuts them all"
        detail = ""
        if others:
            worst = others[0]
            detail = (
                f"; {' - '.join(worst.between)} has {worst.link_disjoint} link-disjoint paths"
                f" but {worst.duct_disjoint.count} duct-disjoint"
            )
        yield Finding(
            "shared risk",
            f"{_names(risk.links)} share {risk.duct}: {why}{detail}",
            f"route one of them around {risk.duct}, or add a second path (protection: {{type: 1+1, via: […]}})",
        )


def _protected(topology: Topology) -> Iterator[Finding]:
    for link in topology.links:
        common = [] if link.second_path is None else [duct for duct in link.via if duct in link.second_path.via]
        if common:
            yield Finding(
                "shared risk",
                f"both paths of {link.name} pass through {_names(common)}: it is not protected against a cut there",
                f"route the second path of {link.name} around {_names(common)}",
            )


def _no_failover(topology: Topology, report: Audit) -> Iterator[Finding]:
    for link in topology.links:
        stuck = [
            detour.between
            for cut in report.ducts
            if link.protection == "none" and link.name in cut.lost and not cut.separated_pairs
            for detour in cut.detours
            if detour.rtt_after_s is None and link.name in _way_of(report, detour.between)
        ]
        if stuck:
            pairs = _names([" - ".join(pair) for pair in dict.fromkeys(stuck)])
            yield Finding(
                "no failover",
                f"while {link.name} is cut, traffic of {pairs} stops although other paths exist",
                f"replace protection: none of {link.name} by route, or add a second path",
            )


def _way_of(report: Audit, between: tuple[str, str]) -> tuple[str, ...]:
    return next((pair.via for pair in report.pairs if pair.between == between), ())


def _looks_diverse(pair: PairRisk) -> bool:
    return pair.duct_disjoint.exact and pair.duct_disjoint.count < pair.link_disjoint


def _power(topology: Topology, report: Audit) -> Iterator[Finding]:
    for domain, sites in report.power.items():
        ranks = sum(topology.site(name).nodes for name in sites)
        yield Finding(
            "shared power",
            f"{_names(sites)} share {domain}: one outage takes down {ranks} of {len(topology.node_names)} ranks",
            "feed them from different power domains, or count them as one site",
        )


def _second_failures(report: Audit) -> Iterator[Finding]:
    if not report.double_cuts:
        return
    worst = max(report.double_cuts, key=lambda double_cut: double_cut.pairs)
    apart = " from ".join(_names(island) for island in (worst.islands[-1], worst.islands[0]))
    tried = "" if report.double_cuts_tried == report.double_cuts_possible else " (of those tried)"
    yield Finding(
        "second failure",
        f"{len(report.double_cuts)} of {report.double_cuts_possible} pairs of ducts{tried} separate sites when both are"
        f" cut; at worst {' and '.join(worst.ducts)}: {apart}",
        "repair a cut before the next one, or add a third disjoint path",
    )


def _names(names: Sequence[str]) -> str:
    left_out = len(names) - MOST_NAMED + 1
    shown = [*names] if len(names) <= MOST_NAMED else [*names[: MOST_NAMED - 1], f"{left_out} more"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
