"""Taking down what a keeper left, from a journal that is made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.core.plan.makings import Containers, Namespace
from testbed.core.plan.settings import Carrier, Throttled
from testbed.core.plan.step import Setting, Step
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.linux import process
from testbed.lab import recovery
from testbed.lab.apply.journal import Journal
from testbed.lab.apply.throttle import Throttle
from testbed.lab.state import LabFolder


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Step, dict[str, Any]]]:
    """What the drivers were asked to unmake, and with what facts; they do nothing."""
    found: list[tuple[Step, dict[str, Any]]] = []

    def unmake(self: object, step: Step, facts: Mapping[str, Any]) -> None:
        found.append((step, dict(facts)))

    monkeypatch.setattr(Containerlab, "unmake", unmake)
    monkeypatch.setattr(NetnsDriver, "unmake", unmake)
    return found


@pytest.mark.parametrize("rebooted", [False, True])
def test_of_what_stood_before_a_reboot_only_containers_are_left(
    tmp_path: Path, undone: list[tuple[Step, dict[str, Any]]], rebooted: bool
) -> None:
    lab = LabFolder(tmp_path / "metro")
    lab.path.mkdir()
    boot = "an earlier one" if rebooted else process.boot_id()
    journal = Journal.create(lab.journal, "metro", boot, (1 << 22, 1))
    containers, namespace = Containers(("east-0",), "name: metro\n"), Namespace("somewhere")
    made = journal.intend("lab", (containers, namespace))
    for entry, facts in zip(made, ({"pids": {"east-0": 4711}}, {"net": 99}), strict=True):
        entry.facts = facts
    journal.done(made)
    journal.close()
    assert recovery.down(lab)
    assert not lab.path.exists()
    if rebooted:
        assert undone == [(containers, {})], "pids and inodes of then are somebody else's now"
    else:
        assert undone == [(namespace, {"net": 99}), (containers, {"pids": {"east-0": 4711}})]


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("what", [None, "f2", "east"])
def test_a_heal_sets_back_what_a_keeper_had_only_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str | None, ended: bool
) -> None:
    """It was killed while it ended f1: nothing stands for f1, and the lab says nothing of a node's cable or CPU."""
    taken_off, lit = list[tuple[str, float | None]](), list[Setting]()
    monkeypatch.setattr(Throttle, "set", lambda self, node, cpu: taken_off.append((node, cpu)))

    def assign(self: object, settings: Sequence[Setting]) -> None:
        lit.extend(settings)

    monkeypatch.setattr(NetnsDriver, "assign", assign)
    lab = LabFolder(tmp_path / "metro")
    lab.path.mkdir()
    journal = Journal.create(lab.journal, "metro", process.boot_id(), (1 << 22, 1))
    for number, target in (("f1", "east"), ("f2", "west")):
        journal.note("fault", id=number, type="x", target=target, links=[], nodes=[])
    forgotten = journal.intend("f1", (Throttled(0, "east-0", 0.3), Carrier("east-gw", "east-0", False)))
    journal.intend("f2", (Throttled(1, "west-0", 0.5),))
    journal.forget(forgotten)
    if ended:
        journal.note("fault-ended", id="f1", t=1.0)
    journal.close()
    recovery.heal(lab, what)
    assert ("east-0", None) in taken_off
    assert (("west-0", None) in taken_off) == (what != "east")
    assert lit == [Carrier("east-gw", "east-0", True)]
    left = Journal.read(lab.journal)
    assert left.forgotten == {}
    assert [it.owner for it in left.entries.values()] == (["f2"] if what == "east" else [])
