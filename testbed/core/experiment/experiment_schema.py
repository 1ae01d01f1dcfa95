"""The experiment file: what to train, which faults occur when, and what to expect.

::

    teaches: one line on what this experiment demonstrates
    topology: metro-40km                      # optional: default topology
    set: {links.north.km: 80}                 # overrides of the topology, like --set
    strict: true                              # refuse a noisy host, like --strict
    workload: {steps: 500, checkpoint: 50, restarts: 3}   # or a command: core/workload/workload_schema.py
    hypothesis:                               # the steady state; core/experiment/steady.py
      before: [ranks_up == 4]
      after: [{check: "tokens_per_s >= 80% of before", within: 10s}]
    schedule:
      - {after: step 40%, inject: cut, target: "link[0]", for: 10s}
      - {at: 30s, inject: flap, target: south, with: {down: 200ms, up: 800ms, times: 10}}
      - {when: train_loss < 3, inject: cut, target: south, for: 1s, repeat: 5, every: 10s}
      - {at: 40s, inject: cut, target: north, with: {cause: excavator}, for: repair}
    random: {to: 60s, seed: 7}                # core/experiment/draw.py
    compress: {time: 10 years = 60s, repair: 12 h = 5s}
    expect:
      - goodput >= 0.5

Every mistake is reported at once, with its line. ``fault_schedule.py`` checks what depends on the topology.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from testbed.core import yamltext
from testbed.core.experiment import applicable, expect, steady
from testbed.core.experiment.applicable import Refusal
from testbed.core.experiment.draw import Compression, Outages
from testbed.core.experiment.expect import Expectation
from testbed.core.experiment.sections import (
    MOST_ENTRIES,
    compression_of,
    hypothesis_of,
    listed,
    outages_of,
)
from testbed.core.experiment.steady import Condition
from testbed.core.faults import causes
from testbed.core.faults.causes import CAUSES
from testbed.core.faults.fault_kind import FaultKind
from testbed.core.faults.fault_registry import registry
from testbed.core.topology.topology_schema import Mistakes, Written, check, whole
from testbed.core.units import Unreadable, parse_duration_s
from testbed.core.user_text import expected, shown, unknown
from testbed.core.workload import workload_schema
from testbed.core.workload.file_section import Part, one_line, some_time, switch
from testbed.core.workload.workload import Workload
from testbed.core.yamltext import Path
from testbed.errors import FileMistakes, Finding

__all__ = ["Experiment", "Planned", "examine", "load_text"]


@dataclass(frozen=True)
class Planned:
    """A fault of an experiment: as written, and then as ``fault_schedule.plan`` resolves it on a topology.

    It is due once ``after_step`` steps are committed, ``at_s`` seconds after the job's begin (``RunningJob.began_t``),
    or the first time that ``when`` holds; one of the three is not None. It is injected ``repeat`` times, ``every_s``
    seconds apart.

    Attributes:
        target: as written, such as ``link[0]``; once planned, the topology's name.
        for_s: None: until the run, or a fault with an end of its own, ends.
        parameters: as written.
        lasts_s: once planned, the resulting duration in seconds; None: until the end of the run.
        after_share: as written, in place of ``after_step``: a share (0..1) of all steps.
        file, line: where its target is written.
        partial: whether its kind or its parameters have mistakes, so that only its target can be checked.
    """

    inject: str
    target: str
    for_s: float | None
    after_step: int | None = None
    at_s: float | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    lasts_s: float | None = None
    when: Expectation | None = None
    repeat: int = 1
    every_s: float = 0.0
    after_share: float | None = None
    file: str = field(default="", compare=False)
    line: int = field(default=0, compare=False)
    partial: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Experiment:
    """A parsed experiment; ``text`` is the file's own text, kept for the record of a run.

    ``set`` overrides the topology; ``set_lines`` has the line of each override, ``topology_line`` that of its name.
    """

    name: str
    teaches: str
    topology: str | None
    set: Mapping[str, object]
    workload: Workload
    schedule: tuple[Planned, ...]
    hypothesis: tuple[Condition, ...]
    outages: Outages | None
    compression: Compression
    expectations: tuple[Expectation, ...]
    source: str
    text: str
    set_lines: Mapping[str, int] = field(default_factory=dict)
    topology_line: int = 0
    workload_lines: Mapping[str, int] = field(default_factory=dict)
    """Line of each key of the workload, options of its strategy by their dotted names; "" is the section."""
    workload_bad: frozenset[str] = frozenset()
    """Those of them whose values are wrong, and were left out."""
    strict: bool = False
    """Whether a noisy host is refused."""

    @property
    def steps(self) -> int | None:
        """Steps of the job; None for a command that does not say how many it makes."""
        return self.workload.steps

    @property
    def seed(self) -> int:
        """Seed of random faults that have none of their own."""
        return self.workload.seed


_AFTER: Final = re.compile(r"step\s+([0-9]{1,9})|step\s+([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%", re.ASCII)


def _after(value: object) -> int | float:
    match = _AFTER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise Unreadable(*expected("a step", value, "write step 120 or step 40%"))
    if match[1]:
        return int(match[1])
    share = float(match[2]) / 100
    if share >= 1:
        raise Unreadable(f"{shown(value)} is after the last step", "write a share below 100%")
    return share


def _target(value: object) -> str:
    """Parse a name, or the number of a rank, which unquoted YAML parses as an integer."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else one_line(value)


