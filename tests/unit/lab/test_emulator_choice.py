"""Which emulator a lab gets, by what was asked for and what the machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import HostError, MissingTool
from testbed.lab import deploy


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr("testbed.host.emulators.fiberd.find_binary", lambda: Path("/fiberd"))
    monkeypatch.setattr("testbed.host.emulators.netem.available", lambda: "")
    return monkeypatch


@pytest.mark.parametrize(
    ("wanted", "chosen", "why"),
    [("auto", "netem", "this kernel has it"), ("netem", "netem", "requested"), ("fiberd", "fiberd", "requested")],
)
def test_with_netem(machine: pytest.MonkeyPatch, wanted: str, chosen: str, why: str) -> None:
    assert deploy._emulator(wanted) == (chosen, why)


def test_without_netem(machine: pytest.MonkeyPatch) -> None:
    machine.setattr("testbed.host.emulators.netem.available", lambda: "this kernel does not have it")
    assert deploy._emulator("auto") == ("fiberd", "not netem: this kernel does not have it")
    assert deploy._emulator("fiberd") == ("fiberd", "requested")
    with pytest.raises(HostError, match="netem is not available: this kernel does not have it; use --emulator fiberd"):
        deploy._emulator("netem")


def test_with_neither(machine: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise MissingTool("fiberd", "apt-get install gcc")

    machine.setattr("testbed.host.emulators.netem.available", lambda: "no")
    machine.setattr("testbed.host.emulators.fiberd.find_binary", missing)
    with pytest.raises(MissingTool):
        deploy._emulator("auto")
