"""The topology's drawing: sites, fibers and the faults on them, once for each width of a page.

One or two sites are columns with the fibers as rows between them (``drawing_rows.py``); more stand on a ring
(``drawing_ring.py``). The templates ``map.html`` and ``topology.svg`` show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from testbed.core.physics.full_scale import stands_for
from testbed.core.report import formats
from testbed.core.report.document import Report
from testbed.core.report.figures.drawing_parts import Drawing
from testbed.core.report.figures.drawing_ring import ring
from testbed.core.report.figures.drawing_rows import rows
from testbed.core.report.figures.drawn_link import DrawnLink
from testbed.core.report.figures.fault_effects import Effect, effects
from testbed.core.report.sections.faults_section import Fault
from testbed.core.topology.model import Link, Topology

__all__ = ["draw", "drawings"]

_WIDTHS = {"wide": 920.0, "medium": 660.0, "narrow": 344.0}
"""A medium one is for a sheet of paper, too. A phone has 360 to 430 pixels, of which margins take 32."""
_SHOWN_FAULTS = 2


def drawings(report: Report) -> tuple[Drawing, ...]:
    """Return the drawings of the run's topology, for each width of a page; none if it is not known."""
    return draw(report.topology, report.faults, effects(report)) if report.topology else ()


def draw(
    topology: Topology, faults: Sequence[Fault] = (), effects: Mapping[str, Effect] | None = None
) -> tuple[Drawing, ...]:
    """Place sites and fibers; ``faults`` mark the links that they touched, by the effect of each."""
    links = tuple(_link(link, topology.scale, faults, effects or {}) for link in topology.links)
    listed = ", ".join(f"{link.name} {' – '.join(link.between)} {link.length_m / 1e3:g} km" for link in topology.links)
    title = f"Topology {topology.name}: {listed}"
    place = rows if len(topology.sites) <= 2 else ring
    return tuple(place(topology.sites, links, size, title, width) for size, width in _WIDTHS.items())


def _link(link: Link, scale: float, faults: Sequence[Fault], by: Mapping[str, Effect]) -> DrawnLink:
    touching = [(fault, by.get(fault.fault, Effect.CUT)) for fault in faults if link.name in fault.links]
    found = {effect for _, effect in touching}
    rate = f" · {stands_for(link.rate_bps, scale, 3)}" if link.rate_bps else ""
    said = [(_when(fault), effect) for fault, effect in touching[:_SHOWN_FAULTS]]
    if len(touching) > _SHOWN_FAULTS:
        more = f"and {formats.plural(len(touching) - _SHOWN_FAULTS, 'fault')} more"
        said.append((more, touching[_SHOWN_FAULTS][1]))
    return DrawnLink(
        link.name,
        link.between,
        f"{link.length_m / 1e3:g} km · {formats.duration(link.delay_s)}{rate}",
        tuple(said),
        tuple(each for each in Effect if each in found),
    )


def _when(fault: Fault) -> str:
    began = f"{fault.at_link} at {formats.duration(fault.began_s)}"
    return began if fault.ended_s is None else f"{began} for {formats.duration(fault.ended_s - fault.began_s)}"
