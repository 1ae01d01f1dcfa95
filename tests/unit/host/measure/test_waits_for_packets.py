"""How long a measurement waits for its last packets: a stall of this machine does not use that time up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.host.measure import probing
from testbed.host.measure.probing import Arrival, Departure, ProbePath

PATH = ProbePath("north:west", Path("a"), "10.0.0.1", Path("b"), "10.0.0.2")


class Stalled:
    """A prober, and a machine that is stalled for 200 ms after it has sent; the packet arrives 3 ms later."""

    path = PATH
    identity = 1

    def __init__(self) -> None:
        self.departures: dict[int, Departure] = {}
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds + (0.2 if self.departures and self.now < 0.2 else 0.0)

    def send(self) -> bool:
        self.departures[0] = Departure(0, 0)
        return True

    def receive(self) -> list[Arrival]:
        return [Arrival(0, 0.203)] if 0.205 < self.now < 0.208 else []

    def close(self) -> None: ...


def test_a_stall_longer_than_the_patience_loses_no_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Stalled()
    monkeypatch.setattr(probing, "time", SimpleNamespace(monotonic=lambda: machine.now, sleep=machine.sleep))
    assert probing.rounds([machine], 1, 0.001, 0.05)[PATH.name] == [Arrival(0, 0.203)]


def test_the_patience_ends() -> None:
    assert len(list(probing.waits(0.006))) == 3
