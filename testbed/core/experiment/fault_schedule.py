"""An experiment's faults on a given topology: targets named, shares of steps counted, random ones drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testbed.core.experiment import draw
from testbed.core.experiment.expect import Expectation
from testbed.core.experiment.experiment_schema import Experiment, ScheduledFault
from testbed.core.faults.causes import CAUSES
from testbed.core.faults.fault_registry import compile_fault
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable
from testbed.core.user_text import nearest, shown
from testbed.errors import FileMistakes, Finding, UnknownName, UserError

__all__ = ["MOST_FAULTS", "Planned", "plan", "resolve_target"]

MOST_FAULTS: Final = 1000
"""In one run, repetitions and drawn ones included."""

_INDEXED: Final = re.compile(r"link\[([0-9]{1,4})\]", re.ASCII)


@dataclass(frozen=True)
class Planned:
    """A fault that is due when ``after_step`` steps are committed, ``at_s`` seconds after the first step began, or the
    first time that ``when`` holds; one of the three is not None.

    ``target`` is as the topology names it; ``parameters`` are as they are written. ``for_s`` None: until the end of the
    run, or of the fault, where it has one. ``lasts_s`` is after how many seconds it is over, by one or the other;
    None: at the end of the run. It is injected ``repeat`` times, ``every_s`` after each other.
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


def plan(
    experiment: Experiment, topology: Topology, steps: int | None = None, seed: int | None = None
) -> tuple[Planned, ...]:
    """The schedule on ``topology`` for a job of ``steps`` steps and ``seed`` (default: the experiment's): as written,
    then what was drawn.

    Raises:
        FileMistakes: a target that the topology does not have or the fault cannot have, parameters that cannot be, a
            step that the job does not reach, or more faults than are taken.
    """
    total = experiment.steps if steps is None else steps
    findings: list[Finding] = []
    planned: list[Planned] = []
    for fault in experiment.schedule:
        try:
            after = _after_step(fault, total)
        except Unreadable as error:
            findings.append(Finding(fault.file, fault.line, error.message, error.fix))
            after = None
        try:
            target = resolve_target(fault.target, topology)
        except Unreadable as error:
            findings.append(Finding(fault.file, fault.line, error.message, error.fix))
            continue
        ends_s: float | None = None
        try:
            ends_s = compile_fault(topology, fault.inject, target, fault.parameters).lasts_s
        except UnknownName as error:
            findings.append(_unknown(fault, error, topology))
        except UserError as error:
            message, _, fix = str(error).partition("; ")
            findings.append(Finding(fault.file, fault.line, f"{fault.inject} {target}: {message}", fix))
        planned.append(
            Planned(
                fault.inject,
                target,
                fault.for_s,
                after,
                fault.trigger.at_s,
                fault.parameters,
                min((it for it in (fault.for_s, ends_s) if it is not None), default=None),
                fault.trigger.when,
                fault.repeat,
                fault.every_s,
            )
        )
    planned += _drawn(experiment, topology, experiment.seed if seed is None else seed, findings)
    if (count := sum(it.repeat for it in planned)) > MOST_FAULTS:
        findings.append(Finding(experiment.source, 0, f"{count} faults", f"at most {MOST_FAULTS} are taken"))
    if findings:
        raise FileMistakes(findings)
    return tuple(planned)


def _drawn(experiment: Experiment, topology: Topology, seed: int, findings: list[Finding]) -> list[Planned]:
    outages, compression = experiment.outages, experiment.compression
    if outages is None:
        return []
    if (count := draw.expected(outages, topology, compression)) > MOST_FAULTS / 2:
        message = f"random would draw some {count:.0f} faults between {outages.from_s:g} s and {outages.to_s:g} s"
        findings.append(Finding(experiment.source, 0, message, "compress the time less, or end it sooner"))
        return []
    planned = []
    for it in draw.draw(outages, topology, compression, seed):
        cause = CAUSES[it.cause]
        written = {**dict(cause.parameters), "cause": it.cause}
        if cause.fault != "cut" and not any(it.target in link.via for link in topology.links):
            continue  # a pinched cable that holds second paths alone: nothing is on it that could suffer
        planned.append(Planned(cause.fault, it.target, it.lasts_s, None, it.at_s, written, it.lasts_s))
    return planned


def _after_step(fault: ScheduledFault, steps: int) -> int | None:
    if fault.trigger.share is not None:
        return min(round(fault.trigger.share * steps), steps - 1)
    if fault.trigger.step is not None and fault.trigger.step >= steps:
        raise Unreadable(
            f"a fault is due after step {fault.trigger.step} of {steps}", f"write a step from 0 to {steps - 1}"
        )
    return fault.trigger.step


def _unknown(fault: ScheduledFault, error: UnknownName, topology: Topology) -> Finding:
    """What a fault cannot be aimed at; the nearest that it can."""
    message = f"{fault.inject}: topology '{topology.name}' has no {error.what} named {shown(error.name)}"
    return Finding(fault.file, fault.line, message, nearest(error.name, error.known))


def resolve_target(target: str, topology: Topology) -> str:
    """``target`` as the topology's own name: ``link[0]`` is its first link as written. Anything else is for the fault
    to judge, which knows what it can be aimed at.

    Raises:
        Unreadable: there is no such link.
    """
    base, colon, toward = target.partition(":")
    indexed = _INDEXED.fullmatch(base)
    if indexed is None:
        return target
    links = [link.name for link in topology.links]
    if int(indexed[1]) >= len(links):
        last = f"the last is link[{len(links) - 1}]" if links else "it has no links"
        raise Unreadable(f"topology '{topology.name}' has no {base}", last)
    return f"{links[int(indexed[1])]}{colon}{toward}"
