"""An experiment's faults on a given topology: targets named, shares of steps counted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from testbed.core.experiment.schema import Experiment, ScheduledFault
from testbed.core.faults.fault import compile_fault
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable
from testbed.core.words import nearest, shown
from testbed.errors import FileMistakes, Finding, UserError

__all__ = ["Planned", "plan", "resolve_target"]

_INDEXED: Final = re.compile(r"link\[([0-9]{1,4})\]", re.ASCII)


@dataclass(frozen=True)
class Planned:
    """A fault that is due when ``after_step`` steps are committed, or ``at_s`` seconds after the first step began.

    ``target`` is a link, a direction ``link:site``, a duct or a site; ``parameters`` are as they are written.
    ``for_s`` None: until the end of the run, or of the fault, where it has one. ``lasts_s`` is after how many seconds
    it is over, by one or the other; None: at the end of the run.
    """

    inject: str
    target: str
    for_s: float | None
    after_step: int | None = None
    at_s: float | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    lasts_s: float | None = None


def plan(experiment: Experiment, topology: Topology, steps: int | None = None) -> tuple[Planned, ...]:
    """The schedule on ``topology`` for a job of ``steps`` steps (default: the experiment's), in the order as written.

    Raises:
        FileMistakes: a target that the topology does not have or the fault cannot have, parameters that cannot be, or a
            step that the job does not reach.
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
        except UserError as error:
            message, _, fix = str(error).partition("; ")
            findings.append(Finding(fault.file, fault.line, f"{fault.inject} {target}: {message}", fix))
        lasts_s = min((it for it in (fault.for_s, ends_s) if it is not None), default=None)
        planned.append(Planned(fault.inject, target, fault.for_s, after, fault.trigger.at_s, fault.parameters, lasts_s))
    if findings:
        raise FileMistakes(findings)
    return tuple(planned)


def _after_step(fault: ScheduledFault, steps: int) -> int | None:
    if fault.trigger.share is not None:
        return min(round(fault.trigger.share * steps), steps - 1)
    if fault.trigger.step is not None and fault.trigger.step >= steps:
        raise Unreadable(
            f"a fault is due after step {fault.trigger.step} of {steps}", f"write a step from 0 to {steps - 1}"
        )
    return fault.trigger.step


def resolve_target(target: str, topology: Topology) -> str:
    """``target`` as the topology's own name: ``link[0]`` is its first link as written.

    Raises:
        Unreadable: the topology has no such thing.
    """
    base, colon, toward = target.partition(":")
    indexed = _INDEXED.fullmatch(base)
    links = [link.name for link in topology.links]
    if indexed:
        if int(indexed[1]) >= len(links):
            last = f"the last is link[{len(links) - 1}]" if links else "it has no links"
            raise Unreadable(f"topology '{topology.name}' has no {base}", last)
        base = links[int(indexed[1])]
    if colon:
        if base not in links:
            raise Unreadable(f"topology '{topology.name}' has no link {shown(base)}", nearest(base, links))
        between = topology.link(base).between
        if toward not in between:
            raise Unreadable(f"link '{base}' does not lead to {shown(toward)}", nearest(toward, between))
        return f"{base}:{toward}"
    known = [*links, *(duct.name for duct in topology.ducts), *(site.name for site in topology.sites)]
    if base not in known:
        raise Unreadable(f"topology '{topology.name}' has no {shown(base)}", nearest(base, dict.fromkeys(known)))
    return base
