"""How often a certification tries before it says that nodes do not reach each other, and when it names a bypass."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.core.certification.bypass import ADDRESSED, BypassProbe, pairs
from testbed.host.files import catalog
from testbed.host.measure.site_probing import Send
from testbed.lab.bypass_check import AT_ONCE, LEAST_ATTEMPTS, MOST_ATTEMPTS, _attempts, _Bypass


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
def test_attempts_are_enough_for_what_is_lost_and_bounded(impair: dict[str, object], least: int, most: int) -> None:
    over = {f"links.*.impair.{key}": value for key, value in impair.items()}
    topology = catalog.load_topology("metro-40km", over)
    attempts = _attempts(topology)
    assert least <= attempts <= most
    passing = 1.0
    for link in topology.links:
        for name in link.directions:
            passing *= 1.0 - link.impairment(name).mean_loss
    if attempts < MOST_ATTEMPTS and 0 < passing < 1 and "burst" not in impair:
        assert (1.0 - passing) ** (attempts * AT_ONCE) <= 1e-6


class Rounds:
    """A lab whose rounds are told one by one: whether a probe strays, and whether the capture saw everything.

    A probe that does not stray crosses the fiber ``north``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rounds: tuple[str, bool]) -> None:
        self._left = list(rounds)
        self.topology = catalog.load_topology("metro-40km", {})
        probes: Any = SimpleNamespace(
            interfaces={}, to_address=lambda *_: Send(next(self._numbers), lambda: None), to_nearby=None
        )
        self._numbers = itertools.count()
        self._check = _Bypass(self.topology, probes)
        monkeypatch.setattr(self._check, "_round", self._round)
        monkeypatch.setattr("testbed.lab.bypass_check.RESOLVING_S", 0.0)

    def _round(self, others: object, addressed: Sequence[Send]) -> tuple[list[BypassProbe], bool]:
        what, complete = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        found = []
        for it in addressed if what != "silent" else ():
            _, family, sender, _ = self._check._sent[it.number]
            there = "west" if sender.startswith("east") else "east"
            entered = frozenset() if what == "stray" else frozenset((f"north:{there}", f"north:{sender[:4]}"))
            found.append(BypassProbe(ADDRESSED, family, sender, f"{there}-0", entered))
        return found, complete

    def why(self) -> str:
        wanted = [it for it in pairs(self.topology) if it.sender.endswith("-0") and it.receiver.endswith("-0")]
        return self._check.why(wanted)


CLEAN, STRAY, SILENT = "clean", "stray", "silent"


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ([(CLEAN, True)], ""),
        ([(CLEAN, False)], ""),
        ([(STRAY, False), (CLEAN, True)], ""),
        ([(STRAY, True), (STRAY, False), (CLEAN, True)], ""),
        ([(STRAY, False), (STRAY, False)], "cannot rule out a bypass path"),
        ([(STRAY, True), (CLEAN, False)], "cannot rule out a bypass path"),
        ([(STRAY, True), (STRAY, True)], "without crossing every fiber"),
        ([(STRAY, True), (STRAY, True), (STRAY, False)], "without crossing every fiber"),
        ([(SILENT, True), (STRAY, False), (CLEAN, True)], ""),
        ([(SILENT, True), (STRAY, True), (CLEAN, True)], ""),
        ([(SILENT, True), (STRAY, False)], "cannot rule out a bypass path"),
        ([(SILENT, True), (STRAY, True)], "without crossing every fiber"),
    ],
)
def test_only_a_round_whose_capture_saw_everything_accuses(
    monkeypatch: pytest.MonkeyPatch, rounds: list[tuple[str, bool]], said: str
) -> None:
    """The last round is repeated as often as the check asks for another."""
    found = Rounds(monkeypatch, *rounds).why()
    assert said in found
    assert bool(found) == bool(said)
