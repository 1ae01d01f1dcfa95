"""Tables and sentences of several ways of training compared, for the page and for the terminal alike."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.core.analysis.critical_path import PARTS
from testbed.core.report import formats
from testbed.core.report.comparison import comparison_words
from testbed.core.report.comparison.side import Quantity
from testbed.core.report.comparison.ways_compared import Paired, WaysCompared
from testbed.core.report.report_table import Table

__all__ = ["headline", "lead", "paired_table", "path_table", "runs_table", "summary"]

LEAD = "All runs have the same model, data, global batch, steps and schedule."
_OF_LOSS = (
    " The held-out loss is that of the parameters that a user would keep, on text that no run trains on; the loss"
    " inside a site is never compared. At this size it says nothing about large models."
)
_WITHOUT_LOSS = " No run has a held-out loss."


def lead(found: WaysCompared) -> str:
    """Return what is alike in all runs, and what their held-out loss means if there is one."""
    return LEAD + (_OF_LOSS if "heldout_loss" in found.ids else _WITHOUT_LOSS)


_OF_SUMMARY = (
    "heldout_loss",
    "compute_utilization",
    "goodput",
    "tokens_per_s",
    "trained_s",
    "step_s",
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
            head.append(f"less {found.baseline}, same seed")
    rows: list[Sequence[object]] = []
    for way in found.ways:
        cells = [way]
        for id in ids:
            cells.append(_value(found.quantity(id), found.mean(way, id)))
            if id == "heldout_loss" and len(found.ways) > 1:
                cells.append(difference(found, found.paired(way, id)))
        rows.append(cells)
    return Table.of(head, rows, "Ways of training", range(1, len(head)))


def paired_table(found: WaysCompared) -> Table | None:
    """Return each way's differences to the baseline: mean, least and greatest over the seeds."""
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
    """Return mean and spread, ``+0.031 (+0.030 to +0.032)``; of one seed the spread is not known."""
    if of is None:
        return formats.UNKNOWN
    quantity = found.quantity(of.id)
    mean = _signed(quantity, of.mean)
    low, high = _signed(quantity, of.low), _signed(quantity, of.high)
    noise = ", within noise" if of.within_noise else ""
    return f"{mean}{noise}" if len(of.differences) < 2 or low == high == mean else f"{mean} ({low} to {high}){noise}"


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