REPAIR: Final = "repair"
"""The value of ``for:`` that means the median repair time of the fault's cause."""


def _duration(value: object) -> float | str:
    if isinstance(value, str) and value.strip() == REPAIR:
        return REPAIR
    return some_time(value)


def _condition(value: object) -> Expectation:
    return expect.parse(value, steady.METRICS, "train_loss < 3 or ranks_up == 4")


class _Fault(Part):
    after: Annotated[Any, BeforeValidator(_after)] = None
    """A number of steps (int), or a share of all steps (float)."""
    at: Annotated[float | None, BeforeValidator(parse_duration_s)] = None
    when: Annotated[Expectation | None, BeforeValidator(_condition)] = None
    inject: Annotated[str | None, BeforeValidator(one_line)] = None
    target: Annotated[str | None, BeforeValidator(_target)] = None
    duration: Annotated[float | str | None, BeforeValidator(_duration), Field(alias="for")] = None
    repeat: Annotated[int | None, BeforeValidator(whole(1, MOST_ENTRIES))] = None
    every: Annotated[float | None, BeforeValidator(some_time)] = None
    parameters: Annotated[Any, Field(alias="with")] = None


class _Top(Part):
    name: Annotated[str | None, BeforeValidator(one_line)] = None
    teaches: Annotated[str | None, BeforeValidator(one_line)] = None
    topology: Annotated[str | None, BeforeValidator(one_line)] = None
    set: Any = None
    strict: Annotated[bool | None, BeforeValidator(switch("strict"))] = None
    workload: Any = None
    hypothesis: Any = None
    schedule: Any = None
    random: Any = None
    compress: Any = None
    expect: Any = None


def load_text(text: bytes, label: str, faults: Mapping[str, FaultKind] | None = None) -> Experiment:
    """Return the experiment in ``text``; ``label`` is the file name in messages.

    ``faults`` are the kinds that can be injected (default: all).

    Raises:
        FileMistakes: with every mistake found.
    """
    experiment, findings = examine(text, label, faults)
    if findings:
        raise FileMistakes(findings)
    return experiment


