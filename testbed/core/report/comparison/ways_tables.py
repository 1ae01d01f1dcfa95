"""Tables and sentences of several ways of training compared, for the page and for the terminal alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

from testbed.core.analysis.costs.critical_path import PARTS
from testbed.core.analysis.noise.paired_interval import LEAST_DIFFERENCES
from testbed.core.report import formats
from testbed.core.report.comparison import comparison_words
from testbed.core.report.comparison.side import Quantity
from testbed.core.report.comparison.ways_compared import Paired, WaysCompared, budget_text, loss_id
from testbed.core.report.report_table import Table

__all__ = [
    "budgets_table", "curves_table", "headline", "interval_label", "lead", "paired_table", "path_table", "runs_table",
    "summary",
]  # fmt: skip

TOO_FEW: Final = "too few seeds for an interval"

LEAD = "All runs have the same model, data, global batch, steps and schedule."
_OF_LOSS = (
    " The held-out loss is that of the parameters that a user would keep, on text that no run trains on; the loss"
    " inside a site is never compared. At this size it says nothing about large models."
)
_WITHOUT_LOSS = " No run has a held-out loss."


def lead(found: WaysCompared) -> str:
    """Return what is alike in all runs, and what their held-out loss means if there is one."""
    return LEAD + (_OF_LOSS if any(run.heldout.loss for run in found.runs) else _WITHOUT_LOSS)


_OF_SUMMARY = (
    "heldout_loss",
    "compute_utilization",
    "goodput",
    "tokens_per_s",
    "trained_s",
    "step_s",
    "compute_s",
    "exposed_s",
    "fiber_bytes_per_token",
    "theory_bytes_per_token",
    "recovery_s",
)

_LEAST = {"share": 0.0005, "nats": 0.00005, "s": 1e-6}
"""Less than that is shown as 0."""
_THEORY = "theory_bytes_per_token"


def headline(found: WaysCompared) -> str:
    """Return what was compared, and how much of it there is."""
    seeds = formats.plural(len(found.seeds), "seed")
    what = f"{formats.plural(len(found.ways), 'way')} of training on {found.topology}, {seeds} each"
    if len(found.runs) == found.planned:
        return f"{what}, {found.ended}" if found.ended else what
    return f"{what}: {len(found.runs)} of {found.planned} runs" + (f", {found.ended}" if found.ended else "")


def summary(found: WaysCompared) -> Table | None:
    """Return means over the seeds, a row for each way; behind the loss its difference to the baseline's."""
    ids = [id for id in _OF_SUMMARY if id in found.ids]
    head = ["way"]
    for id in ids:
        head.append(found.quantity(id).name)
        if id == "heldout_loss" and len(found.ways) > 1:
            head.append(_less(found))
    rows: list[Sequence[object]] = []
    for way in found.ways:
        cells = [way]
        for id in ids:
            cells.append(_value(found.quantity(id), found.mean(way, id)))
            if id == "heldout_loss" and len(found.ways) > 1:
                cells.append(difference(found, found.paired(way, id)))
        rows.append(cells)
    return Table.of(head, rows, "Ways of training", range(1, len(head)))


def interval_label(found: WaysCompared) -> str:
    """Return what a difference shows: mean and 95 % interval, or why it has no interval."""
    if len(found.seeds) < LEAST_DIFFERENCES:
        return TOO_FEW
    return "mean (95 % interval)"


def _less(found: WaysCompared) -> str:
    return f"less {found.baseline}, same seed; {interval_label(found)}"


def budgets_table(found: WaysCompared) -> Table | None:
    """Return the held-out loss at equal tokens, time and bytes: a row for each budget and way.

    Means over different seeds must not be compared, so a loss that only some seeds have is marked.
    """
    rows: list[Sequence[object]] = []
    for column, budget in found.budgets.items():
        id = loss_id(column)
        for way in found.ways:
            seeds = sum(run.value(id) is not None for run in found.of(way))
            partial = f" ({seeds} of {len(found.seeds)} seeds)" if 0 < seeds < len(found.seeds) else ""
            cells = [budget_text(column, budget), way]
            cells.append(_value(found.quantity(id), found.mean(way, id)) + partial)
            if len(found.ways) > 1:
                cells.append(difference(found, found.paired(way, id)))
            rows.append(cells)
    head = ("budget", "way", "held-out loss", *([_less(found)] if len(found.ways) > 1 else []))
    return Table.of(head, rows, "Held-out loss at equal budgets (toy scale)", range(2, len(head)))


