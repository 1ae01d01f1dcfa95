"""Quantities: parsed as users write them, formatted so that they parse to the same value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core import units


@pytest.mark.parametrize(
    ("parse", "text", "si"),
    [
        (units.parse_length_m, "40 km", 40e3),
        (units.parse_length_m, 40, 40e3),
        (units.parse_length_m, 0.5, 500),
        (units.parse_length_m, " 1.5e1km ", 15e3),
        (units.parse_length_m, "500 m", 500),
        (units.parse_delay_s, "200us", 200e-6),
        (units.parse_delay_s, "200 µs", 200e-6),
        (units.parse_delay_s, "200 μs", 200e-6),
        (units.parse_delay_s, "5 ms", 5e-3),
        (units.parse_delay_s, 0, 0),
        (units.parse_duration_s, "2 min", 120),
        (units.parse_duration_s, 20, 20),
        (units.parse_step_s, "80ms", 0.08),
        (units.parse_rate_bps, "800G", 800e9),
        (units.parse_rate_bps, "800 Gb/s", 800e9),
        (units.parse_rate_bps, "100 Mbit/s", 100e6),
        (units.parse_rate_bps, 800, 800e9),
        (units.parse_size_bytes, "1 MB", 1_000_000),
        (units.parse_size_bytes, "64 KiB", 65_536),
        (units.parse_size_bytes, 1500, 1500),
        (units.parse_probability, "0.1%", 0.001),
        (units.parse_probability, "1e-9", 1e-9),
        (units.parse_probability, 1, 1),
    ],
)
def test_reads(parse: Callable[[object], float], text: object, si: float) -> None:
    assert parse(text) == pytest.approx(si, rel=1e-15)


def test_small_units_give_the_nearest_float() -> None:
    assert units.parse_delay_s("200us") == 0.0002


@pytest.mark.parametrize(
    ("parse", "value", "says"),
    [
        (units.parse_length_m, "-3 km", "out of range"),
        (units.parse_length_m, 0, "expected 1 m to"),
        (units.parse_length_m, float("nan"), "finite"),
        (units.parse_length_m, "1e999 km", "finite"),
        (units.parse_length_m, 10**400, "finite"),
        (units.parse_length_m, 40_001, "out of range"),
        (units.parse_length_m, "40 K M", "40 km"),
        (units.parse_length_m, True, "expected a length"),
        (units.parse_length_m, None, "no value"),
        (units.parse_length_m, [40], "expected a length"),
        (units.parse_length_m, "1" * 1000, "expected a length"),
        (units.parse_length_m, "٤٠ km", "expected a length"),  # digits, but not ours
        (units.parse_length_m, "nan km", "expected a length"),
        (units.parse_rate_bps, "100 GB/s", "unknown unit 'GB/s'"),
        (units.parse_rate_bps, "800 mb/s", "unknown unit"),
        (units.parse_rate_bps, "0G", "out of range"),
        (units.parse_rate_bps, 8e11, "out of range"),
        (units.parse_delay_s, "61 s", "1 min"),
        (units.parse_delay_s, 5, "expected a time with its unit, got 5; write 200us"),
        (units.parse_delay_s, "5", "expected a time with its unit, got '5'"),
        (units.parse_step_s, "80", "expected a time with its unit, got '80'"),
        (units.parse_step_s, 0.08, "expected a time with its unit, got 0.08"),
        (units.parse_size_bytes, "2 TB", "out of range"),
        (units.parse_probability, "101%", "out of range; expected 0 to 1"),
        (units.parse_probability, 1.5, "out of range; expected 0 to 1"),
    ],
)
def test_refuses_in_words(parse: Callable[[object], float], value: object, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse(value)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 250


PAIRS = [
    (units.parse_length_m, units.format_length, 1.0, 4e7),
    (units.parse_delay_s, units.format_delay, 1e-9, 60.0),
    (units.parse_duration_s, units.format_duration, 1e-9, 6e5),
    (units.parse_rate_bps, units.format_rate, 1.0, 1e15),
    (units.parse_probability, units.format_probability, 0.0, 1.0),
]


@pytest.mark.parametrize(("parse", "show", "low", "high"), PAIRS, ids=lambda part: getattr(part, "__name__", None))
@given(data=st.data())
def test_what_is_printed_reads_back(
    parse: Callable[[object], float], show: Callable[..., str], low: float, high: float, data: st.DataObject
) -> None:
    value = data.draw(st.floats(low, high))
    assert parse(show(value, digits=17)) == pytest.approx(value, rel=1e-14)
    assert parse(show(value)) == pytest.approx(value, rel=6e-6) or value > high * 0.99999


@given(st.integers(0, 10**12))
def test_sizes_read_back_exactly(size: int) -> None:
    assert units.parse_size_bytes(units.format_size(size, digits=17)) == size


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.format_length(47_000), "47 km"),
        (units.format_delay(200e-6 * (1 - 1e-15)), "200 us"),
        (units.format_delay(235e-6), "235 us"),
        (units.format_delay(0), "0 s"),
        (units.format_duration(480), "8 min"),
        (units.format_rate(8e8), "800 Mb/s"),
        (units.format_rate(0), "unlimited"),
        (units.format_size(1_020_000), "1.02 MB"),
        (units.format_probability(0.001), "0.1%"),
        (units.format_probability(1e-9), "1e-09"),
        (units.format_probability(1.0, 2), "100%"),
        (units.format_probability(0.9996, 3), "100%"),
        (units.format_rate(999.96e6, 3), "1000 Mb/s"),
        (units.format_percent(1.123), "112 %"),
        (units.format_percent(0.9999), "100 %"),
        (units.format_percent(0.0033), "0.33 %"),
    ],
)
def test_prints(shown: str, text: str) -> None:
    assert shown == text


@given(st.floats(0, 1e9), st.integers(1, 4))
def test_no_percentage_and_no_rate_has_an_exponent(value: float, digits: int) -> None:
    """Nobody reads 1.1e+02 %."""
    for shown in (units.format_percent(value, digits), units.format_rate(value * 1e3, digits)):
        assert "e+" not in shown
    percent = float(units.format_percent(value, digits).removesuffix(" %"))
    assert percent == pytest.approx(100 * value, rel=0.5 * 10 ** (1 - digits), abs=1e-300)


@given(st.one_of(st.text(), st.floats(), st.integers(), st.booleans(), st.none(), st.lists(st.integers())))
def test_nothing_but_value_error(value: object) -> None:
    for parse, *_ in PAIRS:
        try:
            si = parse(value)
        except ValueError as error:
            assert str(error)
        else:
            assert si >= 0
