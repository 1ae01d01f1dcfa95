"""Expectations: ``goodput >= 0.5``. Parsed, never evaluated, and never held by data that is missing."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from testbed.core.units import Unreadable, parse_duration_s, parse_number, parse_probability
from testbed.core.words import shown

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
    )
}

_OPERATORS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

_SHAPE: Final = re.compile(r"\s*([A-Za-z_]{1,40})\s*(>=|<=|>|<)\s*([^<>=]{1,40})", re.ASCII)


@dataclass(frozen=True)
class Expectation:
    """``metric`` (a key of :data:`METRICS`) compared by ``op`` with ``bound``, in the metric's SI unit."""

    text: str
    metric: str
    op: str
    bound: float


def parse(value: object) -> Expectation:
    """
    Raises:
        Unreadable: not of the form METRIC OPERATOR VALUE, or no such metric.
    """
    fix = "write it as in goodput >= 0.5 or recovery <= 10s"
    match = _SHAPE.fullmatch(value) if isinstance(value, str) and len(value) <= 100 else None
    if match is None or not isinstance(value, str):
        raise Unreadable(f"{shown(value)} is no expectation" if value is not None else "there is no value", fix)
    name, op, bound = match[1], match[2], match[3].strip()
    if name not in METRICS:
        raise Unreadable(f"{shown(name)} is not measured", "there is " + ", ".join(METRICS))
    try:
        return Expectation(value.strip(), name, op, METRICS[name].read(bound))
    except Unreadable as error:
        raise Unreadable(f"the bound of {name}: {error.message}", error.fix) from error


def judge(expectation: Expectation, measured: Mapping[str, float | None]) -> bool | None:
    """Whether ``expectation`` holds; None if what it asks for was not measured, which is never a pass."""
    value = measured.get(expectation.metric)
    if value is None or math.isnan(value):
        return None
    return _OPERATORS[expectation.op](value, expectation.bound)
