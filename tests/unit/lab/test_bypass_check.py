"""How often a certification tries before it says that nodes do not reach each other, and when it names a bypass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from testbed.core.plan import build
from testbed.core.plan.addressing import Addressing
from testbed.host.files import catalog
from testbed.host.measure.site_probing import Heard, Send
from testbed.lab import bypass_check
from testbed.lab.bypass_check import AT_ONCE, LEAST_ATTEMPTS, MOST_ATTEMPTS


class Probes:
    """Probes of a lab whose rounds are given: whether a probe strays, and whether the capture saw everything.

    The last round is repeated as often as the check asks for another. A probe that does not stray crosses ``north``.
    """

    interfaces: dict[str, list[str]] = {}  # noqa: RUF012

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rounds: tuple[str, bool], **impair: object) -> None:
        over = {f"links.*.impair.{key}": value for key, value in impair.items()}
        self.topology = catalog.load_topology("metro-40km", over)
        self.rounds, self.begun = rounds, 0
        self._numbers = itertools.count()
        self._paths: dict[int, tuple[str, str]] = {}
        addressing = Addressing(self.topology)
        self._nodes = {str(address): node for node in self.topology.node_names for address in addressing.node(node)}
        self._ingress = {direction.name: direction.ingress for direction in build.directions(self.topology)}
        monkeypatch.setattr(bypass_check, "SiteProbes", lambda places, plant: self)
        monkeypatch.setattr(bypass_check.lab_nodes, "netns", lambda lab, node: Path("/dev/null"))
        monkeypatch.setattr(bypass_check, "RESOLVING_S", 0.0)

    def __enter__(self) -> Probes:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def to_address(self, sender: str, address: str) -> Send:
        number = next(self._numbers)
        if address in self._nodes:  # not a management address
            self._paths[number] = (sender, self._nodes[address])
        return Send(number, lambda: None)

    def run(self, addressed: Sequence[Send], others: Sequence[Send], **times: float) -> Heard:
        what, complete = self.rounds[min(self.begun, len(self.rounds) - 1)]
        self.begun += 1
        paths = {} if what == SILENT else {send.number: self._paths[send.number] for send in addressed}
        entered = {
            number: frozenset(self._ingress[f"north:{node.partition('-')[0]}"] for node in path)
            for number, path in paths.items()
            if what == CLEAN
        }
        return Heard({number: frozenset({receiver}) for number, (_, receiver) in paths.items()}, entered, complete)

    def why(self) -> str:
        lab: Any = None
        return bypass_check.check_bypass(lab, self.topology).why


CLEAN, STRAY, SILENT = "clean", "stray", "silent"


@pytest.mark.parametrize(
    ("impair", "least", "most"),
    [
        ({}, LEAST_ATTEMPTS, LEAST_ATTEMPTS),
        ({"loss": "10%"}, LEAST_ATTEMPTS, 6),
        ({"loss": "50%"}, 20, MOST_ATTEMPTS),
        ({"loss": "1%", "burst": 100}, 60, MOST_ATTEMPTS),
        ({"loss": "99%"}, MOST_ATTEMPTS, MOST_ATTEMPTS),
        ({"loss": "100%"}, LEAST_ATTEMPTS, LEAST_ATTEMPTS),
    ],
)
def test_check_bypass_attempts_enough_for_what_is_lost_and_bounded(
    monkeypatch: pytest.MonkeyPatch, impair: dict[str, object], least: int, most: int
) -> None:
    probes = Probes(monkeypatch, (SILENT, True), **impair)
    assert "no packet from" in probes.why()
    attempts = probes.begun - 1
    assert least <= attempts <= most
    passing = 1.0
    for link in probes.topology.links:
        for name in link.directions:
            passing *= 1.0 - link.impairment(name).mean_loss
    if attempts < MOST_ATTEMPTS and 0 < passing < 1 and "burst" not in impair:
        assert (1.0 - passing) ** (attempts * AT_ONCE) <= 1e-6


UNKNOWN, AROUND = "cannot rule out a bypass path", "without crossing every fiber"


@pytest.mark.parametrize(
    ("rounds", "why"),
    [
        ([(CLEAN, True)], ""),
        ([(CLEAN, False)], ""),
        ([(STRAY, False), (CLEAN, True)], ""),
        ([(STRAY, True), (STRAY, False), (CLEAN, True)], ""),
        ([(STRAY, False), (STRAY, False)], UNKNOWN),
        ([(STRAY, True), (CLEAN, False)], UNKNOWN),
        ([(STRAY, True), (STRAY, True)], AROUND),
        ([(STRAY, True), (STRAY, True), (STRAY, False)], AROUND),
        ([(SILENT, True), (STRAY, False), (CLEAN, True)], ""),
        ([(SILENT, True), (STRAY, True), (CLEAN, True)], ""),
        ([(SILENT, True), (STRAY, False)], UNKNOWN),
        ([(SILENT, True), (STRAY, True)], AROUND),
    ],
)
def test_check_bypass_reports_only_rounds_whose_capture_saw_everything(
    monkeypatch: pytest.MonkeyPatch, rounds: list[tuple[str, bool]], why: str
) -> None:
    found = Probes(monkeypatch, *rounds).why()
    assert why in found
    assert bool(found) == bool(why)
