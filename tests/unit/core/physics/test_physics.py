"""Fiber and optics, compared with figures calculated by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.physics import fiber, optics


def test_smf_is_5_us_per_km() -> None:
    assert fiber.propagation_s(40_000, "smf") == 0.0002
    assert fiber.propagation_s(47_000, "smf") == 0.000235


def test_g652_by_its_group_index() -> None:
    assert fiber.propagation_s(1_000, "g652") * 1e6 == pytest.approx(4.897, abs=0.0005)


def test_hollow_core_is_30_percent_faster() -> None:
    assert fiber.propagation_s(100_000, "hollow-core") == pytest.approx(0.7 * fiber.propagation_s(100_000, "smf"))


def test_huts_add_their_amplifiers() -> None:
    assert fiber.propagation_s(80_000, "smf", huts=2) == pytest.approx(400.2e-6)


@given(st.floats(1, 4e7), st.sampled_from(sorted(fiber.FIBERS)))
def test_nothing_is_faster_than_light(length_m: float, kind: str) -> None:
    assert fiber.propagation_s(length_m, kind) > length_m / 299_792_458


def test_rate_is_waves_by_line_rate_over_scale() -> None:
    assert optics.rate_bps("800ZR", 1, 1000) == 800e6
    assert optics.rate_bps("400ZR", 4, 1) == 1.6e12


@given(st.floats(1, 4e7), st.floats(0, 1e12))
def test_some_class_reaches_and_each_offered_one_does(length_m: float, least_bps: float) -> None:
    offered = optics.that_reach(length_m, least_bps)
    assert offered
    assert all(one.reach_m >= length_m for one in offered)


def test_a_class_as_fast_is_offered_first() -> None:
    assert optics.that_reach(100_000, 800e9)[0].name == "800ZR"
    assert optics.that_reach(121_000, 800e9)[0].name == "OpenZR+"
    assert optics.that_reach(3_000, 400e9)[0].name == "400G-LR4"


def test_every_class_has_a_source_and_its_own_name() -> None:
    for name, one in optics.OPTICS.items():
        assert one.name == name
        assert len(one.source) > 10
