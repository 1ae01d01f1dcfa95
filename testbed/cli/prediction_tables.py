"""Predictions as tables and pictures on the command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from testbed.cli import console, tables
from testbed.core.units import format_delay, format_duration, format_percent, format_rate

if TYPE_CHECKING:
    from testbed.core.prediction.heat_map import HeatMap
    from testbed.core.prediction.prediction import Prediction

__all__ = ["Axis", "heat_map", "percent", "show", "show_table"]


@dataclass(frozen=True)
class Axis:
    """What ``--over`` varies: its name, the field of ``Inputs``, the values in SI units and how they are printed."""

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


def show(it: Prediction, measured: float | None = None) -> None:
    """Print one prediction, beside the ``measured`` compute utilization of the run that it is made from."""
    outcome, exposed = it.outcome, it.outcome.exposed
    if it.target is not None:
        console.show(_least(it))
    rows: list[tables.Row] = [
        ["compute utilization", percent(it.utilization), f"limited by {outcome.limit}"],
        ["step", format_duration(outcome.step_s, 4), f"{format_duration(outcome.compute_s, 4)} compute"],
        [
            "exposed: propagation",
            format_duration(exposed.propagation_s, 3),
            f"c = {it.pattern.delays:g}",
        ],
        ["exposed: serialization", format_duration(exposed.serialization_s, 3), f"w = {it.pattern.wire_factor:.4g}"],
        ["exposed: software", format_duration(exposed.software_s, 3), "library and its slots"],
        ["exposed: waiting", format_duration(exposed.waiting_s, 3), "for another site or stage"],
        ["bits per fiber", _bits(outcome.bits_per_step), "payload, each direction"],
        ["peak rate", format_rate(outcome.peak_bps, 4), "the largest exchange within one step of compute"],
        ["w kappa; lambda; o/T", _groups(it), "the same three mean the same utilization, TCP aside"],
    ]
    if outcome.merge_s is not None:
        rows.append(["merge every", format_duration(outcome.merge_s, 3), "learners do not wait for it"])
    if it.failures is not None and it.goodput is not None:
        interval = format_duration(it.failures.interval_s or it.failures.best_interval_s, 3)
        best = format_duration(it.failures.best_interval_s, 3)
        rows.append(["goodput", percent(it.goodput), f"a checkpoint every {interval}; best: {best}"])
    if it.energy_j is not None:
        sent, waited = it.energy_j
        rows.append(["energy", f"{sent + waited:.4g} J", f"{sent:.4g} J to send, {waited:.4g} J to wait, all sites"])
    console.show(tables.table(("", "per step", ""), rows, right=("per step",), title=f"Predicted: {it.strategy}"))
    if measured is not None:
        residual = 100 * (measured - it.utilization)
        console.show(
            f"measured by the run: {percent(measured)}; measured - predicted: {residual:+.1f} percentage points"
        )
    if it.similar is not None:
        console.show(_similar(it))
    formula = "events" if outcome.formula == "events" else "the closed form"
    rate = "" if it.target is not None else f" at {format_rate(it.inputs.rate_bps, 4)} of payload"
    console.say(f"by {formula}{rate}; left out: slow start, fabrics inside sites (docs/prediction.md)", style="dim")


def _least(it: Prediction) -> Text:
    from testbed.core.prediction.required_rate import LEAST_BPS

    target = percent(it.target or 0.0)
    if it.rate_bps is None:
        why = f"{it.outcome.limit} limits to {percent(it.utilization)}"
        return Text(f"{target} is out of reach at any rate: {why}", style=tables.BAD)
    if it.rate_bps <= LEAST_BPS:
        return Text(f"{target} is reached at any rate from {format_rate(it.rate_bps, 4)} on")
    return Text(f"least payload rate for {target}: {format_rate(it.rate_bps, 4)} in each direction")


def _similar(it: Prediction) -> Text:
    lab = it.similar
    assert lab is not None
    rate = "any rate" if math.isinf(lab.rate_bps) else format_rate(lab.rate_bps, 3)
    line = (
        f"similar lab: {format_duration(lab.step_s, 3)} a step, {format_delay(lab.delay_s, 3)} one way"
        f" ({lab.length_m / 1e3:.3g} km), {rate} of payload at scale {lab.scale:g};"
        " TCP's windows and loss are not similar"
    )
    if lab.cpu_share > 1:
        need = f"its ranks need {lab.cpu_share:.2g} times the cores"
        return Text(f"{line}\nCPU-bound here: {need}; lengthen its step, or use fewer ranks", style=tables.UNSURE)
    return Text(line)


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


def heat_map(axes: Sequence[Axis], rows: Sequence[Sequence[Prediction]], target: float | None) -> HeatMap:
    """Return the picture of predictions over two axes."""
    from testbed.core.prediction.heat_map import HeatMap

    first = rows[0][0].inputs
    return HeatMap(
        title=_title(rows[0][0].strategy, axes, target),
        note=f"{first.parameters:.3g} parameters, {first.layers} layers, {format_duration(first.step_s, 3)} of compute"
        f" a step, {first.bits:g} bits; predicted, TCP's windows and loss left out",
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
