"""The critical path of each step in a report: over time as a plot, and on average as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from testbed.core.analysis.critical_path import PARTS, CriticalPath, Parts
from testbed.core.analysis.operation_times import OperationTime
from testbed.core.report import formats
from testbed.core.report.report_table import Table

__all__ = ["LEAD", "OPERATIONS_LEAD", "PathSeries", "binned", "operations_table", "sentence", "series", "table"]

LEAD = (
    "A step lasts as long as the rank that ends it last. Its time is in exactly one part each: communication that"
    " compute hides is not on the path. Propagation and serialization are at most what the strategy's operations need"
    " over the certified fiber; unattributed is time that this model of a step does not explain."
)
OPERATIONS_LEAD = (
    "Medians over all operations between sites, whether compute hides them or not. Software is the remainder after the"
    " other parts."
)
_MOST_BARS = 120
_MOST_SIZES = 12
_OPERATION_PARTS: Mapping[str, str] = {
    "propagation_s": "propagation",
    "serialization_s": "serialization",
    "queueing_s": "queueing",
    "tcp_s": "slow start",
    "software_s": "software",
    "slot_s": "waited for a slot",
}


@dataclass(frozen=True)
class PathSeries:
    """The critical path of the committed steps in the order of time, one list per column; seconds.

    Attributes:
        t_s: when the step ended, since the job began.
        rank: which rank ended it last.
        exchange: whether the step waits for an operation across a fiber.
        parts: seconds by part, the fields of ``core.analysis.critical_path.Parts``.
        mean: of all steps. ``mean_of_exchanges``: of those with an exchange; None without one.
        operations: what operations between sites took, by size.
    """

    step: tuple[int, ...]
    t_s: tuple[float, ...]
    rank: tuple[int, ...]
    exchange: tuple[bool, ...]
    parts: Mapping[str, tuple[float, ...]]
    mean: Parts
    mean_of_exchanges: Parts | None = None
    operations: tuple[OperationTime, ...] = ()


def series(found: CriticalPath | None, origin: float) -> PathSeries | None:
    """Return the path as columns; None without a step. ``origin``: when the job began."""
    if found is None or not found.steps:
        return None
    return PathSeries(
        step=tuple(it.step for it in found.steps),
        t_s=tuple(it.ended_t - origin for it in found.steps),
        rank=tuple(it.rank for it in found.steps),
        exchange=tuple(it.exchange for it in found.steps),
        parts={name: tuple(getattr(it.parts, name) for it in found.steps) for name in PARTS},
        mean=found.mean,
        mean_of_exchanges=found.mean_of_exchanges,
        operations=found.operations,
    )


def table(found: PathSeries | None) -> Table | None:
    """Return a row for each part that any step has, and their sum."""
    if found is None:
        return None
    whole_s = found.mean.total_s
    often = found.mean_of_exchanges if not all(found.exchange) else None
    head = ["part", "per step", "share of the step", "longest in a step"]
    if often:
        head.insert(3, "per step with an exchange")
    rows: list[Sequence[object]] = []
    for name, called in PARTS.items():
        longest_s = max(found.parts[name])
        if longest_s <= 0:
            continue
        mean_s = getattr(found.mean, name)
        cells = [called, formats.duration(mean_s), formats.small_share(mean_s / whole_s), formats.duration(longest_s)]
        if often:
            cells.insert(3, formats.duration(getattr(often, name)))
        rows.append(cells)
    longest_s = max(sum(parts) for parts in zip(*found.parts.values(), strict=True))
    cells = ["the step", formats.duration(whole_s), formats.share(1.0), formats.duration(longest_s)]
    if often:
        cells.insert(3, formats.duration(often.total_s))
    return Table.of(head, [*rows, cells], "Critical path", range(1, len(head)))


def operations_table(found: PathSeries | None) -> Table | None:
    """Return a row for each size of operations between sites; None without records of them."""
    if found is None or not found.operations:
        return None
    head = ["operation", "ranks", "size", "count", "took", *_OPERATION_PARTS.values()]
    rows = [
        [
            it.size.kind,
            it.size.ranks,
            formats.size(it.size.byte_count),
            it.count,
            *(formats.duration(getattr(it, name)) for name in ("took_s", *_OPERATION_PARTS)),
        ]
        for it in found.operations[:_MOST_SIZES]
    ]
    return Table.of(head, rows, "Operations between sites", range(1, len(head)))


def sentence(found: PathSeries | None) -> str:
    """Return the largest parts of a mean step in a line; empty without steps."""
    if found is None or found.mean.total_s <= 0:
        return ""
    whole_s = found.mean.total_s
    shares = {name: getattr(found.mean, name) / whole_s for name in PARTS}
    largest = sorted((it for it in shares if shares[it] >= 0.005), key=lambda it: -shares[it])
    return ", ".join(f"{PARTS[name]} {formats.share(shares[name])}" for name in largest[:4])


def binned(found: PathSeries) -> tuple[list[float], list[float], dict[str, list[float]], list[str]]:
    """Return middle and width of each bar in seconds of the job, its parts as mean seconds per step, and its steps."""
    count = -(-len(found.step) // _MOST_BARS)
    middles, widths, labels = [], [], []
    means: dict[str, list[float]] = {name: [] for name in PARTS}
    begin = 0
    while begin < len(found.step):
        end = min(begin + count, len(found.step))
        whole = [sum(found.parts[name][index] for name in PARTS) for index in range(begin, end)]
        first_s = found.t_s[begin - 1] if begin else found.t_s[0] - whole[0]
        # A restart or a checkpoint between two steps belongs to none of them.
        first_s = max(first_s, found.t_s[begin] - 2 * whole[0])
        middles.append((first_s + found.t_s[end - 1]) / 2)
        widths.append(max(1e-6, found.t_s[end - 1] - first_s))
        for name in PARTS:
            means[name].append(statistics.fmean(found.parts[name][begin:end]))
        last = found.step[end - 1]
        labels.append(f"step {last}" if end - begin == 1 else f"steps {found.step[begin]} to {last}, mean")
        begin = end
    return middles, widths, means, labels
