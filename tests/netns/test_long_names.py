"""Names of 40 characters on namespaces: the contract, and the command line."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.commands import Command, check, run_line
from builders.conditions import LABS
from builders.labs import bring_up, ns, run_in
from contract.lab_contract import Inside
from contract.long_names_contract import FILE, LINKS, SITES, LongNamesContract, long_name
from oracles import oracle

import testbed
from testbed.lab.lab import Lab

pytestmark = LABS


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("t") / "long.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture(scope="module")
def lab(file: Path, state_folder: Path) -> Iterator[Lab]:
    name = long_name(oracle.unused_name())
    # Whether a loaded machine keeps a fiber within tolerance is not asked here.
    with bring_up(name, testbed.load(str(file)), agents=True) as made:
        yield made
    assert oracle.left_behind(name, state_folder) == []


@pytest.fixture
def inside(lab: Lab) -> Inside:
    return functools.partial(run_in, lab)


class TestNamespaces(LongNamesContract):
    pass


def test_the_plan_that_show_and_render_print_is_what_is_made(lab: Lab, file: Path, command: Command) -> None:
    told = json.loads(command(f"show {file} --json").stdout)["interfaces"]
    rendered = command(f"render {file}").stdout
    for place in ("plant", "mgmt", f"{SITES[0]}-gw", f"{SITES[1]}-gw"):
        for link in json.loads(run_line(f"ip -n {ns(lab, place)} -j link")):
            full = link.get("altnames", [link["ifname"]])[0]
            assert told.get(link["ifname"], link["ifname"]) == full
            assert full == link["ifname"] or f"dev {link['ifname']} altname {full}" in rendered


def test_the_command_takes_long_names(lab: Lab, file: Path, command: Command) -> None:
    shown = json.loads(command(f"show {file} --set links.{LINKS[0]}.km=80 --json").stdout)
    assert [link["length_m"] for link in shown["links"]] == [80_000, 43_000]
    check(command(f"exec -l {lab.name} {SITES[0]}-0 -- ping -c 1 -W 5 {SITES[1]}-0"))
    check(command(f"cut {LINKS[0]}:{SITES[1]} -l {lab.name} --for 0.2s --wait"))
    check(command(f"logs {SITES[0]}-0 -l {lab.name}"))
    status = json.loads(command(f"status -l {lab.name} --json").stdout)
    assert [(it["name"], len(it["interface"])) for it in status["links"]] == [(link, 13) for link in LINKS]


def test_tables_are_no_wider_than_a_terminal_and_lose_nothing(
    lab: Lab, file: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (("status", "-l", lab.name), ("show", str(file)), ("certify", "-l", lab.name), ("audit", str(file))):
        said = command(*words).stdout
        tables = [line for line in said.splitlines() if line.startswith(" ")]
        assert tables and max(map(len, tables)) <= 80, said
        whole = "".join(said.split())
        assert all(part in whole for link in LINKS for part in link.split("-")), said
