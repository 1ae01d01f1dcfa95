"""The table of a certificate: a number stands there only where something was measured."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from builders.cli_fixtures import certificate_of
from builders.tables import table
from rich.table import Table
from rich.text import Text

from testbed.cli.certificate_table import MOST_LINKS, links_measured
from testbed.core.certification.certificate import Certificate
from testbed.core.certification.link_certificate import QuantityCheck
from testbed.core.topology.model import Topology
from testbed.host.files import catalog

RATE = QuantityCheck("rate", 8e8, 8.1e8, 7.6e8, 8.4e8)
UNTOLD = QuantityCheck("rate", 8e8, None, verdict="inconclusive", why="rate: no train arrived")


def column(rows: Table, head: str) -> list[str]:
    (cells,) = (column.cells for column in rows.columns if column.header == head)
    return [cell.plain if isinstance(cell, Text) else str(cell) for cell in cells]


def changed(certificate: Certificate, **changes: Any) -> Certificate:
    """Return ``certificate`` with these changes in all directions of all links."""
    links = (
        dataclasses.replace(
            link,
            directions=tuple(dataclasses.replace(direction, **changes) for direction in link.directions),
            rtt=None,
        )
        for link in certificate.links
    )
    return dataclasses.replace(certificate, links=tuple(links))


@pytest.mark.parametrize("name", ["metro-40km", "ring-64"])
@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"checks": (RATE,)}, "810 Mb/s"),
        ({"checks": (UNTOLD,)}, "-"),
        ({"checks": ()}, "unlimited"),
        ({"checks": (), "measured": None}, "-"),
    ],
    ids=["measured", "no train", "no limit", "dark"],
)
def test_rate(name: str, changes: dict[str, object], shown: str) -> None:
    topology: Topology = catalog.load_topology(name)
    measured = links_measured(topology, changed(certificate_of(topology), **changes))
    assert set(column(measured, "rate")) == {shown}
    assert measured.row_count == len(topology.links) * (1 if len(topology.links) > MOST_LINKS else 2)


def test_a_link_that_the_certificate_does_not_know_was_not_measured() -> None:
    topology = catalog.load_topology("metro-40km")
    certificate = certificate_of(topology)
    measured = links_measured(topology, dataclasses.replace(certificate, links=certificate.links[:1]))
    assert column(measured, "verdict")[-1] == "not measured"
    assert set(column(links_measured(topology, None), "rate")) == {"-"}


@pytest.mark.parametrize("name", ["metro-40km", "ring-64"])
@table(
    "changes, verdict",
    {
        "measured": ({"checks": (RATE,), "why": ()}, "ok"),
        "one check not measured": ({"checks": (RATE, UNTOLD), "why": ()}, "not told"),
        "bad": ({"checks": (UNTOLD,), "why": ("rate 1 Mb/s",)}, "bad"),
    },
)
def test_verdict(name: str, changes: dict[str, object], verdict: str) -> None:
    topology = catalog.load_topology(name)
    measured = links_measured(topology, changed(certificate_of(topology), **changes))
    assert set(column(measured, "verdict")) == {verdict}