def examine(
    text: bytes, label: str, faults: Mapping[str, FaultKind] | None = None
) -> tuple[Experiment, tuple[Finding, ...]]:
    """Return what can be read of an experiment, and its mistakes; see :func:`load_text`.

    Parts with mistakes are left out, except faults whose target can be checked (``partial``).

    Raises:
        FileMistakes: nothing can be read, or the mistakes are too many.
    """
    document = yamltext.read(text, label)
    if document.data is None:
        fix = "write at least schedule: [{after: step 40%, inject: cut, target: 'link[0]', for: 10s}]"
        raise FileMistakes([Finding(label, 0, "the file is empty", fix)])
    mistakes = Mistakes(Written(document))
    top = check(_Top, document.data, (), "an experiment", mistakes)
    workload = workload_schema.read(top.workload, ("workload",), mistakes)

    def refused(metric: str) -> Refusal | None:
        return applicable.metric_refused(metric, workload)

    compression = compression_of(top.compress, mistakes)
    kinds = registry() if faults is None else faults
    schedule = [
        _fault(raw, ("schedule", index), kinds, compression, workload, mistakes)
        for index, raw in enumerate(
            listed(top.schedule, ("schedule",), "faults such as {at: 20s, inject: cut, target: north}", mistakes)
        )
    ]
    expectations = [
        _expectation(raw, ("expect", index), refused, mistakes)
        for index, raw in enumerate(listed(top.expect, ("expect",), "a list such as [goodput >= 0.5]", mistakes))
    ]
    overrides = _set(top.set, mistakes)
    hypothesis = hypothesis_of(top.hypothesis, refused, mistakes)
    outages = outages_of(top.random, mistakes)
    if any(path[:1] == ("random",) for path in mistakes.bad):
        outages = None
    stem = label.rpartition("/")[2].removesuffix(".yaml").removesuffix(".yml")
    experiment = Experiment(
        name=top.name or stem,
        teaches=top.teaches or "",
        topology=top.topology,
        set=overrides,
        workload=workload,
        schedule=tuple(fault for fault in schedule if fault is not None),
        hypothesis=hypothesis,
        outages=outages,
        compression=compression,
        expectations=tuple(expectation for expectation in expectations if expectation is not None),
        source=label,
        text=text.decode("utf-8-sig"),
        set_lines={key: document.line(("set", key)) for key in overrides},
        topology_line=document.line(("topology",)),
        workload_lines={"": document.line(("workload",)), **dict(_lines(document, top.workload))},
        strict=top.strict or False,
        workload_bad=frozenset(".".join(map(str, path[1:])) for path in mistakes.bad if path[:1] == ("workload",)),
    )
    return experiment, tuple(mistakes.findings)


def _lines(document: yamltext.Document, workload: object) -> Iterator[tuple[str, int]]:
    """Yield each key of the workload with its line, and the keys of a mapping inside it as ``outer.rate``."""
    for key, value in workload.items() if isinstance(workload, Mapping) else ():
        yield str(key), document.line(("workload", key))
        for inner in value if isinstance(value, Mapping) else ():
            yield f"{key}.{inner}", document.line(("workload", key, inner))


def _fault(
    raw: object,
    path: Path,
    faults: Mapping[str, FaultKind],
    compression: Compression,
    workload: Workload,
    mistakes: Mistakes,
) -> Planned | None:
    fault = check(_Fault, raw, path, "a fault", mistakes)
    bad = {bad_path[2] for bad_path in mistakes.bad if len(bad_path) == 3 and bad_path[:2] == path}
    if path in mistakes.bad:
        return None
    triggers = [name for name in ("after", "at", "when") if getattr(fault, name) is not None]
    if len(triggers) > 1:
        mistakes.note((*path, triggers[1]), f"a fault has both {triggers[0]} and {triggers[1]}", "keep one of them")
    elif not triggers and not bad & {"after", "at", "when"}:
        mistakes.note(path, "a fault has no trigger", "add after: step 40%, at: 20s, or when: train_loss < 3")
    if fault.inject is None and "inject" not in bad:
        mistakes.note(path, "a fault has no kind", f"add inject: {next(iter(faults))}")
    if fault.inject is not None and fault.inject not in faults:
        mistakes.note((*path, "inject"), *unknown("fault", fault.inject, faults))
    if fault.target is None and "target" not in bad:
        mistakes.note(path, "a fault has no target", 'add target: with a name, or "link[0]" for the first link')
    if fault.after is not None:
        _refuse((*path, "after"), applicable.step_refused(workload, share=isinstance(fault.after, float)), mistakes)
    if fault.when is not None:
        _refuse((*path, "when"), applicable.metric_refused(fault.when.metric, workload), mistakes)
    kind = faults.get(fault.inject or "")
    parameters = _parameters(fault.parameters, (*path, "with"), kind, mistakes)
    for key in parameters:
        _refuse((*path, "with", key), applicable.parameter_refused(fault.inject or "", key, workload), mistakes)
    for_s = _for_s(fault.duration, parameters, kind, compression, (*path, "for"), mistakes)
    _check_repeats(fault, for_s, bad, path, mistakes)
    if fault.inject is None or fault.target is None:
        return None
    share = isinstance(fault.after, float)
    return Planned(
        fault.inject,
        fault.target,
        for_s,
        after_step=None if share else fault.after,
        after_share=fault.after if share else None,
        at_s=fault.at if fault.after is None else None,
        when=fault.when if fault.after is None else None,
        file=mistakes.written.document.file,
        line=mistakes.written.document.line((*path, "target")),
        parameters=parameters,
        repeat=fault.repeat or 1,
        every_s=fault.every or 0.0,
        partial=kind is None or any(bad_path[: len(path) + 1] == (*path, "with") for bad_path in mistakes.bad),
    )


