"""Predictions as tables and pictures on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from testbed.cli import tables
from testbed.cli.console import Note, Shown
from testbed.core.units import format_delay, format_duration, format_number, format_percent, format_rate
from testbed.core.workload.declared_compute import format_count

if TYPE_CHECKING:
    from testbed.core.prediction.heat_map import HeatMap
    from testbed.core.prediction.prediction import Merges, Prediction

__all__ = ["Axis", "heat_map", "of_one", "over", "percent"]


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


def of_one(prediction: Prediction) -> Iterator[Shown]:
    """Return the tables of one prediction."""
    if prediction.target is not None:
        yield _least(prediction)
    title = f"Predicted: {prediction.strategy}"
    yield tables.table(("", "per step", ""), _rows(prediction), right=("per step",), title=title)
    if prediction.similar is not None:
        yield _similar(prediction)
    for published in prediction.quality:
        yield f"published, not predicted: {published.says} ({published.source}; {published.kind})"
    yield Note(_assumptions(prediction))
    if prediction.not_timed:
        yield Note(f"not measured, so costs are derived: {', '.join(prediction.not_timed)}")
    if not prediction.outcome.steady:
        yield Note("its cycles do not repeat: the mean of the latter half of those simulated")


def _rows(prediction: Prediction) -> list[tables.Row]:
    outcome, exposed = prediction.outcome, prediction.exposed
    compute = f"{format_duration(outcome.compute_s, 4)} of compute"
    peak = format_rate(prediction.peak_bps, 4) if prediction.peak_bps else "0 b/s"
    causes: list[tables.Row] = [
        [f"exposed: {name}", format_duration(getattr(exposed, field), 3), meaning]
        for name, field, meaning in _CAUSES
        if field != "unattributed_s" or exposed.unattributed_s
    ]
    rows: list[tables.Row] = [
        ["compute utilization", percent(prediction.utilization), f"limited by {prediction.limit}"],
        ["step", format_duration(outcome.step_s, 4), compute],
        *causes,
        ["bits per fiber", _bits(prediction.bits_per_step), "payload of the busiest direction, at full scale"],
        ["peak rate", peak, "the largest exchange within one step of compute"],
        ["w kappa; lambda; o/T", _groups(prediction), "the same three mean the same utilization, TCP aside"],
    ]
    if prediction.interval is not None:
        low, high = prediction.interval
        times = "with operations at the quartiles of their measured times"
        rows.insert(1, ["interval", f"{percent(low)} to {percent(high)}", times])
    if (exchange := prediction.exchange) is not None:
        cold = format_duration(exchange.cold_start_s, 3)
        alone = format_duration(exchange.alone_s, 3)
        rows.append(["one exchange alone", alone, f"{_bits(exchange.bits)}; slow start after idle adds {cold}"])
    if prediction.merges is not None:
        rows += _merge_rows(prediction, prediction.merges)
    rows += _failure_rows(prediction)
    if (energy := prediction.energy) is not None:
        sent, waited = energy.exchange_j, energy.waiting_j
        paths = ", ".join(f"{path} {joules:.3g} J" for path, joules in energy.by_class.items())
        rows.append(
            ["energy", f"{sent + waited:.4g} J", f"{sent:.4g} J to send ({paths}), {waited:.4g} J to wait, all sites"]
        )
    return rows


def _assumptions(prediction: Prediction) -> str:
    job = prediction.job
    layout = job.twin.layout
    model = f"{format_count(layout.elements * job.scale)} parameters in {layout.layers} layers"
    rate = "" if prediction.target is not None else f", {_payload(job.rate_bps)}"
    sites = f"{job.sites} site{'' if job.sites == 1 else 's'}"
    ranks = f"{job.ranks_per_site} rank{'' if job.ranks_per_site == 1 else 's'}"
    where = f"{sites} of {ranks}{rate}, {format_delay(job.delay_s, 3)} one way"
    by = "as published" if job.as_published else f"by {job.library.name} at scale {job.scale:g}"
    return f"{model}; {where}; {by} (docs/prediction.md)"


_CAUSES: Final = (
    ("peer wait", "waiting_s", "for another site or stage"),
    ("propagation", "propagation_s", "bits travel, in each sequential round of messages"),
    ("serialization", "serialization_s", "the exchange's own bits are sent"),
    ("queueing", "queueing_s", "behind other exchanges of the job"),
    ("software", "software_s", "of the collective library"),
    ("TCP", "tcp_s", "slow start, where it is asked for"),
    ("unattributed", "unattributed_s", "measured time that the run's own simulation does not explain"),
)


def _merge_rows(prediction: Prediction, merges: Merges) -> list[tables.Row]:
    """Return the rows of sites that do not wait for updates: how old these are."""

    def age(seconds: float) -> str:
        if not math.isfinite(seconds):
            return "none arrived"
        return f"{format_duration(seconds, 3)}, {format_number(seconds / prediction.outcome.step_s, 3)} steps"

    rows: list[tables.Row] = [
        ["age of updates", age(merges.age_s), f"median; 99th percentile {age(merges.age_p99_s)}"],
        ["merge every", format_duration(merges.merge_s, 3), "learners do not wait for it"],
    ]
    if merges.saturated:
        pushed = "none" if math.isinf(merges.steps_per_push) else format_number(merges.steps_per_push, 3)
        rows.append(["saturated", f"{pushed} steps", "inner steps per push: the fibers carry less than is pushed"])
    return rows


def _failure_rows(prediction: Prediction) -> list[tables.Row]:
    under = prediction.under_failures
    if under is None:
        return []
    plain = under.to_dict()
    causes = ", ".join(f"{cause} {rate:.3g}" for cause, rate in plain["failures_per_year"].items() if rate)
    rows: list[tables.Row] = [["failures", format_duration(under.mtbf_s, 3), f"between two; per year: {causes or 0}"]]
    interval, best = (format_duration(seconds, 3) for seconds in (under.interval_s, under.best_interval_s))
    events = plain["goodput_synchronous_by_events"]
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
        routes = f"{plain['routes']} route{'' if plain['routes'] == 1 else 's'}"
        rows.append(
            [
                "routes",
                format_percent(plain["route_availability"], 8),
                f"up: {routes} {' - '.join(plain['routes_between'])}, down"
                f" {format_duration(plain['route_down_s_per_year'], 3)} a year; {plain['cuts_per_year']:.3g} cuts",
            ]
        )
    return rows


def _least(prediction: Prediction) -> Text:
    from testbed.core.prediction.required_rate import LEAST_BPS

    target = percent(prediction.target or 0.0)
    if prediction.rate_bps is None:
        why = f"{prediction.limit} limits to {percent(prediction.utilization)}"
        return Text(f"{target} is out of reach at any rate: {why}", style=tables.BAD)
    if prediction.rate_bps <= LEAST_BPS:
        return Text(f"{target} is reached at any rate from {format_rate(prediction.rate_bps, 4)} on")
    return Text(f"least payload rate for {target}: {format_rate(prediction.rate_bps, 4)} in each direction")


NOT_SIMILAR = "TCP's loss and windows are not similar"


def _similar(prediction: Prediction) -> Text:
    lab = prediction.similar
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


def _groups(prediction: Prediction) -> str:
    return f"{prediction.groups.wire_kappa:.3g}; {prediction.groups.propagation:.3g}; {prediction.groups.software:.3g}"


def _bits(bits: float) -> str:
    for unit, size in (("Tbit", 1e12), ("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}"
    return f"{bits:.0f} bit"


def over(axes: Sequence[Axis], rows: Sequence[Sequence[Prediction]], target: float | None) -> Iterator[Shown]:
    """Return the table of predictions over one or two axes."""
    heads = [axes[0].name, *(axes[1].labels if len(axes) == 2 else [_what(target)])]
    body: list[tables.Row] = [
        [label, *(_cell(prediction, target) for prediction in row)]
        for label, row in zip(axes[0].labels, rows, strict=True)
    ]
    yield tables.table(heads, body, right=heads[1:], title=_title(rows[0][0].strategy, axes, target))
    yield equivalents(rows)


def equivalents(rows: Sequence[Sequence[Prediction]]) -> str:
    """Return the groups of all predictions, and the lab that is similar to their corners."""
    predictions = [prediction for row in rows for prediction in row]

    def span(values: Sequence[float]) -> str:
        low, high = min(values), max(values)
        return f"{low:.3g}" if math.isclose(low, high) else f"{low:.3g} to {high:.3g}"

    each_groups = [prediction.groups for prediction in predictions]
    groups = (
        f"w kappa {span([numbers.wire_kappa for numbers in each_groups])};"
        f" lambda {span([numbers.propagation for numbers in each_groups])};"
        f" o/T {span([numbers.software for numbers in each_groups])}"
    )
    labs = [prediction.similar for prediction in predictions if prediction.similar is not None]
    if not labs:
        return groups
    kilometres = span([lab.length_m / 1e3 for lab in labs])
    rates = [lab.rate_bps for lab in labs]
    gbps = " at any rate" if math.isinf(max(rates)) else f" and {span([bps / 1e9 for bps in rates])} Gb/s of payload"
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
            tuple(None if target is not None and cell.rate_bps is None else cell.utilization for cell in row)
            for row in rows
        ),
        labels=tuple(tuple(_cell(prediction, target).plain for prediction in row) for row in rows),
    )


def _cell(prediction: Prediction, target: float | None) -> Text:
    if target is not None:
        return (
            Text("never", style=tables.BAD)
            if prediction.rate_bps is None
            else Text(format_rate(prediction.rate_bps, 3))
        )
    return Text(f"{100 * prediction.utilization:.1f} %", style=tables.GOOD if prediction.utilization >= 0.9 else "")


def _what(target: float | None) -> str:
    return "compute utilization" if target is None else f"least rate for {percent(target)}"


def _title(strategy: str, axes: Sequence[Axis], target: float | None) -> str:
    return f"Predicted {_what(target)} of {strategy}, by {' and '.join(axis.name for axis in axes)}"
