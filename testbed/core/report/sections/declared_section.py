"""Declared compute in a report: that times are declared, what they stand for, and how close the machine came."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.core.analysis.declared_steps import HELD, DeclaredSteps
from testbed.core.prediction.machine_limits import RANK_STEP_S
from testbed.core.prediction.similarity import full_scale
from testbed.core.report import formats
from testbed.core.report.blocks import Section, Table
from testbed.core.topology.model import Topology
from testbed.core.workload.declared_compute import equivalent

if TYPE_CHECKING:
    from testbed.core.report.document import Report

__all__ = ["beside", "lead", "note", "section", "sentence", "table"]

PHI = 10.0
"""The example of the similarity law: a step that takes so many times as long."""


def beside(name: str, declared: DeclaredSteps | None) -> str:
    """Return the name of a figure that is made of compute times, with ``declared`` where they are."""
    return name if declared is None else f"{name} (declared compute)"


def note(declared: DeclaredSteps | None, topology: Topology | None) -> str:
    """Return what stands at the top of every page: that compute is declared, and the equivalent at full scale."""
    if declared is None:
        return ""
    scale = 1.0 if topology is None else topology.scale
    link = None if topology is None else min(topology.links, key=lambda link: link.rate_bps, default=None)
    rate_bps = None if link is None else link.rate_bps
    text = equivalent(declared.seconds, declared.parameters or 0, scale, rate_bps, declared.speeds)
    text = f"{formats.upper_first(text)}."
    if link is not None:
        other = full_scale(link.delay_s, link.rate_bps, declared.seconds, PHI * declared.seconds, scale)
        text += (
            f" By the similarity law a step of {formats.duration(PHI * declared.seconds)} would stand for"
            f" {other.length_m / 1e3:.4g} km at {formats.bits_per_s(other.rate_bps)}."
        )
    slept = "layers sleep, and train_loss says nothing of a real model"
    how = "the agents' own model runs inside them" if declared.kind == "paced" else slept
    return f"{text} Times of compute on this page are declared: {how}."


def lead(declared: DeclaredSteps | None) -> str:
    """Return the verdict and what was expected, in sentences."""
    if declared is None:
        return ""
    share = declared.expected_share
    before = ""
    if share is not None:
        before = (
            f" Expected before the run: {formats.share(share)} of {declared.cores} cores,"
            f" at {formats.duration(RANK_STEP_S)} of CPU for each rank and step."
        )
    if declared.verdict == HELD:
        return f"Held: the mean step computed as long as declared, within 2 % or 1 ms.{before}"
    longer = formats.duration(declared.measured_s - declared.declared_s)
    return (
        f"{declared.verdict}: the mean step took {longer} longer than declared, because"
        " ranks waited for a core. Exposed communication is affected, too; declare longer steps, or"
        f" use fewer ranks.{before}"
    )


def table(declared: DeclaredSteps | None) -> Table | None:
    """Declared and measured compute, overruns, CPU; None for real compute."""
    if declared is None:
        return None
    over = "none"
    if declared.overruns:
        over = (
            f"{formats.count(declared.overruns)} of {formats.count(declared.steps)},"
            f" by {formats.duration(declared.overrun_s)} on average, {formats.duration(declared.worst_s)} at most"
        )
    rows = (
        ("verdict", declared.verdict),
        ("declared compute of a step, mean", formats.duration(declared.declared_s)),
        ("measured", formats.duration(declared.measured_s)),
        ("steps that took longer (overruns)", over),
        ("noise", formats.share(declared.noise)),
        ("CPU of a rank in a step", formats.UNKNOWN if declared.cpu_s is None else formats.duration(declared.cpu_s)),
    )
    return Table.of(("quantity", "value"), rows, "Declared compute", ())


def sentence(declared: DeclaredSteps | None) -> str:
    """Return declared against measured compute in a line; empty for real compute."""
    if declared is None:
        return ""
    over = f"{declared.overruns} of {declared.steps} steps overran"
    return (
        f"declared compute {formats.duration(declared.declared_s)} a step, measured"
        f" {formats.duration(declared.measured_s)}: {declared.verdict}; {over}"
    )


def section(report: Report) -> Section | None:
    declared = report.declared
    return Section.of("Declared compute", table(declared), lead=lead(declared), line=sentence(declared))
