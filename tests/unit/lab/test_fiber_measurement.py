"""The row *nodes* agrees with its directions: on a plant made up here, where paths that lay idle are slower."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.certification.link_certificate import LinkCertificate
from testbed.host.files import catalog
from testbed.host.measure.probing import Arrival, Departure, ProbePath
from testbed.lab import fiber_measurement
from testbed.lab.fiber_measurement import FAST, Measuring

DELAY_S = {"north": 200e-6, "south": 235e-6}
INSIDE_S, COLD_S = 11e-6, 10e-6
"""RTT inside a site, half of which comes on top of a calibrated fiber; what a packet takes more after a pause."""


class Opened:
    """A probe or an echo that sends nothing."""

    def __init__(self, path: ProbePath) -> None:
        self.path = path
        self.identity = 1
        self.departures: dict[int, Departure] = {}

    def close(self) -> None:
        pass


class Plant:
    """Packets take their path's time, and more each way where the packet before them took another path."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def rounds(self, probers: Sequence[Opened], count: int, *_: float) -> dict[str, list[Arrival]]:
        self.order = [it.path.name for it in probers]
        arrivals = {}
        for prober in probers:
            first = len(prober.departures)
            prober.departures |= {first + number: Departure(0, 0) for number in range(count)}
        for place, name in enumerate(self.order):
            cold = self._over(name) != self._over(self.order[place - 1])
            took_s = self._takes_s(name) + cold * COLD_S * (1 + name.startswith("echo:"))
            first = len(probers[place].departures) - count
            arrivals[name] = [Arrival(first + number, took_s + number % 3 * 1e-7) for number in range(count)]
        return arrivals

    def _over(self, name: str) -> str:
        sort, _, rest = name.partition(":")
        return rest if sort in ("echo", "warming") else sort

    def _takes_s(self, name: str) -> float:
        over = self._over(name)
        one_way_s = DELAY_S.get(over, 0.0) + INSIDE_S / 2
        return 2 * one_way_s if name.startswith(("echo:", "warming:")) else one_way_s


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Plant:
    made = Plant()
    hello = {"emulator": "netem", "taken_off_s": {f"{link}:{to}": 7e-6 for link in DELAY_S for to in ("west", "east")}}
    keeper = SimpleNamespace(
        hello=lambda: hello,
        stalls=lambda since: {"watching": False, "next": 0, "stalls": []},
        record_packets=lambda nonce=0: {"supported": False, "packets": [], "lost": 0},
    )
    monkeypatch.setattr(fiber_measurement.client, "keeper", lambda _: keeper)
    monkeypatch.setattr(fiber_measurement.packet_log, "read_counters", lambda _: {})
    monkeypatch.setattr(fiber_measurement, "probe_paths", lambda *_: map(_path, sorted(hello["taken_off_s"])))
    for name in ("Probe", "Echo"):
        monkeypatch.setattr(fiber_measurement, name, Opened)
    monkeypatch.setattr(fiber_measurement, "rounds", made.rounds)
    monkeypatch.setattr(fiber_measurement, "measure_rates", lambda *_: {})
    monkeypatch.setattr(Measuring, "_streams", lambda *_: {})
    return made


def _path(name: str) -> ProbePath:
    return ProbePath(name, Path("a"), "10.0.0.1", Path("b"), "10.0.0.2")


def measure(over: dict[str, Any]) -> tuple[LinkCertificate, ...]:
    lab: Any = SimpleNamespace(name="x")
    measuring = Measuring(lab, catalog.load_topology("metro-40km", over), FAST, lambda _: None)
    across: Any = {name: Opened(_path(name)) for name in sorted(measuring.calibrated)}
    links, _, noise = measuring.measure((_path("bare:b"), _path("bare:a")), across, _path("inside"))
    assert not noise.is_noisy
    return links


def test_rtt_across_less_rtt_inside_is_what_the_directions_say(plant: Plant) -> None:
    for link in measure({}):
        assert link.rtt is not None and link.rtt.between == "nodes" and link.rtt.error_median_s is not None
        # As calibration has it: the fiber's delay, and half the least RTT inside a site, each way.
        errors = [each.error_min_s for each in link.directions if each.error_min_s is not None]
        assert len(errors) == 2
        assert min(errors) == pytest.approx(INSIDE_S / 2, abs=1e-6)
        assert link.rtt.error_median_s == pytest.approx(2 * min(errors) - INSIDE_S, abs=1e-6)
        if link.name == "north":
            assert max(errors) == pytest.approx(INSIDE_S / 2, abs=1e-6), "the first packet of a round is none of these"
        assert link.rtt.bare is not None and link.rtt.bare.median == pytest.approx(INSIDE_S, abs=1e-6)


def test_echoes_of_a_jittered_link_keep_off_its_other_packets(plant: Plant) -> None:
    measure({"links.north.impair.jitter": "40us"})
    assert plant.order[-1] == "echo:north"
    assert plant.order.index("echo:south") == plant.order.index("south:west") + 1
