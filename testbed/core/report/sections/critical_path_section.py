"""The critical path of each step in a report: over time as a plot, and on average as a table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from testbed.core.analysis.costs.critical_path import PARTS, CriticalPath, StepParts
from testbed.core.analysis.costs.operation_times import OperationTime
from testbed.core.json_form import Keywords
from testbed.core.report import formats
from testbed.core.report.blocks import Heading, Section, Table, Text

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = [
    "LEAD",
    "OPERATIONS_LEAD",
    "PathSeries",
    "binned",
    "operations_table",
    "section",
    "sentence",
    "series",
    "table",
]

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


_PARTS = Keywords(
    required=[*PARTS],
    propertyNames={"enum": [*PARTS]},
    additionalProperties={"type": "array", "items": {"type": "number", "minimum": 0}},
)


@dataclass(frozen=True)
class PathSeries:
    """The critical path of the committed steps in the order of time, one list per column; seconds.

    Attributes:
        t_s: when the step ended, since the job began.
        rank: which rank ended it last.
        exchange: whether the step waits for an operation across a fiber.
        parts: seconds by part, the fields of ``core.analysis.critical_path.StepParts``.
        mean: of all steps. ``mean_of_exchanges``: of those with an exchange; None without one.
        operations: what operations between sites took, by size.
    """

    step: tuple[int, ...]
    """Number of the step."""
    t_s: tuple[float, ...]
    rank: tuple[int, ...]
    exchange: tuple[bool, ...]
    parts: Annotated[Mapping[str, tuple[float, ...]], _PARTS]
    mean: StepParts
    mean_of_exchanges: StepParts | None = None
    operations: tuple[OperationTime, ...] = ()


def series(path: CriticalPath | None, origin: float) -> PathSeries | None:
    """Return the path as columns; None without a step. ``origin``: when the job began."""
    if path is None or not path.steps:
        return None
    return PathSeries(
        step=tuple(step.step for step in path.steps),
        t_s=tuple(step.ended_t - origin for step in path.steps),
        rank=tuple(step.rank for step in path.steps),
        exchange=tuple(step.exchange for step in path.steps),
        parts={name: tuple(getattr(step.parts, name) for step in path.steps) for name in PARTS},
        mean=path.mean,
        mean_of_exchanges=path.mean_of_exchanges,
        operations=path.operations,
    )


def table(path: PathSeries | None) -> Table | None:
    """Return a row for each part that any step has, and their sum."""
    if path is None:
        return None
    whole_s = path.mean.total_s
    often = path.mean_of_exchanges if not all(path.exchange) else None
    head = ["part", "per step", "share of the step", "longest in a step"]
    if often:
        head.insert(3, "per step with an exchange")
    rows: list[Sequence[object]] = []
    for name, called in PARTS.items():
        longest_s = max(path.parts[name])
        if longest_s <= 0:
            continue
        mean_s = getattr(path.mean, name)
        cells = [called, formats.duration(mean_s), formats.small_share(mean_s / whole_s), formats.duration(longest_s)]
        if often:
            cells.insert(3, formats.duration(getattr(often, name)))
        rows.append(cells)
    longest_s = max(sum(parts) for parts in zip(*path.parts.values(), strict=True))
    cells = ["the step", formats.duration(whole_s), formats.share(1.0), formats.duration(longest_s)]
    if often:
        cells.insert(3, formats.duration(often.total_s))
    return Table.of(head, [*rows, cells], "Critical path", range(1, len(head)))


def operations_table(path: PathSeries | None) -> Table | None:
    """Return a row for each size of operations between sites; None without records of them."""
    if path is None or not path.operations:
        return None
    head = ["operation", "ranks", "size", "count", "took", *_OPERATION_PARTS.values()]
    rows = [
        [
            operation.size.kind,
            operation.size.ranks,
            formats.size(operation.size.byte_count),
            operation.count,
            *(formats.duration(getattr(operation, name)) for name in ("took_s", *_OPERATION_PARTS)),
        ]
        for operation in path.operations[:_MOST_SIZES]
    ]
    return Table.of(head, rows, "Operations between sites", range(1, len(head)))


def sentence(path: PathSeries | None) -> str:
    """Return the largest parts of a mean step in a line; empty without steps."""
    if path is None or path.mean.total_s <= 0:
        return ""
    whole_s = path.mean.total_s
    shares = {name: getattr(path.mean, name) / whole_s for name in PARTS}
    largest = sorted(
        (name_of_part for name_of_part in shares if shares[name_of_part] >= 0.005),
        key=lambda name_of_part: -shares[name_of_part],
    )
    return ", ".join(f"{PARTS[name]} {formats.share(shares[name])}" for name in largest[:4])


def binned(path: PathSeries) -> tuple[list[float], list[float], dict[str, list[float]], list[str]]:
    """Return middle and width of each bar in seconds of the job, its parts as mean seconds per step, and its steps."""
    count = -(-len(path.step) // _MOST_BARS)
    middles, widths, labels = [], [], []
    means: dict[str, list[float]] = {name: [] for name in PARTS}
    begin = 0
    while begin < len(path.step):
        end = min(begin + count, len(path.step))
        whole = [sum(path.parts[name][index] for name in PARTS) for index in range(begin, end)]
        first_s = path.t_s[begin - 1] if begin else path.t_s[0] - whole[0]
        # A restart or a checkpoint between two steps belongs to none of them.
        first_s = max(first_s, path.t_s[begin] - 2 * whole[0])
        middles.append((first_s + path.t_s[end - 1]) / 2)
        widths.append(max(1e-6, path.t_s[end - 1] - first_s))
        for name in PARTS:
            means[name].append(statistics.fmean(path.parts[name][begin:end]))
        last = path.step[end - 1]
        labels.append(f"step {last}" if end - begin == 1 else f"steps {path.step[begin]} to {last}, mean")
        begin = end
    return middles, widths, means, labels


def section(report: Report) -> Section | None:
    operations = operations_table(report.critical_path)
    return Section.of(
        "Critical path",
        table(report.critical_path),
        *((Heading("Operations between sites"), Text(OPERATIONS_LEAD), operations) if operations else ()),
        lead=LEAD,
    )
