"""An experiment file: what to train, what goes wrong and when, and what is expected of it.

::

    teaches: one line about what this shows
    topology: metro-40km                      # optional: what to run on when nothing else is named
    workload: {steps: 500}
    schedule:
      - {after: step 40%, inject: cut, target: "link[0]", for: 10s}
      - {at: 30s, inject: flap, target: south, with: {down: 200ms, up: 800ms, times: 10}}
    expect:
      - goodput >= 0.5

Every mistake is found at once, with its line. What depends on the topology is checked by ``schedule.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from testbed.core import yamltext
from testbed.core.experiment import expect
from testbed.core.experiment.expect import Expectation
from testbed.core.faults.fault import FaultKind, registry
from testbed.core.topology.schema import Mistakes, Written, check, whole
from testbed.core.units import Unreadable, parse_duration_s
from testbed.core.words import nearest, shown
from testbed.core.yamltext import Path
from testbed.errors import FileMistakes, Finding

__all__ = ["DEFAULT_STEPS", "MOST_STEPS", "Experiment", "ScheduledFault", "Trigger", "load_text"]

DEFAULT_STEPS: Final = 500
MOST_STEPS: Final = 10_000_000
MOST_FAULTS: Final = 1000


@dataclass(frozen=True)
class Trigger:
    """When a fault begins; one of the three is not None.

    ``step``: when so many steps are committed. ``share``: the same, as a part (0..1) of all steps. ``at_s``: so
    many seconds after the job's first step began.
    """

    step: int | None = None
    share: float | None = None
    at_s: float | None = None


@dataclass(frozen=True)
class ScheduledFault:
    """A fault as written; ``target`` and ``parameters`` are not resolved yet. ``for_s`` None: until the end of the run,
    or of the fault, where it has one."""

    trigger: Trigger
    inject: str
    target: str
    for_s: float | None
    file: str
    line: int
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """``text`` is the file's own text, kept for the record of a run."""

    name: str
    teaches: str
    topology: str | None
    steps: int
    seed: int
    schedule: tuple[ScheduledFault, ...]
    expectations: tuple[Expectation, ...]
    source: str
    text: str


_AFTER: Final = re.compile(r"step\s+([0-9]{1,9})|step\s+([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%", re.ASCII)


def _after(value: object) -> Trigger:
    match = _AFTER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        what = "there is no value" if value is None else f"{shown(value)} is no step"
        raise Unreadable(what, "write step 120 or step 40%")
    if match[1]:
        return Trigger(step=int(match[1]))
    share = float(match[2]) / 100
    if share >= 1:
        raise Unreadable(f"{shown(value)} is after the last step", "write less than 100%")
    return Trigger(share=share)


