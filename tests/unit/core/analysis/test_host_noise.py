"""Stalls of the host explain late packets and own drops of the emulator, and make times uncertain."""

from __future__ import annotations

from typing import Any

import pytest
from builders import wire_records
from builders.tables import table
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.analysis.noise.host_noise import StallLog
from testbed.core.analysis.wire.fidelity import under_load
from testbed.core.records.stalls import Stall, TcpTimeouts

BOUNDS = (5e-5, 2e-4, 1e-3, 5e-3, 2e-2)
QUIET = (0.0,) * 6
DROPS = {"receive": 0, "memory": 0, "transmit": 0, "queue": 0}


def sample(t: float, counts: tuple[float, ...], drops: dict[str, int] | None = None):
    packets = int(sum(counts))
    times: Any = {"lateness_bounds_s": BOUNDS, "lateness_counts": counts}
    return wire_records.sample(t, packets * 1000, segments=packets, drops={**DROPS, **(drops or {})}, **times)


def fidelity(*samples, stalls: tuple[Stall, ...] = (), rate_bps: float | None = None):
    rates = {} if rate_bps is None else {"north": rate_bps}
    (measured,) = under_load(samples, None, None, StallLog(stalls, (), True), rates)
    return measured


LATE = (9000.0, 200.0, 300.0, 500.0, 0.0, 0.0)
"""5 % of 10,000 packets are later than 1 ms, none than 5 ms."""


WINDOW = sample(10.0, QUIET), sample(11.0, LATE)


def every_tenth(begin: float) -> tuple[Stall, ...]:
    return tuple(Stall(0, begin + index / 10, 5e-3) for index in range(10))


@table(
    "stalls, held",
    {
        "without stalls the emulator is late": ((), False),
        "stalls that are long and many enough explain late packets": (every_tenth(10.0), None),
        "too little stalled time explains nothing": ((Stall(0, 10.5, 5e-3),), False),
        "stalls shorter than the lateness explain nothing": (
            tuple(Stall(0, 10.0 + index / 1000, 3e-4) for index in range(0, 1000, 4)), False,
        ),
    },
)  # fmt: skip
def test_under_load_late_packets(stalls, held):
    measured = fidelity(*WINDOW, stalls=stalls)
    assert (measured.held, measured.noisy) == (held, held is None)
    assert measured.p99_s > 1e-3, "the measurement is reported unchanged"


def test_under_load_stalls_of_another_second_explain_nothing():
    assert fidelity(*WINDOW, sample(13.0, LATE), stalls=every_tenth(12.0)).held is False


def test_under_load_packets_that_come_in_bursts_meet_a_stall_more_often():
    """10,000 packets of 1,000 bytes are a tenth of a second of 800 Mb/s: a 12 ms shadow holds a tenth of them."""
    one = (Stall(0, 10.5, 6e-3),)
    assert fidelity(*WINDOW, stalls=one).held is False
    assert fidelity(*WINDOW, stalls=one, rate_bps=0.8e9).noisy


@pytest.mark.parametrize("cause", ["receive", "memory", "transmit"])
def test_under_load_own_drops_that_overlap_a_stall_are_unknown_and_others_no(cause):
    on_time = (10000.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    twice = (20000.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    samples = sample(10.0, QUIET), sample(11.0, on_time, {cause: 7}), sample(12.0, twice, {cause: 7})
    assert fidelity(*samples).held is False
    measured = fidelity(*samples, stalls=(Stall(1, 10.5, 0.03),))
    assert (measured.held, measured.noisy) == (None, False)
    assert "7 packets, which may be due to stalls" in measured.why
    assert fidelity(*samples, stalls=(Stall(1, 11.5, 0.03),)).held is False, "dropped in another second"


STALLS = st.lists(st.builds(Stall, st.integers(0, 1), st.floats(9, 14), st.floats(2e-4, 0.4)), max_size=8).map(tuple)
COUNTS = st.tuples(*[st.integers(0, 5000).map(float)] * 6)


@given(COUNTS, COUNTS, st.integers(0, 3), STALLS, STALLS)
def test_stalls_never_turn_fidelity_from_yes_to_no_or_back(one, two, drops, stalls, more):
    """Yes stays yes. No becomes unknown or noisy host at most, and more stalls do not make it no again."""
    after = tuple(a + b for a, b in zip(one, two, strict=True))
    samples = sample(10.0, QUIET), sample(11.0, one), sample(12.0, after, {"memory": drops})
    quiet, noisy, noisier = (fidelity(*samples, stalls=logged).held for logged in ((), stalls, (*stalls, *more)))
    assert noisy in (quiet, None)
    assert noisier in (noisy, None)
    if quiet is not False:
        assert noisy == quiet == noisier


@given(STALLS, STALLS, st.floats(8, 15), st.floats(8, 15))
def test_uncertainty_grows_with_stalls_up_to_the_interval(stalls, more, one, other):
    began, ended = min(one, other), max(one, other)
    timeouts = tuple(TcpTimeouts(t, "west-0", t - 1, 2) for t in (10.0, 11.0, 12.0))
    logs = (StallLog(logged, timeouts, True) for logged in (stalls, (*stalls, *more)))
    less, greater = (log.uncertainty_s(began, ended) for log in logs)
    assert 0 <= less <= greater + 1e-9
    assert greater <= ended - began


@table(
    "stalls, began_t, uncertainty_s",
    {
        "no stall": ((), 0, 0),
        "it began in a long stall": ((Stall(0, 10.3, 0.02),), 0, pytest.approx(0.02 + 3 * 0.2)),
        "before the interval": ((Stall(0, 10.3, 0.02),), 12, 0),
        "it began in a short stall": ((Stall(0, 10.3, 0.001),), 0, pytest.approx(0.001)),
        "it began before the stall": ((Stall(0, 10.9, 0.02),), 0, pytest.approx(0.02)),
    },
)
def test_uncertainty_of_timeouts(stalls, began_t, uncertainty_s):
    timeouts = (TcpTimeouts(11.0, "west-0", 10.0, 3),)
    assert StallLog(stalls, timeouts, True).uncertainty_s(began_t, 20) == uncertainty_s


@table(
    "stalls, noisy",
    {
        "no stalls": ((), False),
        "a small share": ([Stall(0, second, 0.004) for second in range(10)], False),
        "one of 19 ms": ([Stall(0, 5, 0.019)], False),
        "one of 21 ms": ([Stall(0, 5, 0.021)], True),
        "a large share of short ones": ([Stall(0, tick / 10, 0.0015) for tick in range(100)], True),
    },
)
def test_summary_of_a_noisy_host(stalls, noisy):
    assert StallLog(tuple(stalls), (), True).summary(0, 10).noisy is noisy


def test_summary_without_a_log():
    assert StallLog().summary(0, 10) is None
