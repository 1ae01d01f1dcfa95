"""Terminal and JSON say what a lab's rates stand for; at scale 1 they say nothing more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders.cli_fixtures import Cli, certificate_of, cli
from rich.table import Table

from testbed.cli import certificate_table, lab_tables, tables, topology_tables
from testbed.host.files import catalog
from testbed.lab.status import LabStatus, LinkStatus

__all__ = ["cli"]  # a fixture


def lab_of(scale: float) -> LabStatus:
    squeezed: Any = {"direction": "north:west", "dark_by": [], "masked": []}
    squeezed["values"] = [{"key": "rate", "text": "80 Mb/s", "by": ["f1"]}]
    lit, words = {"east": True, "west": True}, ("f1 rate 80 Mb/s",)
    link = LinkStatus("north", 40.0, lit, "ok", ("f1",), {"north:west": 7}, 0, words, (squeezed,), 8e8, 8e8 * scale)
    return LabStatus("lab", "up", (), "metro", 9.0, "netns", "fiberd", "", (link,), (), scale=scale)


def printed(made: list[Table]) -> str:
    return " ".join(str(cell) for table in made for column in table.columns for cell in column.cells)


@pytest.mark.parametrize(("scale", "full"), [(1000.0, "80 Gb/s"), (10.0, "800 Mb/s"), (1.0, "")])
def test_status(scale: float, full: str) -> None:
    found = lab_of(scale)
    said = printed(lab_tables.of_status(found))
    assert said.count(f"80 Mb/s for {full}" if full else "80 Mb/s") == 2, "what is in force, and the fault's effect"
    notes = " ".join(lab_tables.status_notes(found))
    assert ("stands for" in notes and "distance and latency are not scaled" in notes) == (scale != 1)
    assert "packets: sent toward each site" in notes, "the columns are explained"
    assert "all links carry light; 1 fault in force." in lab_tables.status_line(found).plain
    data = json.loads(json.dumps(tables.plain(found)))
    assert data["scale"] == scale and data["links"][0]["full_scale_rate_bps"] == 8e8 * scale


@pytest.mark.parametrize("scale", ["1000", "1"])
def test_show_and_audit(cli: Cli, scale: str) -> None:
    for verb in ("show", "audit"):
        result = cli(f"{verb} metro-40km --set scale={scale}")
        assert ("stands for" in result.out + result.err) == (scale != "1"), verb
    shown = cli(f"show metro-40km --set scale={scale}").out
    assert ("real rate" in shown) == ("800 Gb/s, here 800 Mb/s" in shown) == (scale != "1")


@pytest.mark.parametrize("scale", [1000.0, 1.0])
def test_a_certificate_is_told_in_words_with_a_legend(scale: float) -> None:
    topology = catalog.load_topology("metro-40km")
    said = certificate_table.footnote(certificate_of(topology), scale)
    assert "Both links behave as the topology asks." in said and "target: delay asked for" in said
    assert max(map(len, said.splitlines())) <= 80
    assert ("stands for" in said) == (scale != 1 and "carries" in said)
    facts = topology_tables.full_scale_facts(topology)
    assert facts == {"scale": 1000.0, "full_scale_rate_bps": {"north": 8e11, "south": 8e11}}
