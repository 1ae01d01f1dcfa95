"""Software, workload and machine of a run in its report: names and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from testbed.core.report import formats
from testbed.core.report.blocks import Facts, Section
from testbed.core.report.document import Report

__all__ = ["facts", "section"]

_RECORDS = frozenset(
    {"began_t", "ended_in_order", "ended_t", "ends", "exceeded", "members", "progress", "progress_unread"}
)
"""Of a launched program's workload: records that the rank-seconds and the answers are made from, no words for a reader.
"""


def section(report: Report) -> Section | None:
    return Section.of("Run and host", Facts(facts(report)))


def facts(report: Report) -> tuple[tuple[str, str], ...]:
    run, training = report.run, report.training
    cores = report.machine.emulator_cores
    hidden = {*_RECORDS, "strategy"} if training.strategy else _RECORDS
    pairs = [
        ("steps lost", "" if report.is_program and not report.has_steps else formats.count(training.steps_lost)),
        ("lab", run.lab),
        ("driver", run.driver),
        ("emulator", run.emulator),
        ("testbed", run.testbed),
        ("whole run", formats.duration(report.duration_s)),
        ("training", formats.duration(training.wall_s)),
        ("ranks", formats.count(training.world_size)),
        ("strategy", training.strategy),
        ("CPU busy, median", formats.share(report.machine.cpu_busy)),
        ("emulator's cores, mean", formats.UNKNOWN if cores is None else f"{cores:.2f}"),
        *_flat("", {name: value for name, value in run.workload.items() if name not in hidden}),
        *_flat("scheduling of ", run.scheduling),
        *_flat("", run.host),
    ]
    if report.certificate:
        used = str(report.certificate.host.get("congestion_control", ""))
        wanted = report.topology.congestion if report.topology else used
        if used and used != wanted:
            pairs.append(("congestion control of the topology", f"{wanted}, which this kernel lacks: {used} instead"))
        shown = dict(pairs)
        pairs += [(name, value) for name, value in _flat("", report.certificate.host) if name not in shown]
    empty = ("", formats.UNKNOWN) if report.is_program else ("",)
    return tuple((name, value) for name, value in pairs if value not in empty)


def _flat(prefix: str, values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if name == "sysctls" and isinstance(value, Mapping):
            yield from _sysctls(value, values.get("congestion_control"))
        elif isinstance(value, Mapping):
            yield from _flat(prefix, value)
        elif name == "congestion_control":
            yield "congestion control over the fibers", str(value)
        elif value is not None:
            yield f"{prefix}{name.replace('_', ' ')}", str(value)


def _sysctls(values: Mapping[str, object], used: object) -> Iterator[tuple[str, str]]:
    """Keep the sysctls' own names. A connection over a fiber may have ``used`` another value, which its route sets."""
    for name, value in values.items():
        overridden = name == "net.ipv4.tcp_congestion_control" and used not in (None, "", value)
        note = " (the fibers' routes override it)" if overridden else ""
        yield f"sysctl of the nodes, {name}", f"{value}{note}"
