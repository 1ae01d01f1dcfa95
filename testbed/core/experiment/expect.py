"""Expectations such as ``goodput >= 0.5``: parsed, never evaluated as code, and never met by missing data."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.units import Unreadable, parse_duration_s, parse_number, parse_probability
from testbed.core.user_text import expected, unknown

__all__ = ["METRICS", "Expectation", "Metric", "judge", "parse"]


@dataclass(frozen=True)
class Metric:
    """A figure of the report. ``read`` parses a bound as written to ``unit``."""

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
        Metric(
            "goodput",
            "0..1",
            "(productive + fault-free exposed communication) / (ranks x wall time)",
            parse_probability,
        ),
        Metric(
            "recovery",
            "s",
            "the longest gap between committed steps around a fault, without checkpoints",
            parse_duration_s,
        ),
        Metric("compute_utilization", "0..1", "compute / (compute + exposed communication)", parse_probability),
        Metric("train_loss_drop", "nats", "train_loss of the first steps minus that of the last", _ratio),
        Metric("steps_lost", "steps", "steps computed but not committed", _count),
        Metric("wire_ratio", "", "bytes counted on the fibers / bytes that the job must have moved", _ratio),
        Metric("attempts", "attempts", "attempts of the job, including the first", _count),
        Metric("restarts", "restarts", "attempts of the job after the first", _count),
        Metric(
            "detection",
            "s",
            "the longest time from a fault until the job detected that it could not continue",
            parse_duration_s,
        ),
        Metric(
            "time_to_resume",
            "s",
            "the longest time from an attempt's end to the first step of the next",
            parse_duration_s,
        ),
        Metric("wrong_sums", "sums", "collectives whose result differs from the sum of their inputs", _count),
        Metric("hangs", "hangs", "collectives that took longer than their bound", _count),
        Metric("stale_parameters", "steps", "steps in which a rank's parameters differed from the others'", _count),
        Metric("lost_updates", "updates", "optimizer steps that changed nothing", _count),
    )
}
"""Metrics of a whole run, known when it has ended. A metric without a measurement is unknown, never a pass."""

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
    """A comparison of ``metric`` with ``bound``, in the metric's SI unit, by ``op``.

    With ``of_before``, ``bound`` is a share of the metric's median before the first fault (``80% of before``).
    """

    text: str
    metric: str
    op: str
    bound: float
    of_before: bool = False

    def holds(self, value: float | None, before: float | None = None) -> bool | None:
        """Return whether ``value`` meets it; None if ``value`` or the ``before`` it depends on was not measured."""
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
    """Parse METRIC OPERATOR VALUE with a metric of ``metrics``; ``of_before`` also accepts ``80% of before`` as VALUE.

    Raises:
        Unreadable: another form, or an unknown metric.
    """
    match = _SHAPE.fullmatch(value) if isinstance(value, str) and len(value) <= 100 else None
    if match is None or not isinstance(value, str):
        raise Unreadable(*expected("METRIC OPERATOR VALUE", value, f"write {example}"))
    name, op, bound = match[1], match[2], match[3].strip()
    if name not in metrics:
        raise Unreadable(*unknown("metric", name, metrics))
    relative = _OF_BEFORE.fullmatch(bound) if of_before else None
    try:
        if relative is not None:
            return Expectation(value.strip(), name, op, _share(relative[1]), of_before=True)
        return Expectation(value.strip(), name, op, metrics[name].read(bound))
    except Unreadable as error:
        raise Unreadable(f"bound of {name}: {error.message}", error.fix) from error


def _share(written: str) -> float:
    """Parse ``80%`` or ``1.5``; unlike a probability, a share may exceed 1."""
    number, percent, after = written.partition("%")
    fix = "write a share such as 80% of before"
    try:
        share = parse_number(number, low=0.0, high=1e6)
    except Unreadable as error:
        raise Unreadable(error.message, fix) from error
    if after:
        raise Unreadable(*expected("a share", written, fix))
    return share / 100 if percent else share


def judge(expectation: Expectation, measured: Mapping[str, float | None]) -> bool | None:
    """Return whether ``expectation`` holds; None if its metric was not measured, which is never a pass."""
    return expectation.holds(measured.get(expectation.metric))
