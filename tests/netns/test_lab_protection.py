"""The protection contract on fiberd; netem's is in ``tests/netem_vm/inner``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.conditions import LABS
from builders.labs import Lab, address_of, bring_up, is_dark, ns
from contract.protection_contract import ProtectionContract, protected_lab
from oracles import oracle

import testbed
from testbed.keeper.journal import Journal
from testbed.keeper.protection import PROTECTED

pytestmark = LABS


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, state_folder: Path) -> Iterator[Lab]:
    with protected_lab(tmp_path_factory.mktemp("t"), "fiberd") as made:
        yield made


class TestProtectionOnFiberd(ProtectionContract):
    pass


def test_a_dead_keeper_is_healed_and_leaves_nothing(tmp_path: Path, state_folder: Path) -> None:
    """While a link is on its second path: what stands for that is no fault's, and goes all the same."""
    with protected_lab(tmp_path, "fiberd") as lab:
        lab.cut("one")
        oracle.until(lambda: ProtectionContract.says(lab, "one") == "on protection", 3.0, "it has switched")
        oracle.kill(oracle.keeper_pids(lab.name, state_folder))
        assert [it.target for it in lab.heal()] == ["one"]
        assert Journal.read(state_folder / "labs" / lab.name / "journal.jsonl").owned(PROTECTED + "one") == []
    assert oracle.left_behind(lab.name, state_folder) == []


def test_nothing_takes_the_place_of_a_link_whose_protection_is_none(state_folder: Path) -> None:
    """Its traffic waits for the heal, although another fiber is lit; with ``route`` it would go over that one."""
    topology = testbed.load("metro-40km", {"links.north.protection": "none"})
    with bring_up(topology=topology) as lab:
        east, west = ns(lab, "east-0"), ns(lab, "west-0")
        to = oracle.addresses(west, "fabric0")["inet"]
        assert oracle.ping(east, to, count=3)
        with lab.cut("north"):
            oracle.until(lambda: is_dark(lab, "east-gw", "north"), 3.0, "north is dark")
            assert oracle.ping(east, to, count=5, wait_s=0.3) == []
            south = address_of(lab, "west-gw", "south")
            assert oracle.ping(ns(lab, "east-gw"), south, count=3), "the other fiber is lit"
        oracle.until(lambda: oracle.ping(east, to, wait_s=0.3), 5.0, "packets pass again")
