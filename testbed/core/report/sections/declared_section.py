"""Declared compute in a report: that times are declared, what they stand for, and how close the machine came."""

from __future__ import annotations

from testbed.core.analysis.declared_steps import HELD, DeclaredSteps
from testbed.core.prediction.machine_limits import RANK_STEP_S
from testbed.core.prediction.similarity import full_scale
from testbed.core.report import formats
from testbed.core.report.report_table import Table
from testbed.core.topology.model import Topology
from testbed.core.workload.declared_compute import equivalent

__all__ = ["beside", "lead", "note", "sentence", "table"]

PHI = 10.0
"""The example of the similarity law: a step that takes so many times as long."""


def beside(words: str, found: DeclaredSteps | None) -> str:
    """Return the name of a figure that is made of compute times, with ``declared`` where they are."""
    return words if found is None else f"{words} (declared compute)"


def note(found: DeclaredSteps | None, topology: Topology | None) -> str:
    """Return what stands at the top of every page: that compute is declared, and the equivalent at full scale."""
    if found is None:
        return ""
    scale = 1.0 if topology is None else topology.scale
    link = None if topology is None else min(topology.links, key=lambda it: it.rate_bps, default=None)
    rate_bps = None if link is None else link.rate_bps
    told = equivalent(found.seconds, found.parameters or 0, scale, rate_bps, found.speeds)
    told = f"{told[0].upper()}{told[1:]}."
    if link is not None:
        other = full_scale(link.delay_s, link.rate_bps, found.seconds, PHI * found.seconds, scale)
        told += (
            f" By the similarity law a step of {formats.duration(PHI * found.seconds)} would stand for"
            f" {other.length_m / 1e3:.4g} km at {formats.bits_per_s(other.rate_bps)}."
        )
    slept = "layers sleep, and train_loss says nothing of a real model"
    how = "the agents' own model runs inside them" if found.kind == "paced" else slept
    return f"{told} Times of compute on this page are declared: {how}."


def lead(found: DeclaredSteps | None) -> str:
    """Return the verdict and what was expected, in sentences."""
    if found is None:
        return ""
    share = found.expected_share
    before = ""
    if share is not None:
        before = (
            f" Expected before the run: {formats.share(share)} of {found.cores} cores,"
            f" at {formats.duration(RANK_STEP_S)} of CPU for each rank and step."
        )
    if found.verdict == HELD:
        return f"Held: the mean step computed as long as declared, within 2 % or 1 ms.{before}"
    return (
        f"{found.verdict}: the mean step took {formats.duration(found.measured_s - found.declared_s)} longer than"
        " declared, because ranks waited for a core. Exposed communication is affected, too; declare longer steps, or"
        f" use fewer ranks.{before}"
    )


def table(found: DeclaredSteps | None) -> Table | None:
    """Declared and measured compute, overruns, CPU; None for real compute."""
    if found is None:
        return None
    over = "none"
    if found.overruns:
        over = (
            f"{formats.count(found.overruns)} of {formats.count(found.steps)},"
            f" by {formats.duration(found.overrun_s)} on average, {formats.duration(found.worst_s)} at most"
        )
    rows = (
        ("verdict", found.verdict),
        ("declared compute of a step, mean", formats.duration(found.declared_s)),
        ("measured", formats.duration(found.measured_s)),
        ("steps that took longer (overruns)", over),
        ("noise", formats.share(found.noise)),
        ("CPU of a rank in a step", formats.UNKNOWN if found.cpu_s is None else formats.duration(found.cpu_s)),
    )
    return Table.of(("quantity", "value"), rows, "Declared compute", ())


def sentence(found: DeclaredSteps | None) -> str:
    """Return declared against measured compute in a line; empty for real compute."""
    if found is None:
        return ""
    over = f"{found.overruns} of {found.steps} steps overran"
    return (
        f"declared compute {formats.duration(found.declared_s)} a step, measured {formats.duration(found.measured_s)}:"
        f" {found.verdict}; {over}"
    )
