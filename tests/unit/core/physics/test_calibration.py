"""What comes off a delay so that two nodes see the fiber's delay: its definition, and what must hold of it."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from testbed.core.physics import calibration
from testbed.core.physics.impairment import DISTRIBUTIONS, Impairment

TIMES = st.floats(0.0, 1e-3)


def test_the_definition() -> None:
    assert calibration.taken_off_s(200e-6, 17e-6, 10e-6) == 12e-6
    assert calibration.taken_off_s(12e-6, 17e-6, 10e-6) == 0.0, "the delay does not exceed it"
    assert calibration.taken_off_s(200e-6, 4e-6, 10e-6) == 0.0
    # 40 km: nodes of two sites are then as far apart as two of one site, plus the fiber.
    assert (200e-6 - 12e-6) + 17e-6 == 200e-6 + 10e-6 / 2


@given(delay=st.floats(0.0, 60.0), across=TIMES, inside=TIMES)
def test_it_is_never_more_than_the_delay_and_never_negative(delay: float, across: float, inside: float) -> None:
    off = calibration.taken_off_s(delay, across, inside)
    assert 0.0 <= off <= delay


def test_half_comes_off_where_links_share_a_gateway() -> None:
    assert calibration.share([("east", "west"), ("west", "east")]) == 1.0, "two routes between the same two sites"
    assert calibration.share([("a", "b"), ("b", "c")]) == 0.5
    assert calibration.share([]) == 1.0


@given(gateway=TIMES, plant=TIMES, links=st.integers(1, 64))
def test_what_comes_off_a_path_over_several_links_is_never_more_than_it_takes(
    gateway: float, plant: float, links: int
) -> None:
    sites = [(f"s{it}", f"s{it + 1}") for it in range(links)]
    off = calibration.share(sites) * (2 * gateway + plant)
    assert links * off <= (links + 1) * gateway + links * plant + 1e-12


@given(off=TIMES, beyond=TIMES)
def test_after_the_correction_no_packet_is_early(off: float, beyond: float) -> None:
    """``beyond`` is what the earliest packet took on top of the shortened delay: it must make up for what is off."""
    left = off - calibration.early_s(off, beyond)
    assert left + calibration.GUARD_S <= beyond + 1e-12 or calibration.early_s(off, beyond) == 0.0
    assert left <= off


@given(st.dictionaries(st.text(max_size=3), TIMES))
def test_minima_of_too_few_packets_are_bounded_by_those_of_all(least: dict[str, float]) -> None:
    found = calibration.alike(least)
    assert found.keys() == least.keys()
    for name, value in found.items():
        assert value <= least[name]
        assert value == least[name] or value == min(least.values()) + calibration.ALIKE_S


@given(
    delay=st.floats(0.0, 1.0),
    jitter=st.floats(0.0, 0.1),
    distribution=st.sampled_from(sorted(DISTRIBUTIONS)),
    off=TIMES,
)
def test_what_is_applied_differs_in_its_delay_only_and_stays_possible(
    delay: float, jitter: float, distribution: str, off: float
) -> None:
    wanted = Impairment(delay, 1e9, 10_000, 0.01, jitter_s=jitter, jitter_distribution=distribution)
    found = calibration.applied(wanted, off)
    assert dataclasses.replace(found, delay_s=delay) == wanted
    assert 0.0 <= found.delay_s <= delay
    if not list(wanted.findings()) and found.delay_s > 0:
        assert not list(found.findings())
    if not jitter:
        assert found.delay_s == (max(0.0, delay - off) if off else delay)
