"""The topology in a report: a map with the faults, and the links as a table."""

from __future__ import annotations

from testbed.core.physics import full_scale
from testbed.core.report import formats
from testbed.core.report.blocks import Picture, Section, Table
from testbed.core.report.document import Report
from testbed.core.report.figures import drawing

__all__ = ["section"]

_HEAD = ("link", "between", "km", "one way", "rate")


def section(report: Report) -> Section | None:
    topology = report.topology
    if topology is None:
        return None
    scaled = f" Rates and payloads are divided by {topology.scale:g}, distances are not." if topology.scale != 1 else ""
    rows = (
        (
            link.name,
            " – ".join(link.between),
            f"{link.length_m / 1e3:g}",
            formats.duration(link.delay_s),
            full_scale.stands_for(link.rate_bps, topology.scale),
        )
        for link in topology.links
    )
    picture = Picture("map.html", {"drawings": drawing.drawings(report)}, Table.of(_HEAD, rows, "Links"))
    return Section.of("Topology", picture, lead=f"{topology.name}.{scaled} Delays are one way.")