def _line(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 300 or not value.strip().isprintable():
        what = "there is no value" if value is None else f"{shown(value)} is not a line of text"
        raise Unreadable(what, "write one line of at most 300 characters")
    return value.strip()


def _duration(value: object) -> float:
    duration_s = parse_duration_s(value)
    if duration_s == 0:
        raise Unreadable("a fault of 0 s is none", "write a time such as 10s")
    return duration_s


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class _Workload(_Part):
    steps: Annotated[int | None, BeforeValidator(whole(1, MOST_STEPS))] = None
    seed: Annotated[int | None, BeforeValidator(whole(0, 2**63 - 1))] = None


class _Fault(_Part):
    after: Annotated[Trigger | None, BeforeValidator(_after)] = None
    at: Annotated[float | None, BeforeValidator(parse_duration_s)] = None
    inject: Annotated[str | None, BeforeValidator(_line)] = None
    target: Annotated[str | None, BeforeValidator(_line)] = None
    duration: Annotated[float | None, BeforeValidator(_duration), Field(alias="for")] = None
    parameters: Annotated[Any, Field(alias="with")] = None


class _Top(_Part):
    name: Annotated[str | None, BeforeValidator(_line)] = None
    teaches: Annotated[str | None, BeforeValidator(_line)] = None
    topology: Annotated[str | None, BeforeValidator(_line)] = None
    workload: Any = None
    schedule: Any = None
    expect: Any = None


def load_text(text: bytes, label: str, faults: Mapping[str, FaultKind] | None = None) -> Experiment:
    """The experiment in ``text``; ``label`` is the file's name in messages.

    ``faults`` is what can be injected; if it is not given, all there is.

    Raises:
        FileMistakes: with every mistake found.
    """
    document = yamltext.read(text, label)
    if document.data is None:
        fix = "the least is schedule: [{after: step 40%, inject: cut, target: 'link[0]', for: 10s}]"
        raise FileMistakes([Finding(label, 0, "the file is empty", fix)])
    mistakes = Mistakes(Written(document))
    top = check(_Top, document.data, (), "an experiment", mistakes)
    workload = check(_Workload, top.workload, ("workload",), "the workload", mistakes)
    schedule = [
        _fault(raw, ("schedule", index), registry() if faults is None else faults, mistakes)
        for index, raw in enumerate(
            _listed(top.schedule, ("schedule",), "faults such as {at: 20s, inject: cut, target: north}", mistakes)
        )
    ]
    expectations = [
        _expectation(raw, ("expect", index), mistakes)
        for index, raw in enumerate(_listed(top.expect, ("expect",), "a list such as [goodput >= 0.5]", mistakes))
    ]
    mistakes.raise_if_any()
    stem = label.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    return Experiment(
        name=top.name or stem,
        teaches=top.teaches or "",
        topology=top.topology,
        steps=workload.steps or DEFAULT_STEPS,
        seed=workload.seed or 0,
        schedule=tuple(fault for fault in schedule if fault is not None),
        expectations=tuple(expectation for expectation in expectations if expectation is not None),
        source=label,
        text=text.decode("utf-8-sig"),
    )


def _listed(raw: object, path: Path, like: str, mistakes: Mistakes) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        mistakes.note(path, f"'{path[-1]}' is {shown(raw)}, not a list", f"write {like}, one a line, each after a dash")
        return []
    if len(raw) > MOST_FAULTS:
        mistakes.note(path, f"{len(raw)} entries", f"at most {MOST_FAULTS} are taken")
    return raw[:MOST_FAULTS]


def _fault(raw: object, path: Path, faults: Mapping[str, FaultKind], mistakes: Mistakes) -> ScheduledFault | None:
    before = len(mistakes.findings)
    fault = check(_Fault, raw, path, "a fault", mistakes)
    bad = {found[2] for found in mistakes.bad if len(found) == 3 and found[:2] == path}
    if path in mistakes.bad:
        return None
    if fault.after is not None and fault.at is not None:
        mistakes.note((*path, "at"), "a fault has both after and at", "keep one of them")
    elif fault.after is None and fault.at is None and not bad & {"after", "at"}:
        mistakes.note(path, "a fault does not say when", "add after: step 40%, or at: 20s")
    if fault.inject is None and "inject" not in bad:
        mistakes.note(path, "a fault does not say what to inject", f"add inject: {next(iter(faults))}")
    if fault.inject is not None and fault.inject not in faults:
        mistakes.note((*path, "inject"), f"no fault is called {shown(fault.inject)}", nearest(fault.inject, faults))
    if fault.target is None and "target" not in bad:
        mistakes.note(path, "a fault has no target", 'add target: "link[0]", the first link, or a name')
    kind = faults.get(fault.inject or "")
    parameters = _parameters(fault.parameters, (*path, "with"), kind, mistakes)
    if len(mistakes.findings) > before or fault.inject is None or fault.target is None:
        return None
    return ScheduledFault(
        trigger=fault.after or Trigger(at_s=fault.at),
        inject=fault.inject,
        target=fault.target,
        for_s=fault.duration,
        file=mistakes.written.document.file,
        line=mistakes.written.document.line((*path, "target")),
        parameters=parameters,
    )


def _parameters(raw: object, path: Path, kind: FaultKind | None, mistakes: Mistakes) -> dict[str, str]:
    """Of a fault, as they would be written in a command."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        mistakes.note(path, f"'with' is {shown(raw)}, which has no keys", "write it as with: {down: 200ms, up: 800ms}")
        return {}
    written: dict[str, str] = {}
    for key, value in raw.items():
        if kind is not None and key not in kind.parameters:
            mistakes.note((*path, key), f"{kind.name} has no parameter {shown(key)}", nearest(key, kind.parameters))
        elif value is None or isinstance(value, dict | list):
            what = "there is no value" if value is None else f"{shown(value)} is no value"
            mistakes.note((*path, key), f"{key} of a fault: {what}", "write one such as 200ms, 5% or 10")
        else:
            written[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return written


def _expectation(raw: object, path: Path, mistakes: Mistakes) -> Expectation | None:
    try:
        return expect.parse(raw)
    except Unreadable as error:
        mistakes.note(path, error.message, error.fix)
        return None
