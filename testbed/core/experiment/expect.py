"""Expectations: ``goodput >= 0.5``. Parsed, never evaluated, and never held by data that is missing."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.units import Unreadable, parse_duration_s, parse_number, parse_probability
from testbed.core.user_text import shown

__all__ = ["METRICS", "Expectation", "Metric", "judge", "parse"]


@dataclass(frozen=True)
class Metric:
    """A number that a report has. ``read`` turns a bound as people write it into ``unit``."""

    name: str
    unit: str
    means: str
    read: Callable[[object], float]


def _ratio(value: object) -> float:
    return parse_number(value, low=0.0, high=1e6)


def _count(value: object) -> float:
    return parse_number(value, low=0.0, high=1e9)


METRICS: Final = {
    metric.name: metric
    for metric in (
        Metric("goodput", "0..1", "committed tokens x fault-free seconds per token / wall time", parse_probability),
        Metric("recovery", "s", "the longest gap between committed steps", parse_duration_s),
        Metric("compute_utilization", "0..1", "compute / (compute + exposed communication)", parse_probability),
        Metric("train_loss_drop", "nats", "train_loss of the first steps less that of the last", _ratio),
        Metric("steps_lost", "steps", "steps that were done and did not count in the end", _count),
        Metric("wire_ratio", "", "bytes counted on the fibers / bytes that the job must have moved", _ratio),
        Metric("attempts", "attempts", "how often the job began, the first time included", _count),
        Metric("restarts", "restarts", "how often the job began again", _count),
        Metric(
            "detection",
            "s",
            "the longest time from a fault until the job knew that it could not go on",
            parse_duration_s,
        ),
        Metric(
            "time_to_resume",
            "s",
            "the longest time from an attempt's end to the next one's first step",
            parse_duration_s,
        ),
        Metric("wrong_sums", "sums", "collectives whose result was not the sum of what went in", _count),
        Metric("hangs", "hangs", "collectives that took longer than their bound", _count),
        Metric(
            "stale_parameters", "steps", "steps in which a rank trained on other parameters than the others", _count
        ),
        Metric("lost_updates", "updates", "optimizer steps that changed nothing", _count),
    )
}
"""Of a whole run, known when it has ended. One that nothing measured is unknown, and never a pass."""

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}

_SHAPE: Final = re.compile(r"\s*([A-Za-z_]{1,40})\s*(>=|<=|==|!=|>|<)\s*([^<>=!]{1,40})", re.ASCII)
_OF_BEFORE: Final = re.compile(r"(.{1,30}?)\s+of\s+before", re.ASCII)


@dataclass(frozen=True)
class Expectation:
    """``metric`` compared by ``op`` with ``bound``, in the metric's SI unit.

    ``of_before``: ``bound`` is a share of the metric's median before the first fault (``80% of before``).
    """

    text: str
    metric: str
    op: str
    bound: float
    of_before: bool = False

    def holds(self, value: float | None, before: float | None = None) -> bool | None:
        """Of a measured ``value``; None if it, or the ``before`` that it is compared with, was not measured."""
        if value is None or math.isnan(value):
            return None
        if not self.of_before:
            return _OPERATORS[self.op](value, self.bound)
        return None if before is None or math.isnan(before) else _OPERATORS[self.op](value, self.bound * before)


def parse(
    value: object,
    metrics: Mapping[str, Metric] = METRICS,
    example: str = "goodput >= 0.5 or recovery <= 10s",
    *,
    of_before: bool = False,
) -> Expectation:
    """METRIC OPERATOR VALUE, the metric one of ``metrics``; with ``of_before`` also ``80% of before`` for a value.

    Raises:
        Unreadable: not of that form, or no such metric.
    """
    match = _SHAPE.fullmatch(value) if isinstance(value, str) and len(value) <= 100 else None
    if match is None or not isinstance(value, str):
        what = f"{shown(value)} is no condition" if value is not None else "there is no value"
        raise Unreadable(what, f"write it as in {example}")
    name, op, bound = match[1], match[2], match[3].strip()
    if name not in metrics:
        raise Unreadable(f"{shown(name)} is not measured", "there is " + ", ".join(metrics))
    relative = _OF_BEFORE.fullmatch(bound) if of_before else None
    try:
        if relative is not None:
            return Expectation(value.strip(), name, op, _share(relative[1]), of_before=True)
        return Expectation(value.strip(), name, op, metrics[name].read(bound))
    except Unreadable as error:
        raise Unreadable(f"the bound of {name}: {error.message}", error.fix) from error


def _share(written: str) -> float:
    """``80%`` or ``1.5``; unlike a probability it may be more than 1."""
    number, percent, rest = written.partition("%")
    fix = "write a share such as 80% of before"
    try:
        share = parse_number(number, low=0.0, high=1e6)
    except Unreadable as error:
        raise Unreadable(error.message, fix) from error
    if rest:
        raise Unreadable(f"{shown(written)} is no share", fix)
    return share / 100 if percent else share


def judge(expectation: Expectation, measured: Mapping[str, float | None]) -> bool | None:
    """Whether ``expectation`` holds; None if what it asks for was not measured, which is never a pass."""
    return expectation.holds(measured.get(expectation.metric))
