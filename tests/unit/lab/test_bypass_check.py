"""How often a certification tries before it says that nodes do not reach each other."""

from __future__ import annotations

import pytest

from testbed.host.files import catalog
from testbed.lab.bypass_check import AT_ONCE, LEAST_ATTEMPTS, MOST_ATTEMPTS, _attempts


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
