"""Validity of the scale model, compared with figures calculated by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.core.physics import validity
from testbed.core.physics.validity import BIASED, FAILS, HOLDS, Exchange, Fiber, Finding
from testbed.core.topology.survey import validity_of
from testbed.host.files import catalog


def fiber(name: str = "north", delay_s: float = 200e-6, loss: float = 0.0, rate_bps: float = 800e6) -> Fiber:
    return Fiber(name, delay_s, 2 * delay_s, rate_bps, 1500, loss)


METRO = fiber()
"""40 km at 5 us/km, 800 Gb/s at scale 1000."""
FOUR = Exchange(4)


def of(found: Sequence[Finding], quantity: str) -> Finding:
    (one,) = [it for it in found if it.quantity == quantity]
    return one


def judged(fiber: Fiber, quantity: str, scale: float = 1000, exchange: Exchange = FOUR) -> Finding:
    return of(validity.check([fiber], scale, exchange), quantity)


def test_time_of_a_packet_on_the_wire() -> None:
    """1538 bytes take 15.38 us at 0.8 Gb/s and 15.38 ns at 800 Gb/s: 7.7 % of 200 us."""
    found = judged(METRO, "packet time")
    assert (found.lab, found.real) == (pytest.approx(15.38e-6), pytest.approx(15.38e-9))
    assert found.error == pytest.approx(0.0768, abs=1e-4)
    assert (found.verdict, found.direction) == (BIASED, "too harsh")


def test_what_to_set_mends_it() -> None:
    near = fiber(delay_s=25e-6)
    found = judged(near, "packet time")
    assert found.verdict == FAILS
    scale = float(found.change.split()[3])
    better = fiber(delay_s=25e-6, rate_bps=800e9 / scale)
    assert judged(better, "packet time", scale).verdict != FAILS


def test_slow_start_by_counting_windows() -> None:
    """26.7 packets fill 800 Mb/s x 400 us: 10, 20, 40; 26 667 at full scale: 10 x 2^12 = 40 960."""
    found = judged(METRO, "slow start")
    assert (found.lab, found.real) == (2, 12)
    assert found.direction == "too kind"


@given(st.floats(1, 1e9), st.floats(1, 1e9))
def test_rounds_against_a_sender_played_by_hand(pipe: float, packets: float) -> None:
    window, sent, count = 10.0, 10.0, 0
    while window < pipe * (1 - 1e-6) and sent < packets * (1 - 1e-6):
        window, count = 2 * window, count + 1
        sent += window
    assert abs(validity.rounds(pipe, packets) - count) <= (
        1 if math.isclose(window, pipe, rel_tol=1e-5) or math.isclose(sent, packets, rel_tol=1e-5) else 0
    )


def test_loss_is_kinder_in_a_pipe_of_fewer_packets() -> None:
    """sqrt(3/2p) is 122 packets at 1e-4: they fill 26.7 and are 1/218 of 26 667."""
    found = judged(fiber(loss=1e-4), "loss")
    assert found.lab == 1.0
    assert found.real == pytest.approx(122.47 / 26666.7, rel=1e-3)
    assert (found.verdict, found.direction) == (FAILS, "too kind")


@given(st.floats(1e-9, 0.5), st.floats(1, 1e4))
def test_loss_is_never_kinder_than_by_the_scale(loss: float, scale: float) -> None:
    found = judged(fiber(delay_s=5e-3, loss=loss), "loss", scale)
    assert -1e-9 <= found.error <= scale - 1 + 1e-6
    assert (found.verdict == HOLDS) == (scale <= 1), "loss at a scale is always marked"


def test_a_message_below_one_packet_is_invalid() -> None:
    assert judged(METRO, "operation size", exchange=Exchange(4, 4 * 1447)).verdict == FAILS
    assert judged(METRO, "operation size", exchange=Exchange(4, 4 * 1448e3)).verdict == HOLDS


def test_software_beside_the_transfer() -> None:
    """12 messages of 52 us, beside 12 x 200 us and 1.5 x 1.913 MB at 100 MB/s."""
    found = judged(METRO, "software cost")
    assert found.lab == pytest.approx(624e-6)
    assert found.error == pytest.approx(624e-6 / (624e-6 + 2.4e-3 + 1.5 * 1.913088e6 / 1e8))


def test_at_scale_1_all_but_software_holds() -> None:
    found = validity.check([fiber(loss=1e-4, rate_bps=800e9)], 1, FOUR)
    assert {it.quantity for it in found if it.verdict != HOLDS} <= {"software cost"}


def test_one_rank_exchanges_nothing() -> None:
    found = validity.check([METRO], 1000, Exchange(1))
    assert {it.quantity for it in found} == {"propagation, bytes / rate", "packet time", "loss"}


@pytest.mark.parametrize("name", catalog.list_topologies())
def test_every_shipped_lab_is_judged_whole(name: str) -> None:
    topology = catalog.load_topology(name)
    found = validity_of(topology)
    assert {it.fiber for it in found} == {link.name for link in topology.links}
    for it in found:
        assert it.quantity in validity.QUANTITIES
        assert it.verdict != FAILS or it.change
        assert math.isfinite(it.error)
        assert json.loads(json.dumps(it.to_dict()))["reason"] == it.reason
    assert validity.summary(found)


def test_one_line_when_all_holds_and_one_more_for_what_does_not() -> None:
    far = [fiber(name, 5e-3) for name in ("n", "s")]
    assert len(validity.summary(validity.check(far, 1000, FOUR))) == 1
    lossy = fiber("bad", 5e-3, 1e-3)
    first, *others = validity.summary(validity.check([*far, lossy], 1000, FOUR))
    assert "does not hold for loss" in first
    assert [it.split(":")[0] for it in others] == ["bad, loss"]


def test_directions_that_differ_are_judged_each() -> None:
    topology = catalog.load_topology("metro-40km", {"links.north.toward": "{west: {loss: 1e-4}}"})
    found = [it for it in validity_of(topology) if it.quantity == "loss"]
    assert {it.fiber: it.verdict for it in found} == {"north:west": FAILS, "north:east": HOLDS, "south": HOLDS}
