"""The fault schedule of an experiment on a given topology: targets resolved, steps counted, random faults drawn."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from testbed.core.experiment import draw
from testbed.core.experiment.experiment_schema import Experiment, Planned
from testbed.core.faults.causes import CAUSES
from testbed.core.faults.fault_registry import compile_fault, registry
from testbed.core.faults.fault_target import all_targets
from testbed.core.topology.model import Topology
from testbed.core.units import Unreadable
from testbed.core.user_text import out_of_range, unknown
from testbed.errors import FileMistakes, Finding, UnknownName, UserError

__all__ = ["MOST_FAULTS", "Planned", "examine", "plan", "resolve_target"]

MOST_FAULTS: Final = 1000
"""Most faults of one run, including repetitions and drawn faults."""

_INDEXED: Final = re.compile(r"link\[([0-9]{1,4})\]", re.ASCII)


def plan(
    experiment: Experiment, topology: Topology, steps: int | None = None, seed: int | None = None
) -> tuple[Planned, ...]:
    """Return the schedule on ``topology`` for a job of ``steps`` steps and ``seed`` (default: the experiment's).

    Faults as written come first, then the drawn ones.

    Raises:
        FileMistakes: an unknown or unsuitable target, invalid parameters, a step beyond the end of the job, or more
            than :data:`MOST_FAULTS` faults.
    """
    planned, findings = examine(experiment, topology, steps, seed)
    if findings:
        raise FileMistakes(findings)
    return planned


def examine(
    experiment: Experiment, topology: Topology, steps: int | None = None, seed: int | None = None
) -> tuple[tuple[Planned, ...], tuple[Finding, ...]]:
    """Return the schedule as far as it can be made, and its mistakes; see :func:`plan`."""
    total = experiment.steps if steps is None else steps
    workload = experiment.workload
    per_node = workload.ranks_per_node
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
        if fault.partial:
            findings += _partial(fault, target, topology, per_node)
            continue
        ends_s: float | None = None
        try:
            ends_s = compile_fault(topology, fault.inject, target, fault.parameters, per_node).lasts_s
        except UnknownName as error:
            findings.append(_unknown(fault, error, topology))
        except UserError as error:
            message, _, fix = str(error).partition("; ")
            findings.append(Finding(fault.file, fault.line, f"{fault.inject} {target}: {message}", fix))
        limits_s = [limit_s for limit_s in (fault.for_s, ends_s) if limit_s is not None]
        planned.append(
            replace(fault, target=target, after_step=after, after_share=None, lasts_s=min(limits_s, default=None))
        )
    planned += _drawn(experiment, topology, experiment.seed if seed is None else seed, findings)
    if (count := sum(fault.repeat for fault in planned)) > MOST_FAULTS:
        findings.append(Finding(experiment.source, 0, f"too many faults: {count}", f"use at most {MOST_FAULTS}"))
    return tuple(planned), tuple(findings)


def _partial(fault: Planned, target: str, topology: Topology, ranks_per_node: int) -> list[Finding]:
    """Return the mistake in the target of a fault that has others, if there is one."""
    if fault.inject in registry():
        try:
            compile_fault(topology, fault.inject, target, fault.parameters, ranks_per_node)
        except UnknownName as error:
            return [_unknown(fault, error, topology)]
        except UserError:
            pass  # perhaps only for want of what was left out
        return []
    name = target.partition(":")[0]
    if name in (targets := all_targets(topology)) or name.isdecimal():
        return []
    return [_unknown(fault, UnknownName("target", name, sorted(targets)), topology)]


def _drawn(experiment: Experiment, topology: Topology, seed: int, findings: list[Finding]) -> list[Planned]:
    outages, compression = experiment.outages, experiment.compression
    if outages is None:
        return []
    if (count := draw.expected(outages, topology, compression)) > MOST_FAULTS / 2:
        message = f"random would draw about {count:.0f} faults between {outages.from_s:g} s and {outages.to_s:g} s"
        findings.append(Finding(experiment.source, 0, message, "use less time compression, or an earlier end"))
        return []
    planned = []
    for outage in draw.draw(outages, topology, compression, seed):
        cause = CAUSES[outage.cause]
        written = {**dict(cause.parameters), "cause": outage.cause}
        if cause.fault != "cut" and not any(outage.target in link.via for link in topology.links):
            continue  # a pinched cable with second paths only carries no traffic that could degrade
        planned.append(Planned(cause.fault, outage.target, outage.lasts_s, None, outage.at_s, written, outage.lasts_s))
    return planned


def _after_step(fault: Planned, steps: int | None) -> int | None:
    if fault.after_share is not None:
        return None if steps is None else min(round(fault.after_share * steps), steps - 1)
    if steps is not None and fault.after_step is not None and fault.after_step >= steps:
        message, fix = out_of_range(fault.after_step, "0", str(steps - 1))
        raise Unreadable(f"step {message}", fix)
    return fault.after_step


def _unknown(fault: Planned, error: UnknownName, topology: Topology) -> Finding:
    """Return the finding for a target that does not exist, with the closest that does."""
    message, fix = unknown(error.what, error.name, error.available)
    return Finding(fault.file, fault.line, f"{fault.inject} on topology '{topology.name}': {message}", fix)


def resolve_target(target: str, topology: Topology) -> str:
    """Replace an index in ``target`` by the topology's name: ``link[0]`` is its first link as written.

    Any other target is returned unchanged; the fault validates it.

    Raises:
        Unreadable: the topology has fewer links.
    """
    base, colon, toward = target.partition(":")
    indexed = _INDEXED.fullmatch(base)
    if indexed is None:
        return target
    links = [link.name for link in topology.links]
    if int(indexed[1]) >= len(links):
        fix = f"the last is link[{len(links) - 1}]" if links else "it has no links"
        raise Unreadable(f"unknown link '{base}' in topology '{topology.name}'", fix)
    return f"{links[int(indexed[1])]}{colon}{toward}"