def curves_table(found: WaysCompared) -> Table | None:
    """Return every evaluation: the values of the curves, for a reader without JavaScript."""
    rows = [
        (
            run.way, run.seed, formats.count(step), formats.count(tokens), formats.duration(t_s),
            formats.size(crossed), f"{loss:.4f}",
        )
        for run in found.runs
        for step, tokens, t_s, crossed, loss in itertools.zip_longest(
            run.heldout.step, run.heldout.tokens, run.heldout.t_s, run.heldout.fiber_bytes, run.heldout.loss
        )
    ]  # fmt: skip
    head = ("way", "seed", "step", "tokens", "time of training", "payload on all fibers", "held-out loss")
    return Table.of(head, rows, "Held-out loss by evaluation", range(1, len(head)))


def paired_table(found: WaysCompared) -> Table | None:
    """Return each way's differences to the baseline: mean over the seeds, with its interval."""
    others = found.ways[1:]
    ids = [id for id in found.ids if id != _THEORY and any(found.paired(way, id) for way in others)]
    rows = [[found.quantity(id).name, *(difference(found, found.paired(way, id)) for way in others)] for id in ids]
    return Table.of(("quantity", *others), rows, "Differences", range(1, len(others) + 1))


def path_table(found: WaysCompared) -> Table | None:
    """Return the mean step of each way by part."""
    paths = {way: path for way in found.ways if (path := found.mean_path(way)) is not None}
    parts = [name for name in PARTS if any(getattr(path, name) > 0 for path in paths.values())]
    rows = [
        [way, *(formats.duration(getattr(path, name)) for name in parts), formats.duration(path.total_s)]
        for way, path in paths.items()
    ]
    head = ("way", *(PARTS[name] for name in parts), "the step")
    return Table.of(head, rows, "Critical path of a step", range(1, len(head)))


def runs_table(found: WaysCompared) -> Table | None:
    """Return each run: its seed, its verdict, where it is."""
    rows = [
        [it.way, it.seed, comparison_words.VERDICTS[it.side.verdict], it.side.headline, it.side.folder]
        for it in found.runs
    ]
    return Table.of(("way", "seed", "verdict", "result", "run"), rows, "Runs", (1,))


def difference(found: WaysCompared, of: Paired | None) -> str:
    """Return mean and 95 % interval, ``+0.0310 (+0.0285 to +0.0335)``; of too few seeds the mean alone.

    A pair that lacks seeds which others have says so: the label of its column promises an interval.
    """
    if of is None:
        return formats.UNKNOWN
    quantity = found.quantity(of.id)
    mean = _signed(quantity, of.mean)
    noise = ", within noise" if of.within_noise else ""
    if of.interval is None:
        return mean + (f", {TOO_FEW}" if len(found.seeds) >= LEAST_DIFFERENCES else "") + noise
    low, high = (_signed(quantity, bound) for bound in of.interval)
    return f"{mean}{noise}" if low == high == mean else f"{mean} ({low} to {high}){noise}"


def _value(of: Quantity, value: float | None) -> str:
    return comparison_words.amount(of.unit, value) if value is not None else formats.UNKNOWN


def _signed(of: Quantity, value: float) -> str:
    if abs(value) < _LEAST.get(of.unit, 0.5):
        return "0"
    sign = "+" if value > 0 else "−"
    if of.unit == "share":
        return f"{sign}{abs(value) * 100:.1f} points"
    if of.unit == "nats":
        return f"{sign}{abs(value):.4f}"
    return f"{sign}{comparison_words.amount(of.unit, abs(value))}"
