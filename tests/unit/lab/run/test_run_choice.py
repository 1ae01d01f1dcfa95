"""Which experiment happens on a bare topology, by whether there is a way around its first link."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import UserError
from testbed.host.files import catalog
from testbed.lab.run import prepared_run

SITES = "sites: {aa: {nodes: 1}, bb: {nodes: 1}, cc: {nodes: 1}}\nlinks:\n"


def link(name: str, a: str, b: str) -> str:
    return f"  {name}: {{between: [{a}, {b}], km: 40}}\n"


@pytest.mark.parametrize(
    ("links", "experiment"),
    [
        (link("first", "aa", "bb") + link("other", "bb", "cc"), "only-fiber"),
        (link("first", "aa", "bb") + link("other", "bb", "cc") + link("third", "cc", "aa"), "first-cut"),
        (link("first", "aa", "bb") + link("beside", "bb", "aa") + link("other", "bb", "cc"), "first-cut"),
        (link("first", "bb", "cc") + link("beside", "bb", "aa") + link("third", "aa", "bb"), "only-fiber"),
    ],
    ids=["chain", "ring", "parallel", "a bridge beside a pair"],
)
def test_a_bare_topology(tmp_path: Path, links: str, experiment: str) -> None:
    (tmp_path / "t.yaml").write_text(SITES + links)
    chosen, topology = prepared_run.read(str(tmp_path / "t.yaml"), None)
    assert (chosen.name, topology.name) == (experiment, "t")


def test_an_experiment_is_itself() -> None:
    for name in catalog.list_experiments():
        assert prepared_run.read(name, None)[0].name == name


def test_without_links_there_is_nothing_to_run(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("sites: {aa: {nodes: 2}}\n")
    with pytest.raises(UserError, match="has no links"):
        prepared_run.read(str(tmp_path / "t.yaml"), None)


def test_the_topology_of_only_fiber_has_one() -> None:
    topology = catalog.load_experiment("only-fiber").topology
    assert topology is not None
    assert prepared_run.read(topology, None)[0].name == "only-fiber"


def test_what_an_experiment_sets_is_laid_over_its_topology_and_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("topology: metro-40km\nset:\n  links.north.km: 60\n  links.south.km: 70\nexpect: []\n")
    _, topology = prepared_run.read(str(file), {"links.south.km": 75})
    assert [link.length_m for link in topology.links] == [60_000, 75_000]
    file.write_text("topology: metro-40km\nset:\n  links.north.km: 60\n  links.south.km: long\nexpect: []\n")
    with pytest.raises(UserError, match=r"x\.yaml:4: .*long"):
        prepared_run.read(str(file), None)
    with pytest.raises(UserError, match=r"--set links\.south\.km: .*far"):
        prepared_run.read(str(file), {"links.south.km": "far"})
