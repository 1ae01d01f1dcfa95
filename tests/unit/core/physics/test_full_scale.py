"""Rates at full scale: the oracle is arithmetic on exact fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest

from testbed.core.physics.full_scale import MOST_RATES, at_full_scale, full_rate_bps, sentence, stands_for

_UNITS = {"b/s": 1, "kb/s": 10**3, "Mb/s": 10**6, "Gb/s": 10**9, "Tb/s": 10**12}


def _read(text: str) -> Fraction:
    number, unit = text.split()
    return Fraction(number) * _UNITS[unit]


@pytest.mark.parametrize("scale", [1000.0, 100.0, 8.0, 0.5])
@pytest.mark.parametrize("rate_bps", [8e8, 4e8, 1e8, 2.5e10, 1e3])
def test_a_rate_is_multiplied_by_the_scale_and_the_lab_has_what_it_says(rate_bps: float, scale: float) -> None:
    lab, _, full = stands_for(rate_bps, scale).partition(" for ")
    assert _read(lab) == Fraction(rate_bps)
    assert _read(full) == Fraction(rate_bps) * Fraction(scale) == Fraction(full_rate_bps(rate_bps, scale))
    assert at_full_scale(rate_bps, scale) == full


def test_scale_1_and_no_limit_say_nothing() -> None:
    assert stands_for(8e8, 1) == "800 Mb/s"
    assert stands_for(0.0, 1000) == "unlimited"
    assert stands_for(None, 1000) == "-"
    assert at_full_scale(8e8, 1) == at_full_scale(0.0, 1000) == at_full_scale(None, 1000) == ""
    assert sentence([8e8], 1) == sentence([0.0], 1000) == sentence([], 1000) == ""


def test_the_sentence_names_each_rate_once_and_that_distance_is_real() -> None:
    told = sentence([8e8, 8e8, 0.0, 4e8], 1000)
    assert told.count("800 Mb/s") == told.count("400 Mb/s") == 1
    assert "800 Mb/s stands for 800 Gb/s, 400 Mb/s for 400 Gb/s" in told
    assert told.startswith("Scale 1000: ") and "distance and latency are not scaled" in told
    many = sentence([1e8 * it for it in range(1, 20)], 1000)
    assert many.count(" for ") == MOST_RATES and "and so on" in many
