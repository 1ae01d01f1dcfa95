"""The table of a certificate: a number stands there only where something was measured."""

from __future__ import annotations

import dataclasses

import pytest
from builders.cli_fixtures import certificate_of
from rich.table import Table
from rich.text import Text

from testbed.cli.certificate_table import MOST_LINKS, links_measured
from testbed.core.certification.certificate import Certificate
from testbed.core.certification.link_certificate import Check, DirectionCertificate
from testbed.core.topology.model import Topology
from testbed.host.files import catalog

RATE = Check("rate", 8e8, 8.1e8, 7.6e8, 8.4e8)
UNTOLD = Check("rate", 8e8, None, verdict="inconclusive", why="rate: no train arrived")


def column(table: Table, head: str) -> list[str]:
    (found,) = [it for it in table.columns if it.header == head]
    return [cell.plain if isinstance(cell, Text) else str(cell) for cell in found.cells]


def changed(certificate: Certificate, **changes: object) -> Certificate:
    """All directions of all links with these changes."""

    def one(each: DirectionCertificate) -> DirectionCertificate:
        return dataclasses.replace(each, **changes)  # type: ignore[arg-type]

    links = tuple(
        dataclasses.replace(link, directions=tuple(one(each) for each in link.directions), rtt=None)
        for link in certificate.links
    )
    return dataclasses.replace(certificate, links=links)


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
    table = links_measured(topology, changed(certificate_of(topology), **changes))
    assert set(column(table, "rate")) == {shown}
    assert table.row_count == len(topology.links) * (1 if len(topology.links) > MOST_LINKS else 2)


def test_a_link_that_the_certificate_does_not_know_was_not_measured() -> None:
    topology = catalog.load_topology("metro-40km")
    found = certificate_of(topology)
    table = links_measured(topology, dataclasses.replace(found, links=found.links[:1]))
    assert column(table, "verdict")[-1] == "not measured"
    assert set(column(links_measured(topology, None), "rate")) == {"-"}


@pytest.mark.parametrize("name", ["metro-40km", "ring-64"])
def test_ok_is_not_printed_for_what_could_not_be_told(name: str) -> None:
    topology = catalog.load_topology(name)
    told = links_measured(topology, changed(certificate_of(topology), checks=(RATE,), why=()))
    assert set(column(told, "verdict")) == {"ok"}
    untold = links_measured(topology, changed(certificate_of(topology), checks=(RATE, UNTOLD), why=()))
    assert set(column(untold, "verdict")) == {"not told"}
    bad = links_measured(topology, changed(certificate_of(topology), checks=(UNTOLD,), why=("rate 1 Mb/s",)))
    assert set(column(bad, "verdict")) == {"bad"}
