"""The sections of an experiment file beside its schedule: steady state, outages, time compression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from testbed.core.experiment import expect, steady
from testbed.core.experiment.applicable import Refusal
from testbed.core.experiment.compression import parse_compression
from testbed.core.experiment.draw import Compression, Outages
from testbed.core.experiment.steady import Condition
from testbed.core.faults.causes import CUTS_PER_1000_KM_YEAR, parse_cause
from testbed.core.topology.topology_schema import Mistakes, check, whole
from testbed.core.units import Unreadable, parse_duration_s, parse_number
from testbed.core.user_text import expected
from testbed.core.workload.file_section import Part, some_time
from testbed.core.yamltext import Path

__all__ = ["MOST_ENTRIES", "compression_of", "hypothesis_of", "listed", "outages_of"]

MOST_ENTRIES: Final = 1000
"""Most entries in one list of a file."""


def _cuts(value: object) -> float:
    return parse_number(value, low=0.0, high=1e6)


class _Steady(Part):
    before: Any = None
    during: Any = None
    after: Any = None
    always: Any = None


class _Check(Part):
    check: Any = None
    grace: Annotated[float | None, BeforeValidator(parse_duration_s), Field(alias="for")] = None
    within: Annotated[float | None, BeforeValidator(parse_duration_s)] = None


class _Random(Part):
    to: Annotated[float | None, BeforeValidator(some_time)] = None
    begin: Annotated[float | None, BeforeValidator(parse_duration_s), Field(alias="from")] = None
    cuts_per_1000_km_year: Annotated[float | None, BeforeValidator(_cuts)] = None
    causes: Any = None
    seed: Annotated[int | None, BeforeValidator(whole(0, 2**63 - 1))] = None


class _Compress(Part):
    time: Annotated[float | None, BeforeValidator(parse_compression)] = None
    repair: Annotated[float | None, BeforeValidator(parse_compression)] = None


def listed(raw: object, path: Path, like: str, mistakes: Mistakes) -> list[Any]:
    """Return ``raw`` if it is a list; anything else becomes a finding."""
    if raw is None:
        return []
    if not isinstance(raw, list):
        message, fix = expected("a list", raw, f"write {like}, one per line after a dash")
        mistakes.note(path, f"{path[-1]}: {message}", fix)
        return []
    if len(raw) > MOST_ENTRIES:
        mistakes.note(path, f"too many entries: {len(raw)}", f"use at most {MOST_ENTRIES}")
    return raw[:MOST_ENTRIES]


def compression_of(raw: object, mistakes: Mistakes) -> Compression:
    """Parse ``compress:``, either one factor for both or ``{time: …, repair: …}``."""
    if raw is None:
        return Compression()
    path: Path = ("compress",)
    if isinstance(raw, Mapping):
        both = check(_Compress, raw, path, "compress", mistakes)
        given = {key: value for key, value in (("time", both.time), ("repair", both.repair)) if value is not None}
        return Compression(**given)
    try:
        factor = parse_compression(raw)
    except Unreadable as error:
        mistakes.note(path, error.message, error.fix)
        return Compression()
    return Compression(factor, factor)


Refused = Callable[[str], Refusal | None]
"""Tells why a metric does not apply to the experiment's workload; None if it does."""


def hypothesis_of(raw: object, refused: Refused, mistakes: Mistakes) -> tuple[Condition, ...]:
    """Return the conditions of the hypothesis in the order of ``steady.WHEN``."""
    phases = check(_Steady, raw, ("hypothesis",), "the hypothesis", mistakes)
    conditions = [
        _steady(raw_condition, when, ("hypothesis", when, index), refused, mistakes)
        for when in steady.WHEN
        for index, raw_condition in enumerate(
            listed(getattr(phases, when), ("hypothesis", when), "conditions such as [ranks_up == 4]", mistakes)
        )
    ]
    return tuple(condition for condition in conditions if condition is not None)


def _steady(raw: object, when: str, path: Path, refused: Refused, mistakes: Mistakes) -> Condition | None:
    """Parse a condition, or ``{check: …, for: 5s}``."""
    before = len(mistakes.findings)
    written = check(_Check, raw, path, "a condition", mistakes) if isinstance(raw, Mapping) else _Check(check=raw)
    at: Path = (*path, "check") if isinstance(raw, Mapping) else path
    condition = None
    if isinstance(raw, Mapping) and "check" not in raw:
        mistakes.note(path, "a condition has no check", 'add check: "ranks_up == 4"')
    else:
        try:
            condition = expect.parse(
                written.check,
                steady.METRICS,
                "ranks_up == 4" if when == "before" else "train_loss < 3 or tokens_per_s >= 80% of before",
                of_before=when != "before",
            )
        except Unreadable as error:
            mistakes.note(at, error.message, error.fix)
        else:
            if why := refused(condition.metric):
                mistakes.note(at, *why)
    if written.within is not None and when != "after":
        mistakes.note((*path, "within"), f"within applies to 'after' only, got '{when}'", "remove it")
    if condition is None or len(mistakes.findings) > before:
        return None
    grace_s = steady.GRACE_S if written.grace is None else written.grace
    return Condition(when, condition, grace_s, steady.WITHIN_S if written.within is None else written.within)


def outages_of(raw: object, mistakes: Mistakes) -> Outages | None:
    """Parse ``random:``."""
    if raw is None:
        return None
    path: Path = ("random",)
    section = check(_Random, raw, path, "random", mistakes)
    weights = _weights(section.causes, mistakes)
    if section.to is None:
        if not mistakes.bad & {path, ("random", "to")}:
            mistakes.note(path, "random has no end", "add to: 60s, counted from the start of the job")
        return None
    begin_s = section.begin or 0.0
    if begin_s >= section.to:
        mistakes.note(
            (*path, "from"), f"random ends at {section.to:g} s, before its start at {begin_s:g} s", "swap them"
        )
    cuts = CUTS_PER_1000_KM_YEAR if section.cuts_per_1000_km_year is None else section.cuts_per_1000_km_year
    return Outages(section.to, begin_s, cuts, weights, section.seed)


def _weights(raw: object, mistakes: Mistakes) -> dict[str, float]:
    if raw is None:
        return {}
    path: Path = ("random", "causes")
    if not isinstance(raw, Mapping):
        message, fix = expected("a mapping of causes to weights", raw, "write {excavator: 3, rodent: 1}")
        mistakes.note(path, f"causes: {message}", fix)
        return {}
    weights: dict[str, float] = {}
    for name, value in raw.items():
        try:
            weights[parse_cause(name)] = parse_number(value, low=0.0, high=1e6)
        except Unreadable as error:
            mistakes.note((*path, name), error.message, error.fix)
    if weights and not any(weights.values()):
        mistakes.note(path, "expected a weight above 0 for at least one cause", "write a weight such as 1")
    return weights