def _for_s(
    duration: float | str | None,
    parameters: Mapping[str, str],
    kind: FaultKind | None,
    compression: Compression,
    path: Path,
    mistakes: Mistakes,
) -> float | None:
    """Return ``for:`` in seconds; ``for: repair`` is the median repair time of the fault's cause."""
    if not isinstance(duration, str):
        return duration
    if kind is not None and "cause" not in kind.parameters:
        mistakes.note(path, f"for: repair needs a cause, and {kind.name} takes none", "write a time such as 10s")
    elif parameters.get("cause") not in CAUSES:
        fix = f"add with: {{cause: {next(iter(CAUSES))}}} (available: {', '.join(CAUSES)})"
        mistakes.note(path, "for: repair needs a cause", fix)
    else:
        return causes.repair_s(parameters["cause"], compression.repair)
    return None


def _check_repeats(fault: _Fault, for_s: float | None, bad: set[Any], path: Path, mistakes: Mistakes) -> None:
    repeat, every_s = fault.repeat or 1, fault.every
    if repeat > 1 and every_s is None and "every" not in bad:
        mistakes.note(path, f"repeat: {repeat} needs an interval", "add every: 10s")
    if every_s is not None and fault.repeat is None and "repeat" not in bad:
        mistakes.note(path, "every needs repeat", "add repeat: 5, or remove every")
    if repeat > 1 and every_s is not None and for_s is not None and for_s >= every_s:
        fix = f"write for: less than {every_s:g}s, or every: more than {for_s:g}s"
        mistakes.note((*path, "every"), f"a fault of {for_s:g} s overlaps its repetition after {every_s:g} s", fix)


def _set(raw: object, mistakes: Mistakes) -> dict[str, object]:
    """Return the overrides of the topology, checked later against it."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        message, fix = expected("a mapping", raw, "write set: {links.north.km: 80}")
        mistakes.note(("set",), f"set: {message}", fix)
        return {}
    for key, value in raw.items():
        if not isinstance(key, str) or isinstance(value, Mapping) or value is None:
            message, fix = expected("a single value", value, "write KEY: VALUE, as in links.north.km: 80")
            mistakes.note(("set", key), f"set {shown(key)}: {message}", fix)
    return {str(key): value for key, value in raw.items() if ("set", key) not in mistakes.bad}


def _parameters(raw: object, path: Path, kind: FaultKind | None, mistakes: Mistakes) -> dict[str, str]:
    """Return the parameters of a fault as strings, as on the command line."""
    if raw is None:
        return {}
    if not isinstance(raw, Mapping):
        message, fix = expected("a mapping", raw, "write with: {down: 200ms, up: 800ms}")
        mistakes.note(path, f"with: {message}", fix)
        return {}
    written: dict[str, str] = {}
    for key, value in raw.items():
        if kind is not None and key not in kind.parameters:
            mistakes.note((*path, key), *unknown(f"{kind.name} parameter", key, kind.parameters))
        elif value is None or isinstance(value, dict | list):
            message, fix = expected("a single value", value, "write a value such as 200ms, 5% or 10")
            mistakes.note((*path, key), f"{key} of a fault: {message}", fix)
        else:
            written[key] = str(value).lower() if isinstance(value, bool) else str(value)
    return written


def _expectation(
    raw: object, path: Path, refused: Callable[[str], Refusal | None], mistakes: Mistakes
) -> Expectation | None:
    try:
        expectation = expect.parse(raw)
    except Unreadable as error:
        mistakes.note(path, error.message, error.fix)
        return None
    _refuse(path, refused(expectation.metric), mistakes)
    return expectation


def _refuse(path: Path, refusal: Refusal | None, mistakes: Mistakes) -> None:
    if refusal is not None:
        mistakes.note(path, *refusal)
