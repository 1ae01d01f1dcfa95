"""Taking down what a keeper left, from a journal that is made up."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.core.plan.step import Containers, Namespace, Step
from testbed.host.drivers.containerlab import Containerlab
from testbed.host.drivers.netns import NetnsDriver
from testbed.host.linux import process
from testbed.lab import recovery
from testbed.lab.apply.journal import Journal
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
