"""Predictions as tables and pictures on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from testbed.cli import console, tables
from testbed.core.units import format_delay, format_duration, format_number, format_percent, format_rate
from testbed.core.workload.declared_compute import format_count

if TYPE_CHECKING:
    from testbed.core.prediction.heat_map import HeatMap
    from testbed.core.prediction.prediction import Merges, Prediction

__all__ = ["Axis", "heat_map", "percent", "show", "show_table"]


@dataclass(frozen=True)
class Axis:
    """What ``--over`` varies: its name, the argument of ``testbed.predict``, values in SI units and their format."""

    name: str
    field: str
    values: tuple[float, ...]
    shown: Callable[[float], str]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(self.shown, self.values))


def percent(share: float) -> str:
    """Format a share: ``98.9 %``."""
    return format_percent(share, 4)


def show(it: Prediction) -> None:
    """Print one prediction."""
    outcome, exposed, job = it.outcome, it.exposed, it.job
    if it.target is not None:
        console.show(_least(it))
    compute = f"{format_duration(outcome.compute_s, 4)} of compute"
    causes: list[tables.Row] = [
        [f"exposed: {name}", format_duration(getattr(exposed, field), 3), meaning]
        for name, field, meaning in _CAUSES
        if field != "unattributed_s" or exposed.unattributed_s
    ]
    rows: list[tables.Row] = [
        ["compute utilization", percent(it.utilization), f"limited by {it.limit}"],
        ["step", format_duration(outcome.step_s, 4), compute],
        *causes,
        ["bits per fiber", _bits(it.bits_per_step), "payload of the busiest direction, at full scale"],
        [
            "peak rate",
            format_rate(it.peak_bps, 4) if it.peak_bps else "0 b/s",
            "the largest exchange within one step of compute",
        ],
        ["w kappa; lambda; o/T", _groups(it), "the same three mean the same utilization, TCP aside"],
    ]
    if it.interval is not None:
        low, high = it.interval
        times = "with operations at the quartiles of their measured times"
        rows.insert(1, ["interval", f"{percent(low)} to {percent(high)}", times])
    if it.exchange is not None:
        cold = format_duration(it.exchange.cold_start_s, 3)
        alone = format_duration(it.exchange.alone_s, 3)
        rows.append(["one exchange alone", alone, f"{_bits(it.exchange.bits)}; slow start after idle adds {cold}"])
    if it.merges is not None:
        rows += _merge_rows(it, it.merges)
    rows += _failure_rows(it)
    if it.energy is not None:
        sent, waited = it.energy.exchange_j, it.energy.waiting_j
        paths = ", ".join(f"{path} {joules:.3g} J" for path, joules in it.energy.by_class.items())
        rows.append(
            ["energy", f"{sent + waited:.4g} J", f"{sent:.4g} J to send ({paths}), {waited:.4g} J to wait, all sites"]
        )
    console.show(tables.table(("", "per step", ""), rows, right=("per step",), title=f"Predicted: {it.strategy}"))
    if it.similar is not None:
        console.show(_similar(it))
    for published in it.quality:
        console.show(f"published, not predicted: {published.says} ({published.source}; {published.kind})")
    layout = job.twin.layout
    model = f"{format_count(layout.elements * job.scale)} parameters in {layout.layers} layers"
    rate = "" if it.target is not None else f", {_payload(job.rate_bps)}"
    sites = f"{job.sites} site{'' if job.sites == 1 else 's'}"
    ranks = f"{job.ranks_per_site} rank{'' if job.ranks_per_site == 1 else 's'}"
    where = f"{sites} of {ranks}{rate}, {format_delay(job.delay_s, 3)} one way"
    by = "as published" if job.as_published else f"by {job.library.name} at scale {job.scale:g}"
    console.say(f"{model}; {where}; {by} (docs/prediction.md)", style="dim")
    if it.not_timed:
        console.say(f"not measured, so costs are derived: {', '.join(it.not_timed)}", style="dim")
    if not outcome.steady:
        console.say("its cycles do not repeat: the mean of the latter half of those simulated", style="dim")


_CAUSES: Final = (
    ("peer wait", "waiting_s", "for another site or stage"),
    ("propagation", "propagation_s", "bits travel, in each sequential round of messages"),
    ("serialization", "serialization_s", "the exchange's own bits are sent"),
    ("queueing", "queueing_s", "behind other exchanges of the job"),
    ("software", "software_s", "of the collective library"),
    ("TCP", "tcp_s", "slow start, where it is asked for"),
    ("unattributed", "unattributed_s", "measured time that the run's own simulation does not explain"),
)


def _merge_rows(it: Prediction, merges: Merges) -> list[tables.Row]:
    """Return the rows of sites that do not wait for updates: how old these are."""

    def age(seconds: float) -> str:
        if not math.isfinite(seconds):
            return "none arrived"
        return f"{format_duration(seconds, 3)}, {format_number(seconds / it.outcome.step_s, 3)} steps"

    rows: list[tables.Row] = [
        ["age of updates", age(merges.age_s), f"median; 99th percentile {age(merges.age_p99_s)}"],
        ["merge every", format_duration(merges.merge_s, 3), "learners do not wait for it"],
    ]
    if merges.saturated:
        pushed = "none" if math.isinf(merges.steps_per_push) else format_number(merges.steps_per_push, 3)
        rows.append(["saturated", f"{pushed} steps", "inner steps per push: the fibers carry less than is pushed"])
    return rows


def _failure_rows(it: Prediction) -> list[tables.Row]:
    under = it.under_failures
    if under is None:
        return []
    found = under.to_dict()
    causes = ", ".join(f"{cause} {rate:.3g}" for cause, rate in found["failures_per_year"].items() if rate)
    rows: list[tables.Row] = [["failures", format_duration(under.mtbf_s, 3), f"between two; per year: {causes or 0}"]]
    interval, best = (format_duration(it, 3) for it in (under.interval_s, under.best_interval_s))
    events = found["goodput_synchronous_by_events"]
    by_events = "hardly ever done" if events is None else f"by events {percent(events)}"
    rows += [
        [
            "goodput, synchronous",
            percent(under.synchronous),
            f"all stop; a checkpoint every {interval}; best: {best}; {by_events}",
        ],
        ["goodput, elastic", percent(under.elastic), "one site stops, the others redo half a step"],
        ["goodput, decoupled", percent(under.decoupled), "one site stops and redoes half a round"],
    ]
    if under.failures.cuts_per_1000_km_year:
        routes = f"{found['routes']} route{'' if found['routes'] == 1 else 's'}"
        rows.append(
            [
                "routes",
                format_percent(found["route_availability"], 8),
                f"up: {routes} {' - '.join(found['routes_between'])}, down"
                f" {format_duration(found['route_down_s_per_year'], 3)} a year; {found['cuts_per_year']:.3g} cuts",
            ]
        )
    return rows


def _least(it: Prediction) -> Text:
    from testbed.core.prediction.required_rate import LEAST_BPS

    target = percent(it.target or 0.0)
    if it.rate_bps is None:
        why = f"{it.limit} limits to {percent(it.utilization)}"
        return Text(f"{target} is out of reach at any rate: {why}", style=tables.BAD)
    if it.rate_bps <= LEAST_BPS:
        return Text(f"{target} is reached at any rate from {format_rate(it.rate_bps, 4)} on")
    return Text(f"least payload rate for {target}: {format_rate(it.rate_bps, 4)} in each direction")


NOT_SIMILAR = "TCP's loss and windows are not similar"


def _similar(it: Prediction) -> Text:
    lab = it.similar
    assert lab is not None
    line = (
        f"similar lab: {format_duration(lab.step_s, 3)} a step,"
        f" {format_delay(lab.delay_s, 3)} one way"
        f" ({_km(lab.length_m)}), {_payload(lab.rate_bps)} at scale {lab.scale:g}\n"
        f"a lab with this fiber at scale {lab.scale:g} and {format_duration(lab.step_s, 3)} a step stands for"
        f" {lab.phi:.4g} times its distance: {_km(lab.stands_for.length_m)}, {_payload(lab.stands_for.rate_bps)};"
        f" {NOT_SIMILAR}"
    )
    if lab.cpu_bound:
        need = f"its ranks need {lab.cpu_share:.2g} times the cores"
        return Text(f"{line}\nCPU-bound here: {need}; lengthen its step, or use fewer ranks", style=tables.UNSURE)
    return Text(line)


def _payload(rate_bps: float) -> str:
    return "any rate of payload" if math.isinf(rate_bps) else f"{format_rate(rate_bps, 3)} of payload"


def _km(length_m: float) -> str:
    return f"{length_m / 1e3:.3g} km"


def _groups(it: Prediction) -> str:
    return f"{it.groups.wire_kappa:.3g}; {it.groups.propagation:.3g}; {it.groups.software:.3g}"


def _bits(bits: float) -> str:
    for unit, size in (("Tbit", 1e12), ("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}"
    return f"{bits:.0f} bit"


def show_table(axes: Sequence[Axis], rows: Sequence[Sequence[Prediction]], target: float | None) -> None:
    """Print predictions over one or two axes."""
    heads = [axes[0].name, *(axes[1].labels if len(axes) == 2 else [_what(target)])]
    body: list[tables.Row] = [
        [label, *(_cell(it, target) for it in row)] for label, row in zip(axes[0].labels, rows, strict=True)
    ]
    console.show(tables.table(heads, body, right=heads[1:], title=_title(rows[0][0].strategy, axes, target)))
    console.show(equivalents(rows))


def equivalents(rows: Sequence[Sequence[Prediction]]) -> str:
    """Return the groups of all predictions, and the lab that is similar to their corners."""
    every = [it for row in rows for it in row]

    def span(values: Sequence[float]) -> str:
        low, high = min(values), max(values)
        return f"{low:.3g}" if math.isclose(low, high) else f"{low:.3g} to {high:.3g}"

    found = [it.groups for it in every]
    groups = (
        f"w kappa {span([it.wire_kappa for it in found])}; lambda {span([it.propagation for it in found])};"
        f" o/T {span([it.software for it in found])}"
    )
    labs = [it.similar for it in every if it.similar is not None]
    if not labs:
        return groups
    kilometres = span([lab.length_m / 1e3 for lab in labs])
    rates = [lab.rate_bps for lab in labs]
    gbps = " at any rate" if math.isinf(max(rates)) else f" and {span([it / 1e9 for it in rates])} Gb/s of payload"
    bound = sum(lab.cpu_bound for lab in labs)
    here = f"; {bound} of {len(labs)} CPU-bound here" if bound else ""
    return (
        f"{groups}\nsimilar labs: {format_duration(labs[0].step_s, 3)} a step, {kilometres} km{gbps} at scale"
        f" {labs[0].scale:g}, phi {span([lab.phi for lab in labs])}{here}; {NOT_SIMILAR}"
    )


def heat_map(axes: Sequence[Axis], rows: Sequence[Sequence[Prediction]], target: float | None) -> HeatMap:
    """Return the picture of predictions over two axes."""
    from testbed.core.prediction.heat_map import HeatMap

    job = rows[0][0].job
    parameters, layout = job.twin.layout.elements * job.scale, job.twin.layout
    return HeatMap(
        title=_title(rows[0][0].strategy, axes, target),
        note=f"{parameters:.3g} parameters, {layout.layers} layers, {format_duration(job.step_s, 3)} of compute"
        f" a step; predicted\n{equivalents(rows)}",
        row_axis=axes[0].name,
        column_axis=axes[1].name,
        rows=axes[0].labels,
        columns=axes[1].labels,
        shares=tuple(
            tuple(None if target is not None and it.rate_bps is None else it.utilization for it in row) for row in rows
        ),
        labels=tuple(tuple(_cell(it, target).plain for it in row) for row in rows),
    )


def _cell(it: Prediction, target: float | None) -> Text:
    if target is not None:
        return Text("never", style=tables.BAD) if it.rate_bps is None else Text(format_rate(it.rate_bps, 3))
    return Text(f"{100 * it.utilization:.1f} %", style=tables.GOOD if it.utilization >= 0.9 else "")


def _what(target: float | None) -> str:
    return "compute utilization" if target is None else f"least rate for {percent(target)}"


def _title(strategy: str, axes: Sequence[Axis], target: float | None) -> str:
    return f"Predicted {_what(target)} of {strategy}, by {' and '.join(it.name for it in axes)}"
