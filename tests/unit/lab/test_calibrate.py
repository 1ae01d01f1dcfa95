"""The procedure of a calibration, on fibers made up here: what comes off, and that no packet is early after it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.plan.properties import Calibrated
from testbed.core.topology.resolve import load_text
from testbed.host.measure.probing import Arrival
from testbed.lab import certify

INSIDE_S = 10e-6
METRO = b"""\
sites: {east: {nodes: 2}, west: {nodes: 2}}
links:
  north: {between: [east, west], km: 40}
  south: {between: [east, west], km: 47, calibrate: false}
  short: {between: [east, west], km: 1}
"""


class Plant:
    """Fibers whose packets take ``path_s`` besides, or the emulator's wake-up ``wake_s`` where that is longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path_s: float, wake_s: float = 0.0) -> None:
        self.path_s, self.wake_s = path_s, wake_s
        self.silent: set[str] = set()
        self.silent_once_calibrated: set[str] = set()
        self.applied: dict[str, Calibrated] = {}
        inside = SimpleNamespace(path=SimpleNamespace(name="inside"), close=lambda: None)
        monkeypatch.setattr(certify, "Echo", lambda path: inside)
        monkeypatch.setattr(certify, "rounds", self._rounds)
        monkeypatch.setattr(certify, "RESOLVING_S", 0.0)
        keeper = SimpleNamespace(undo=lambda owner: None, apply=self._apply)
        monkeypatch.setattr(certify.client, "keeper", lambda lab: keeper)
        monkeypatch.setattr(certify, "PacketLog", lambda lab: contextlib.nullcontext(SimpleNamespace(read=list)))
        monkeypatch.setattr(certify, "split_by_host", lambda log, prober, arrivals, legs: (arrivals, []))

    def _apply(self, owner: str, plan: Sequence[object]) -> None:
        self.applied = {step.direction: step for step in plan if isinstance(step, Calibrated)}
        if any(step.taken_off_s for step in self.applied.values()):
            self.silent |= self.silent_once_calibrated

    def _rounds(self, probers: Sequence[Any], count: int, *times_s: float) -> dict[str, list[Arrival]]:
        names = [prober.path.name for prober in probers]
        return {
            name: [Arrival(number, self._takes_s(name)) for number in range(0 if name in self.silent else count)]
            for name in names
        }

    def _takes_s(self, name: str) -> float:
        return INSIDE_S if name == "inside" else self.across_s(self.applied[name].plain_s or 0.0)

    def across_s(self, emulated_s: float) -> float:
        return self.path_s + max(self.wake_s, emulated_s)

    def calibrate(self) -> dict[str, float]:
        topology = load_text(METRO, "metro.yaml")
        names = [name for link in topology.links for name in link.directions]
        probes = {name: SimpleNamespace(path=SimpleNamespace(name=name)) for name in names}
        inside = SimpleNamespace(name="inside")
        paths: Any = SimpleNamespace(
            of=lambda some: {name: probes[name] for name in names if name in some}, inside=inside
        )
        lab: Any = None
        off = certify.calibrate(lab, topology, paths, lambda text: None)
        assert {name: found.taken_off_s for name, found in self.applied.items()} == off
        assert all(found.plain_s is None for found in self.applied.values())
        return off


TAKEN_OFF_S = pytest.approx(12e-6)


def test_calibrate_takes_off_the_path_less_half_the_rtt_inside_where_the_delay_exceeds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 1 km is 5 us: less than what would come off. South is switched off.
    off = Plant(monkeypatch, path_s=17e-6).calibrate()
    assert off == {"north:west": TAKEN_OFF_S, "north:east": TAKEN_OFF_S}


def test_calibrate_makes_no_packet_early_after_a_wake_up_that_a_longer_delay_hides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant = Plant(monkeypatch, path_s=12e-6, wake_s=30e-6)
    off = plant.calibrate()
    assert off == {"north:west": pytest.approx(9e-6), "north:east": pytest.approx(9e-6)}
    assert all(plant.across_s(200e-6 - value) >= 200e-6 + 3e-6 - 1e-12 for value in off.values())


def test_calibrate_leaves_out_a_path_with_too_few_packets_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(monkeypatch, path_s=17e-6)
    plant.silent = {"north:east"}
    assert plant.calibrate() == {"north:west": TAKEN_OFF_S}
    plant.silent = {"north:east", "north:west"}
    assert plant.calibrate() == {}


def test_calibrate_takes_off_nothing_that_cannot_be_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(monkeypatch, path_s=17e-6)
    plant.silent_once_calibrated = {"north:east"}
    assert plant.calibrate() == {"north:west": TAKEN_OFF_S}
