"""What a fault did to the fibers, as far as a picture tells (cut, impaired, or neither), and how each is drawn.

The three differ in color (Okabe and Ito's), in dash or hatch, and in a sign, so that color-blind readers and paper tell
them apart. Plots, the timeline and the map use the same.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

from testbed.core.report.document import Report
from testbed.core.report.figures.plotly_figure import BLUE, GREY, VERMILLION
from testbed.core.report.sections.faults_section import Fault
from testbed.core.report.sections.in_force_section import InForce

__all__ = ["Effect", "effect", "effects"]

_CUTS = frozenset({"cut", "flap"})


class Effect(enum.Enum):
    """``word`` is for legends, ``css`` the class of the page's style; ``color`` and ``dash`` are those of plots."""

    CUT = ("fiber cut or dark", "cut", VERMILLION, "solid", "rgba(213, 94, 0, 0.16)")
    IMPAIRED = ("impairment: loss, delay, jitter or rate", "impaired", BLUE, "dot", "rgba(0, 114, 178, 0.13)")
    NODES = ("ranks, nodes or management", "nodes", GREY, "dashdot", "rgba(136, 136, 136, 0.18)")

    def __init__(self, word: str, css: str, color: str, dash: str, fill: str) -> None:
        self.word, self.css, self.color, self.dash, self.fill = word, css, color, dash, fill


def effects(report: Report) -> Mapping[str, Effect]:
    """Return the effect of each fault of the run, by the fault's id."""
    return {fault.fault: effect(fault, report.in_force) for fault in report.faults}


def effect(fault: Fault, in_force: Iterable[InForce]) -> Effect:
    """Return what ``fault`` did, by what was in force; runs of older versions do not tell, so then by its carrier."""
    told = tuple(in_force)
    if fault.type in _CUTS or any(fault.fault in it.dark_by for it in told):
        return Effect.CUT
    if any(fault.fault in value.by for it in told for value in it.values):
        return Effect.IMPAIRED
    if not told and fault.carrier_s is not None:
        return Effect.CUT
    return Effect.IMPAIRED if fault.links else Effect.NODES
