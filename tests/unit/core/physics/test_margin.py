"""Optical margin to frame loss: compared with the figure of the standard, and with simulated codewords."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.core.physics.margin import frame_loss, margin_db


def test_at_no_margin_it_is_the_frame_loss_that_the_standard_asks_for() -> None:
    """IEEE 802.3, 124.1.1: at a bit error ratio of 2.4e-4, frames of 64 octets are lost at most 1.7e-12 of the time."""
    assert frame_loss(0, 64 + 20) == pytest.approx(1.7e-12, rel=0.05)


@pytest.mark.parametrize("margin", [-0.75, -0.9, -1.1])
def test_as_often_as_codewords_that_are_drawn_symbol_by_symbol(margin: float) -> None:
    """An oracle by chance: PAM4 levels and Gaussian noise, 544 symbols of 10 bits, 15 of which can be mended."""
    draw = random.Random(1)
    # The noise at which 2.4e-4 of the bits are wrong, by Q(z) = 2.4e-4 / 0.75 from a table of the normal distribution.
    z_at_limit = 3.4142
    z = z_at_limit * 10 ** (margin / 10)
    wrong_level = 2 * 0.75 * 0.5 * math.erfc(z / math.sqrt(2))  # a level has two neighbours, the outer ones one
    wrong_bit = wrong_level / 2
    wrong_symbol = 1 - (1 - wrong_bit) ** 10
    words = 3000
    failed = sum(sum(draw.random() < wrong_symbol for _ in range(544)) > 15 for _ in range(words)) / words
    touched = 2 * (1 + 1538 * 8 * 257 / 256 / (2 * 5140))
    expected = 1 - (1 - failed) ** touched
    assert frame_loss(margin) == pytest.approx(expected, rel=0.35)


@settings(deadline=None)
@given(st.floats(-2, 1), st.floats(-2, 1))
def test_less_light_never_loses_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0 <= frame_loss(high) <= frame_loss(low) <= 1


@settings(deadline=None)
@given(st.floats(-30, -0.01).map(lambda exponent: 10.0**exponent))
def test_the_margin_of_a_loss_is_its_inverse(loss: float) -> None:
    assert frame_loss(margin_db(loss)) == pytest.approx(loss, rel=1e-6)


def test_larger_frames_are_lost_more_often() -> None:
    assert frame_loss(-0.4, 9000) > frame_loss(-0.4) > frame_loss(-0.4, 84)
