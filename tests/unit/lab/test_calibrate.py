"""The procedure of a calibration, on fibers made up here: what comes off, and that no packet is early after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.plan.properties import Calibrated
from testbed.core.topology.resolve import load_text
from testbed.lab import calibrate

METRO = b"""\
sites: {east: {nodes: 2}, west: {nodes: 2}}
links:
  north: {between: [east, west], km: 40}
  south: {between: [east, west], km: 47, calibrate: false}
  short: {between: [east, west], km: 1}
"""


class Plant:
    """Fibers whose packets take ``path_s`` besides, or the emulator's wake-up ``wake_s`` where that is longer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path_s: float, wake_s: float, inside_s: float) -> None:
        self.path_s, self.wake_s = path_s, wake_s
        self.silent: set[str] = set()
        self.applied: dict[str, Calibrated] = {}
        monkeypatch.setattr(calibrate, "_inside", lambda path, tell: inside_s)
        monkeypatch.setattr(calibrate, "_apply", self._apply)
        monkeypatch.setattr(calibrate, "_least", self._least)

    def _apply(self, lab: Any, plan: Iterable[Calibrated]) -> None:
        self.applied = {it.direction: it for it in plan}

    def _least(self, lab: Any, probers: Sequence[Any], delays_s: Any) -> dict[str, float]:
        names = [it.path.name for it in probers if it.path.name not in self.silent]
        return {name: self.across_s(name, self.applied[name].plain_s or 0.0) for name in names}

    def across_s(self, name: str, emulated_s: float) -> float:
        return self.path_s + max(self.wake_s, emulated_s)

    def calibrate(self) -> dict[str, float]:
        topology = load_text(METRO, "metro.yaml")
        names = [name for link in topology.links for name in link.directions]
        probes = {name: SimpleNamespace(path=SimpleNamespace(name=name)) for name in names}
        paths: Any = SimpleNamespace(of=lambda some: {it: probes[it] for it in names if it in some}, inside=object())
        lab: Any = None
        off = calibrate.calibrate(lab, topology, paths, lambda text: None)
        assert {it: found.taken_off_s for it, found in self.applied.items()} == off
        assert all(found.plain_s is None for found in self.applied.values())
        return off


def test_the_path_less_half_the_rtt_inside_comes_off_where_the_delay_exceeds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off = Plant(monkeypatch, path_s=17e-6, wake_s=0.0, inside_s=10e-6).calibrate()
    # 1 km is 5 us: less than what would come off. South is switched off.
    assert off == {"north:west": pytest.approx(12e-6), "north:east": pytest.approx(12e-6)}


def test_a_wake_up_that_a_longer_delay_hides_makes_no_packet_early(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(monkeypatch, path_s=12e-6, wake_s=30e-6, inside_s=10e-6)
    for name, value in plant.calibrate().items():
        assert plant.across_s(name, 200e-6 - value) >= 200e-6 + 3e-6 - 1e-12
        assert value == pytest.approx(9e-6)


def test_a_path_with_too_few_packets_on_time_is_not_calibrated(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(monkeypatch, path_s=17e-6, wake_s=0.0, inside_s=10e-6)
    plant.silent = {"north:east"}
    assert plant.calibrate() == {"north:west": pytest.approx(12e-6)}
    plant.silent = {"north:east", "north:west"}
    assert plant.calibrate() == {}


def test_what_cannot_be_checked_is_not_taken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(monkeypatch, path_s=17e-6, wake_s=0.0, inside_s=10e-6)
    measure = plant._least
    calls = []

    def least(lab: Any, probers: Sequence[Any], delays_s: Any) -> dict[str, float]:
        calls.append(delays_s)
        plant.silent = {"north:east"} if len(calls) > 1 else set()
        return measure(lab, probers, delays_s)

    monkeypatch.setattr(calibrate, "_least", least)
    assert plant.calibrate() == {"north:west": pytest.approx(12e-6)}
